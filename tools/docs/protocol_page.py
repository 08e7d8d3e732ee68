"""Generate the page of the protocol, docs/reference/protocol.md, from the comments in the .proto files."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rescorer.v1"
SOURCES = ("rescorer", "models", "admin")
"""Order of the .proto files on the page."""
HEAD = """# Protocol

The messages and services of package `rescorer.v1`, generated from the comments in `proto/rescorer/v1` by
`make docs`. A server answers reflection requests, so generic clients such as `grpcurl` need no copy of these
files. Health is `grpc.health.v1`. See [examples in other languages](../how-to/other-languages.md) and
[exit and status codes](codes.md).

"""
MESSAGES, ENUMS, SERVICES = 4, 5, 6
"""Field numbers of ``FileDescriptorProto``, which source locations use as paths."""
NESTED = 2
"""Field number of fields in a message, of values in an enum and of methods in a service."""

SYNTAX = (12,)
"""Path of the ``syntax`` line; the comment above that line describes the whole file."""
ITEM = re.compile(r" {3}([A-Z_]+) {2,}(.*)")

SourcePath = tuple[int, ...]


def protocol_page() -> str:
    """Return the page: services, then messages and enums in the order of the files."""
    files = sorted(
        (file for file in descriptor_set().file if file.package == PACKAGE),
        key=lambda file: SOURCES.index(Path(file.name).stem),
    )
    services = [text for file in files for text in service_sections(file)]
    types = [text for file in files for text in (*message_sections(file), *enum_sections(file))]
    return (
        HEAD
        + f"{with_lists(raw_comment(files[0], SYNTAX))}\n## Services\n\n"
        + "".join(services)
        + "## Messages and enums\n\n"
        + "".join(types).rstrip()
        + "\n"
    )


def descriptor_set() -> FileDescriptorSet:
    """Compile the .proto files, with their comments."""
    spec = importlib.util.spec_from_file_location("generate_proto", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    compiler: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compiler)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "protocol.binpb"
        compiler.run_protoc("--include_imports", "--include_source_info", f"--descriptor_set_out={path}")
        return FileDescriptorSet.FromString(path.read_bytes())


def comments_of(file: FileDescriptorProto) -> Mapping[SourcePath, str]:
    """Return the leading comment of each element, by its path."""
    locations = file.source_code_info.location
    return {tuple(place.path): clean(place.leading_comments) for place in locations if place.leading_comments}


def raw_comment(file: FileDescriptorProto, path: SourcePath) -> str:
    places = (place for place in file.source_code_info.location if tuple(place.path) == path)
    return next(places).leading_comments


def with_lists(comment: str) -> str:
    """Return a comment as Markdown; an indented line ``NAME  meaning`` becomes an item of a list."""
    lines: list[str] = []
    for line in comment.splitlines():
        if item := ITEM.fullmatch(line):
            lines += [] if lines and lines[-1].startswith("- ") else [""]
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif lines and lines[-1].startswith("- ") and line.startswith("    "):
            lines[-1] += f" {line.strip()}"
        else:
            lines += ["", line.strip()] if lines and lines[-1].startswith("- ") else [line.strip()]
    return "\n".join(lines).strip() + "\n"


def clean(comment: str) -> str:
    return " ".join(comment.split()).replace("|", "\\|")


def service_sections(file: FileDescriptorProto) -> Iterator[str]:
    comments = comments_of(file)
    for number, service in enumerate(file.service):
        lines = [f"### {service.name}\n", with_lists(raw_comment(file, (SERVICES, number)))]
        lines += ["| method | request | response | meaning |", "|---|---|---|---|"]
        for index, method in enumerate(service.method):
            request = ("stream of " if method.client_streaming else "") + type_link(method.input_type)
            response = ("stream of " if method.server_streaming else "") + type_link(method.output_type)
            meaning = comments.get((SERVICES, number, NESTED, index), "")
            lines.append(f"| `{method.name}` | {request} | {response} | {meaning} |")
        yield "\n".join(lines) + "\n\n"


def message_sections(file: FileDescriptorProto) -> Iterator[str]:
    comments = comments_of(file)
    for number, message in enumerate(file.message_type):
        lines = [heading(message.name), comments.get((MESSAGES, number), "") + "\n"]
        if message.field:
            lines += ["| field | type | meaning |", "|---|---|---|"]
        for index, field in enumerate(message.field):
            meaning = comments.get((MESSAGES, number, NESTED, index), "")
            lines.append(f"| `{field.name}` | {field_type(field, message)} | {meaning} |")
        yield "\n".join(lines).rstrip() + "\n\n"


def enum_sections(file: FileDescriptorProto) -> Iterator[str]:
    comments = comments_of(file)
    for number, enum in enumerate(file.enum_type):
        lines = [heading(enum.name), comments.get((ENUMS, number), "") + "\n"]
        lines += ["| value | number | meaning |", "|---|---|---|"]
        for index, value in enumerate(enum.value):
            lines.append(
                f"| `{value.name}` | {value.number} | {comments.get((ENUMS, number, NESTED, index), '')} |"
            )
        yield "\n".join(lines) + "\n\n"


def heading(name: str) -> str:
    return f"### {name} {{ #{anchor(name)} }}\n"


def anchor(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def field_type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    entries = {f".{PACKAGE}.{message.name}.{entry.name}": entry for entry in message.nested_type}
    if field.type_name in entries:
        key, value = entries[field.type_name].field
        return f"map of {scalar(key)} to {scalar(value)}"
    kind = scalar(field)
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    one_of = (
        f", one of `{message.oneof_decl[field.oneof_index].name}`" if field.HasField("oneof_index") else ""
    )
    return ("repeated " if repeated else "") + kind + one_of


def scalar(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return type_link(field.type_name)
    return f"`{FieldDescriptorProto.Type.Name(field.type).removeprefix('TYPE_').lower()}`"


def type_link(name: str) -> str:
    """Return a link to a message or enum of this project, or the plain name of any other type."""
    prefix, _, short = name.removeprefix(".").rpartition(".")
    return f"[`{short}`](#{anchor(short)})" if prefix == PACKAGE else f"`{name.removeprefix('.')}`"

"""Write the generated reference pages, or check that they are up to date.

    python -m tools.docs            writes docs/reference/{settings,rescorer,rescorer-train,protocol}.md,
                                    and the table of rerankers.md
    python -m tools.docs --check    fails when a page differs from what the code says

The sources are the settings class, the typer apps, the rerankers' features and the .proto files. The pages
are committed, so that they can be read without building the site. Needs grpcio-tools, for the comments in the
.proto files.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from rescorer.reranking.features import describe_features
from rescorer.service.settings import PREFIX, ServiceSettings, flag_of
from rescorer.terminal.help import GENERAL

UNITS = {
    "_ms": "milliseconds",
    "_s": "seconds",
    "_bytes": "bytes",
    "_share": "share, 0 to 1",
    "_lists": "lists",
    "_hypotheses": "hypotheses",
    "_words": "words",
    "_tokens": "words",
    "_streams": "streams",
    "threads": "threads",
    "workers": "processes",
    "front_ends": "processes",
    "port": "port",
}
"""Unit of a setting, by the end of the setting's name."""
KINDS = {bool: "true, false", int: "number", float: "number", str: "text", Path: "path", tuple: "names"}
SETTINGS_HEAD = """# Settings

Every setting is an option of `rescorer serve`, an environment variable and a key in a TOML file.
[Serve](../how-to/serve.md#settings) says which of them takes precedence. This page is generated from the code
by `make docs`.

| setting | meaning | default | unit | option, environment variable |
|---|---|---|---|---|
"""


def settings_page() -> str:
    """Return the page: one row per setting, in the order of ``--help``."""
    rows = [settings_row(name, field) for name, field in ServiceSettings.model_fields.items()]
    return SETTINGS_HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def settings_row(name: str, field: Any) -> tuple[str, ...]:
    value = f"{field.default:g}" if isinstance(field.default, float) else str(field.default).lower()
    default = "none" if field.default in (None, ()) else f"`{value}`"
    meaning = " ".join((field.description or "").replace("``", "`").split())
    names = f"`{flag_of(name)}`<br>`{PREFIX}{name.upper()}`"
    return f"`{name}`", meaning, default, unit(name, field.annotation), names


def unit(name: str, annotation: Any) -> str:
    """Return the unit of a setting, or the kind of its values if they have none."""
    for end, words in UNITS.items():
        if name.endswith(end):
            return words
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if isinstance(annotation, types.UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not types.NoneType)
    return KINDS[get_origin(annotation) or annotation]


PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "rerankers.md"
BEGIN, END = "<!-- features: written by make docs -->", "<!-- end of features -->"


def features_page() -> str:
    """Return the page with an updated table of features: one row per kind of feature."""
    rows = [f"| `{name}` | {unit} | {text} | {cost} |" for name, unit, text, cost in describe_features()]
    table = "\n".join(["| feature | unit | value | time |", "|---|---|---|---|", *rows])
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{table}\n\n{END}", text, flags=re.DOTALL)


COMMANDS_HEAD = """# {program}

{summary} This page is generated from the commands' help by `make docs`.

"""
SETTINGS = "All [settings](settings.md) are options of this command, as well as:\n\n"
EXTRAS = re.compile(r"\s*\[([^\[\]]*)\]$")
"""The end of an option's help: its default, its range and whether it is required."""
HIDDEN = {"--help", "--install-completion", "--show-completion"}
PREFORMATTED = "\b\n"
"""Marks a paragraph of help whose line breaks are kept."""


def rescorer_page() -> str:
    """Return the page of ``rescorer``."""
    from rescorer.cli import app

    return commands_page("rescorer", app)


def training_page() -> str:
    """Return the page of ``rescorer-train``."""
    from rescorer_training.cli import app

    return commands_page("rescorer-train", app)


def commands_page(program: str, app: typer.Typer) -> str:
    """Return one section per command: what it does, an example, its arguments and its options."""
    group: Any = typer.main.get_command(app)
    parts = [COMMANDS_HEAD.format(program=program, summary=paragraphs(group.help)[0])]
    parts += [section(program, name, command) for name, command in leaf_commands(group)]
    if group.epilog:
        parts.append(
            f"## Exit codes\n\n[Exit and status codes](codes.md) lists them.\n\n{as_text(group.epilog)}\n"
        )
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def leaf_commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group and of the groups in it, with their full names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaf_commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def section(program: str, name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    text = f"## {program} {name}\n\n" + "\n\n".join(map(as_markdown, paragraphs(command.help))) + "\n\n"
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    if type(command).__name__ == "SettingsCommand":
        text += SETTINGS
        groups = {GENERAL: command.params}
    else:
        groups = command.grouped_options(context)
    for title, options in {"Arguments": arguments, **groups}.items():
        records = [record for option in options if (record := option.get_help_record(context))]
        if rows := [option_row(*record) for record in records if record[0].split(",")[0] not in HIDDEN]:
            heading = f"**{title}**\n\n" if len(groups) > 1 and options is not arguments else ""
            text += heading + table("argument" if options is arguments else "option", rows)
    return text


def paragraphs(text: str | None) -> list[str]:
    """Split help into paragraphs, each on one line unless it is preformatted."""
    parts = re.split(r"\n\s*\n", (text or "").replace("\f", "").strip("\n"))
    return [
        part if part.startswith(PREFORMATTED) else " ".join(part.split()) for part in parts if part.strip()
    ]


def as_markdown(paragraph: str) -> str:
    """Return a paragraph of help as Markdown; examples and preformatted paragraphs become blocks."""
    if paragraph.startswith(PREFORMATTED):
        return f"```text\n{paragraph.removeprefix(PREFORMATTED)}\n```"
    if paragraph.startswith("Example: "):
        return f"```text\n{paragraph.removeprefix('Example: ')}\n```"
    return as_text(paragraph)


def option_row(names: str, text: str) -> tuple[str, str, str]:
    """Return the cells of an option: its names, its meaning, and its default and range."""
    extras = EXTRAS.search(text)
    meaning = text[: extras.start()] if extras else text
    return f"`{names}`", as_text(meaning), as_text(extras.group(1)) if extras else ""


def as_text(text: str) -> str:
    """Escape the characters of a text that Markdown would take for markup."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else re.sub(r"([|<>*_\[\]])", r"\\\1", part) for part in parts
    )


def table(kind: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| {kind} | meaning | default, range |", "|---|---|---|"]
    lines += [f"| {escape_pipes(names)} | {meaning} | {extras} |" for names, meaning, extras in rows]
    return "\n".join(lines) + "\n\n"


def escape_pipes(names: str) -> str:
    return names.replace("|", "\\|")


ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "rescorer.v1"
SOURCES = ("rescorer", "models", "admin")
"""Order of the .proto files on the page."""
PROTOCOL_HEAD = """# Protocol

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
        PROTOCOL_HEAD
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


REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
PAGES = {
    "settings.md": settings_page,
    "rescorer.md": rescorer_page,
    "rescorer-train.md": training_page,
    "protocol.md": protocol_page,
    "rerankers.md": features_page,
}


def outdated_pages() -> list[str]:
    """Return the names of the pages that are missing or differ from what the code says."""
    return [name for name, page in PAGES.items() if _read(REFERENCE / name) != page()]


def write_pages() -> None:
    """Write every generated page."""
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        if names := outdated_pages():
            raise SystemExit(f"{REFERENCE}: {', '.join(names)} out of date; run: make docs")
    elif arguments:
        raise SystemExit(__doc__)
    else:
        write_pages()


if __name__ == "__main__":
    main(sys.argv[1:])

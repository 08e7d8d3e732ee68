"""Generate the Python code in rescorer/protocol/v1 and the gateway's descriptors from proto/.

    python proto/generate.py            write the files
    python proto/generate.py --check    fail if the files are out of date

Needs grpcio-tools. The generated code requires the version of grpcio that generated it, or a newer one. Other
versions generate different files, so the locks pin the version.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

PROTO = Path(__file__).resolve().parent
FOLDER = "rescorer/v1"
NAMES = ("rescorer", "models", "admin")
"""Names of the .proto files, without extension."""
SOURCES = [f"{FOLDER}/{name}.proto" for name in NAMES]
TARGET = PROTO.parent / "rescorer" / "protocol" / "v1"
DESCRIPTORS = PROTO.parent / "deploy" / "envoy" / "rescorer.binpb"
"""Descriptors of all messages and services and their imports, for Envoy's gRPC-JSON transcoder."""
ERROR_DETAILS = "google/rpc/error_details.proto"
"""Messages in the details of error statuses; no message of the project refers to them."""

IMPORT_REPLACEMENTS = (
    ("from rescorer.v1 import", "from rescorer.protocol.v1 import"),
    *((f"'rescorer.v1.{name}_pb2'", f"'rescorer.protocol.v1.{name}_pb2'") for name in NAMES),
)
"""protoc names Python modules after the proto package, but they live in ``rescorer.protocol``."""


def run_protoc(*arguments: str) -> None:
    from importlib.resources import files

    from grpc_tools import protoc

    well_known = files("grpc_tools") / "_proto"
    if protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", *arguments, *SOURCES]):
        raise SystemExit(f"protoc failed on {', '.join(SOURCES)}")


def generate_code() -> dict[str, str]:
    """Generate the Python files; return their text by file name."""
    with tempfile.TemporaryDirectory() as folder:
        run_protoc(*(f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")))
        files = {path.name: path.read_text(encoding="utf-8") for path in (Path(folder) / FOLDER).glob("*")}
    for old, new in IMPORT_REPLACEMENTS:
        files = {name: text.replace(old, new) for name, text in files.items()}
    return {"__init__.py": '"""Generated from proto/ by proto/generate.py; never edited."""\n', **files}


def generate_descriptors() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / DESCRIPTORS.name
        run_protoc("--include_imports", f"--descriptor_set_out={path}", ERROR_DETAILS)
        return path.read_bytes()


def find_outdated() -> list[str]:
    """List the names of files that are missing, differ from the generated ones, or should not exist."""
    expected = generate_code()
    existing = {
        path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.py*") if path.is_file()
    }
    names = [name for name in {*expected, *existing} if expected.get(name) != existing.get(name)]
    if not DESCRIPTORS.exists() or DESCRIPTORS.read_bytes() != generate_descriptors():
        names.append(DESCRIPTORS.name)
    return sorted(names)


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        if outdated := find_outdated():
            raise SystemExit(f"{TARGET}: {', '.join(outdated)} out of date; run python proto/generate.py")
    elif arguments:
        raise SystemExit(__doc__)
    else:
        files = generate_code()
        TARGET.mkdir(exist_ok=True)
        for path in TARGET.glob("*.py*"):
            path.unlink()
        for name, text in files.items():
            (TARGET / name).write_text(text, encoding="utf-8")
        DESCRIPTORS.parent.mkdir(exist_ok=True)
        DESCRIPTORS.write_bytes(generate_descriptors())


if __name__ == "__main__":
    main(sys.argv[1:])

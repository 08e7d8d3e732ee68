"""Owns the step from proto/ to the Python code in rescorer/protocol/v1 and the descriptors for a gateway.

    python proto/generate.py            writes both
    python proto/generate.py --check    fails when what is there is out of date

Needs grpcio-tools. The code names the version that made it and runs with that version of grpcio or a newer
one; another version writes other bytes, so one version is pinned for everybody in pyproject.toml.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

PROTO = Path(__file__).resolve().parent
FOLDER = "rescorer/v1"
NAMES = ("rescorer", "models", "admin")
"""Files of that folder, without their ending."""
SOURCES = [f"{FOLDER}/{name}.proto" for name in NAMES]
TARGET = PROTO.parent / "rescorer" / "protocol" / "v1"
DESCRIPTORS = PROTO.parent / "deploy" / "envoy" / "rescorer.binpb"
"""All messages and services with what they import, for Envoy's gRPC-JSON transcoder."""
DETAILS = "google/rpc/error_details.proto"
"""What statuses carry, which no message names."""

MOVED = (
    ("from rescorer.v1 import", "from rescorer.protocol.v1 import"),
    *((f"'rescorer.v1.{name}_pb2'", f"'rescorer.protocol.v1.{name}_pb2'") for name in NAMES),
)
"""protoc derives Python modules from the proto package; ours live inside the installed package."""


def protoc(*arguments: str) -> None:
    from importlib.resources import files

    from grpc_tools import protoc

    well_known = files("grpc_tools") / "_proto"
    if protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", *arguments, *SOURCES]):
        raise SystemExit(f"protoc failed on {', '.join(SOURCES)}")


def generated() -> dict[str, str]:
    """Text of every generated file of code, by name."""
    with tempfile.TemporaryDirectory() as folder:
        protoc(*(f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")))
        made = {path.name: path.read_text(encoding="utf-8") for path in (Path(folder) / FOLDER).glob("*")}
    for old, new in MOVED:
        made = {name: text.replace(old, new) for name, text in made.items()}
    return {"__init__.py": '"""Generated from proto/ by proto/generate.py; never edited."""\n', **made}


def descriptors() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / DESCRIPTORS.name
        protoc("--include_imports", f"--descriptor_set_out={path}", DETAILS)
        return path.read_bytes()


def stale() -> list[str]:
    """Names of files that are missing, differ from what protoc writes, or should not be there."""
    made = generated()
    there = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.py*") if path.is_file()}
    names = [name for name in {*made, *there} if made.get(name) != there.get(name)]
    if not DESCRIPTORS.exists() or DESCRIPTORS.read_bytes() != descriptors():
        names.append(DESCRIPTORS.name)
    return sorted(names)


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        if out_of_date := stale():
            names = ", ".join(out_of_date)
            raise SystemExit(f"{TARGET}: {names} out of date; run: python proto/generate.py")
    elif arguments:
        raise SystemExit(__doc__)
    else:
        made = generated()
        TARGET.mkdir(exist_ok=True)
        for path in TARGET.glob("*.py*"):
            path.unlink()
        for name, text in made.items():
            (TARGET / name).write_text(text, encoding="utf-8")
        DESCRIPTORS.parent.mkdir(exist_ok=True)
        DESCRIPTORS.write_bytes(descriptors())


if __name__ == "__main__":
    main(sys.argv[1:])

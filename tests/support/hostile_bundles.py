"""Ways to turn a sound bundle into one that attacks its reader.

Each function changes a bundle's folder in place. Hashes are brought up to date afterwards, as an attacker
would, wherever the manifest lists a regular file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

SECRET = "root-password-hash"
"""First line of a file outside the bundle; no message may quote it."""
GIB = 1 << 30


class Attack(NamedTuple):
    """A change of a bundle, and what the reason of its refusal must name."""

    change: Callable[[Path], None]
    reason: str


def write_hostile(bundle: Path, attack: Attack) -> None:
    """Change a bundle and bring the hashes in its manifest up to date."""
    outside(bundle)
    attack.change(bundle)
    manifest = bundle / "manifest.json"
    if not manifest.is_file() or manifest.stat().st_size > 1 << 20:
        return
    try:
        values = json.loads(manifest.read_text())
    except RecursionError:
        return
    for name in values["files"]:
        path = Path(os.path.abspath(bundle / name.replace("\0", "")))
        if path.is_file() and path.stat().st_size < GIB:
            values["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(values))


def outside(bundle: Path) -> Path:
    """A folder outside the bundle that has a network and a text file."""
    folder = bundle.parent.parent / "outside"
    if not folder.exists():
        folder.mkdir()
        for path in (bundle / "neural").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "model.arpa").write_bytes((bundle / "ngram" / "model.arpa").read_bytes())
        (folder / "passwd").write_text(f"{SECRET}\n")
        (folder / "y.json").write_text('{"word": 1}')
    return folder


def edit_manifest(change: Callable[[dict[str, Any], Path], object]) -> Callable[[Path], None]:
    def apply(bundle: Path) -> None:
        manifest = bundle / "manifest.json"
        values = json.loads(manifest.read_text())
        change(values, bundle)
        manifest.write_text(json.dumps(values))

    return apply


def model_path(model: str, path: Callable[[Path], str]) -> Callable[[Path], None]:
    """Let the path of a model lead to ``path(outside folder)``."""
    return edit_manifest(lambda values, bundle: values["models"][model].update(path=path(outside(bundle))))


def list_file(bundle: Path, name: str) -> None:
    edit_manifest(lambda values, _: values["files"].update({name: "0" * 64}))(bundle)


def replace(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Replace a file by what ``make`` makes at its path, and list it."""

    def apply(bundle: Path) -> None:
        path = bundle / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        make(path)
        if name != "manifest.json":
            list_file(bundle, name)

    return apply


def link_folder(name: str, target: Callable[[Path], Path]) -> Callable[[Path], None]:
    """Move a folder of the bundle aside and put a link to ``target(outside folder)`` in its place."""

    def apply(bundle: Path) -> None:
        folder = outside(bundle)
        (bundle / name).rename(folder / f"moved-{name}")
        (bundle / name).symlink_to(target(folder))

    return apply


def add_unlisted(name: str) -> Callable[[Path], None]:
    def apply(bundle: Path) -> None:
        (bundle / name).parent.mkdir(exist_ok=True)
        (bundle / name).write_text("{}")

    return apply


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # paths of sockets are short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def set_config(**values: Any) -> Callable[[Path], None]:
    def apply(bundle: Path) -> None:
        path = bundle / "neural" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return apply


def lie_about_shape(bundle: Path) -> None:
    """Let the header of the weights declare a matrix of 2^50 parameters."""
    path = bundle / "neural" / "model.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["network.embedding.weight"]["shape"] = [1 << 25, 1 << 25]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def gzip_arpa(start: bytes, block: bytes, n_blocks: int) -> Callable[[Path], None]:
    """Compress an ARPA file that repeats a block of text."""

    def apply(bundle: Path) -> None:
        packer = zlib.compressobj(1, wbits=31)
        with (bundle / "ngram" / "model.arpa").open("wb") as stream:
            stream.write(packer.compress(start))
            for _ in range(n_blocks):
                stream.write(packer.compress(block))
            stream.write(packer.flush())

    return apply


def write_arpa(text: bytes) -> Callable[[Path], None]:
    return lambda bundle: (bundle / "ngram" / "model.arpa").write_bytes(text) and None


def kenlm_header(counts: tuple[int, ...]) -> bytes:
    """The header of a KenLM binary that declares these counts, and some empty tables."""
    magic = b"mmap lm http://kheafield.com/code format version 5\n\0\0".ljust(56, b"\0")
    constants = struct.pack("<fffIIIQ", 0.0, 1.0, -0.5, 1, 0xFFFFFFFF, 0, 1)
    numbers = struct.pack("<B3xfIB3xI", len(counts), 1.5, 0, 1, 0)
    return magic + constants + numbers + struct.pack(f"<{len(counts)}Q", *counts) + bytes(1024)


KENLM_BINARY = kenlm_header((3, 2))


def kenlm_binary(counts: tuple[int, ...]) -> Callable[[Path], None]:
    """Replace the n-gram by the header of a KenLM binary, with a list of words."""

    def apply(bundle: Path) -> None:
        (bundle / "ngram" / "model.arpa").write_bytes(kenlm_header(counts))
        (bundle / "ngram" / "words.txt").write_text("a\nb\n")
        edit_manifest(lambda values, _: values["models"]["ngram"].update(words="ngram/words.txt"))(bundle)
        list_file(bundle, "ngram/words.txt")

    return apply


HEADER = b"\\data\\\nngram 1=%d\nngram 2=%d\n\n\\1-grams:\n"
MIB_OF_A = b"a" * (1 << 20)

PATH_ATTACKS = {
    "model path leads out": Attack(model_path("neural", lambda path: f"../../{path.name}"), "'../../outside"),
    "absolute model path": Attack(model_path("neural", str), "outside/config.json"),
    "n-gram path is a text file outside": Attack(
        model_path("ngram", lambda path: f"../../{path.name}/passwd"), "passwd"
    ),
    "n-gram path is a device": Attack(model_path("ngram", lambda _: "/dev/zero"), "/dev/zero"),
    "path with NUL": Attack(
        edit_manifest(lambda values, _: values["models"]["ngram"].update(path="ngram/model.arpa\0")), "ngram"
    ),
    "path of half a surrogate pair": Attack(
        edit_manifest(lambda values, _: values["models"]["ngram"].update(path="ngram/\ud800")),
        "manifest.json",
    ),
    "file is a link out": Attack(
        replace("ngram/model.arpa", lambda path: path.symlink_to(outside(path.parent.parent) / "model.arpa")),
        "ngram/model.arpa",
    ),
    "file is a link inside": Attack(
        replace("text.json", lambda path: path.symlink_to("manifest.json")), "text.json"
    ),
    "folder is a link out": Attack(link_folder("neural", lambda path: path / "moved-neural"), "neural"),
    "weights is a link to /": Attack(link_folder("weights", lambda _: Path("/")), "weights"),
    "weights set is a FIFO": Attack(replace("weights/y.json", os.mkfifo), "weights/y.json"),
    "weights set is /dev/zero": Attack(
        replace("weights/y.json", lambda path: path.symlink_to("/dev/zero")), "weights/y.json"
    ),
    "unlisted FIFO": Attack(lambda bundle: os.mkfifo(bundle / "weights" / "y.json"), "weights/y.json"),
    "config is a FIFO": Attack(replace("neural/config.json", os.mkfifo), "neural/config.json"),
    "manifest is a FIFO": Attack(replace("manifest.json", os.mkfifo), "manifest.json"),
    "file is a socket": Attack(replace("weights/y.json", make_socket), "weights/y.json"),
    "file is a folder": Attack(replace("text.json", Path.mkdir), "text.json"),
    "unlisted weights set": Attack(add_unlisted("weights/y.json"), "weights/y.json"),
    "unlisted file in another folder called weights": Attack(
        add_unlisted("neural/weights/model.safetensors"), "neural/weights/model.safetensors"
    ),
    "no hashes": Attack(edit_manifest(lambda values, _: values["files"].clear()), "does not list it"),
}
"""Attacks by the names and kinds of files."""

SIZE_ATTACKS = {
    "word that becomes a million": Attack(
        replace(
            "text.json", lambda path: path.write_text(json.dumps({"replace": {"the": "a " * 1_000_000}}))
        ),
        "text.json: replace: the replacement of 'the' has 2,000,000 characters; expected at most 100",
    ),
    "huge manifest": Attack(replace("manifest.json", make_sparse), "manifest.json"),
    "nested manifest": Attack(
        replace("manifest.json", lambda path: path.write_text('{"files": ' + "[" * 200_000)), "manifest.json"
    ),
    "many models": Attack(
        edit_manifest(
            lambda values, _: values["models"].update(
                {str(i): {"kind": "ngram", "path": "ngram/model.arpa"} for i in range(30_000)}
            )
        ),
        "30,002 models",
    ),
    "many files": Attack(
        edit_manifest(lambda values, _: values["files"].update({f"f{i}": "0" * 64 for i in range(9_000)})),
        "files; expected at most",
    ),
    "many files on disk": Attack(
        lambda bundle: [(bundle / f"f{i}").touch() for i in range(2_000)] and None,
        "the manifest does not list it",
    ),
    "huge weights set": Attack(replace("weights/y.json", make_sparse), "weights/y.json"),
    "unigram line without end": Attack(
        gzip_arpa(HEADER % (9, 0) + b"-1 ", MIB_OF_A, 400), "ngram/model.arpa"
    ),
    "ARPA header without end": Attack(
        gzip_arpa(b"\\data\\\nngram 1=", b"1" * (1 << 20), 400), "ngram/model.arpa"
    ),
    "bigram line without end": Attack(
        gzip_arpa(HEADER % (1, 1) + b"-1 a 0\n\n\\2-grams:\n-1 a ", MIB_OF_A, 400), "ngram/model.arpa"
    ),
    "ARPA of empty lines": Attack(gzip_arpa(HEADER % (10**9, 0), b"\n" * (1 << 20), 400), "ngram/model.arpa"),
    "ARPA declares more than it has": Attack(
        write_arpa(HEADER % (10**11, 10**11) + b"-1 a 0\n\n\\end\\\n"), "200,000,000,000 n-grams"
    ),
    "ARPA count of many digits": Attack(
        write_arpa(b"\\data\\\nngram 1=" + b"9" * 5000 + b"\n\n\\1-grams:\n"), "ngram/model.arpa"
    ),
    "ARPA of many members": Attack(
        lambda bundle: (
            (bundle / "ngram/model.arpa").write_bytes(
                gzip.compress(HEADER % (9, 0)) + gzip.compress(b"-1 " + b"a" * 1_000_000) * 400
            )
            and None
        ),
        "ngram/model.arpa",
    ),
    "KenLM binary declares more than it has": Attack(
        kenlm_binary((1 << 60, 1 << 60)), "n-grams, but the file"
    ),
    "hidden size": Attack(set_config(hidden_size=15_000), "neural/model.safetensors: the weights do not fit"),
    "hidden size beyond any": Attack(set_config(hidden_size=10**9), "hidden_size is 1000000000; expected"),
    "layers": Attack(set_config(layers=1_000_000), "layers is 1000000; expected"),
    "layers within bounds": Attack(set_config(layers=64), "the weights do not fit the network"),
    "vocabulary": Attack(set_config(vocabulary_size=9_000_000, class_sizes=[8_999_999]), "do not fit"),
    "class sizes": Attack(set_config(class_sizes=[10**15]), "class sizes sum to"),
    "hidden size is text": Attack(set_config(hidden_size="9" * 5000), "hidden_size is '999"),
    "integer of many digits": Attack(
        lambda bundle: (bundle / "neural/config.json").write_text('{"layers": ' + "9" * 4000 + "}") and None,
        "neural/config.json",
    ),
    "unknown setting with a long name": Attack(
        set_config(**{"x" * 1_000_000: 1}), "unknown network settings"
    ),
    "shape in the header": Attack(lie_about_shape, "offsets do not span"),
    "header longer than the file": Attack(
        lambda bundle: (bundle / "neural/model.safetensors").write_bytes(b"\xff" * 8 + b"{}") and None,
        "header",
    ),
    "vocabulary of many words": Attack(
        lambda bundle: (bundle / "neural/vocabulary.txt").write_bytes(b"a\n" * 5_000) and None,
        "neural/vocabulary.txt",
    ),
}
"""Attacks by what files declare or contain, on memory and time."""

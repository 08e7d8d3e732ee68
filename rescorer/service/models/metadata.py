"""Read vocabulary size, parameters and memory of a bundle's models from their files, without loading them."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.bundle import read_words
from rescorer.errors import BundleError
from rescorer.vocabulary import SPECIAL_TOKENS

WORD_BYTES = 200
"""Memory per word in Python's vocabularies and tables, in addition to KenLM's own memory."""
NGRAM_BYTES = 32
"""Memory per n-gram in KenLM's hash tables, which leave a third of their slots free."""
WEIGHT_BYTES = 4
"""Memory per weight: float32, whatever the type on disk."""
ARPA_HEADER_LINES = 20
"""Number of lines that are searched for the n-gram counts of an ARPA file."""


class ModelFacts(NamedTuple):
    """Metadata of one model; each number is 0 if the model's files do not state it."""

    name: str
    kind: str
    vocabulary_size: int
    """Known words, without sentence marks and ``<unk>``."""
    parameters: int
    """Weights of a network, or n-grams of an n-gram model."""
    memory_bytes: int
    """Estimated memory."""


def read_model_facts(folder: Path, manifest: Mapping[str, Any]) -> list[ModelFacts]:
    """Read the metadata of every model of a bundle; raises BundleError if a file cannot be read."""
    facts = []
    for name, entry in manifest["models"].items():
        read = _read_network_facts if entry["kind"] == "neural" else _read_ngram_facts
        try:
            facts.append(read(name, folder, entry))
        except (OSError, EOFError, ValueError, KeyError, zlib.error) as error:
            raise BundleError(f"{folder / entry['path']}: cannot be read: {error}") from None
    return facts


def _read_network_facts(name: str, bundle: Path, entry: Mapping[str, Any]) -> ModelFacts:
    """Read the network's configuration and the shapes in the header of its weights."""
    folder = bundle / entry["path"]
    with open(folder / "model.safetensors", "rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    shapes = [tensor["shape"] for key, tensor in header.items() if key != "__metadata__"]
    parameters = sum(math.prod(shape) for shape in shapes)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    words = int(config["vocabulary_size"]) - len(SPECIAL_TOKENS)
    return ModelFacts(name, "neural", words, parameters, parameters * WEIGHT_BYTES + words * WORD_BYTES)


def _read_ngram_facts(name: str, bundle: Path, entry: Mapping[str, Any]) -> ModelFacts:
    """Read the counts of an ARPA file; a KenLM binary is mapped into memory, so its file size counts."""
    path = bundle / entry["path"]
    counts = read_arpa_counts(path)
    if counts:
        words, n_grams = max(0, counts[0] - len(SPECIAL_TOKENS)), sum(counts)
        return ModelFacts(name, "ngram", words, n_grams, n_grams * NGRAM_BYTES + words * WORD_BYTES)
    words = len(read_words(bundle / entry["words"])) if "words" in entry else 0
    return ModelFacts(name, "ngram", words, 0, path.stat().st_size + words * WORD_BYTES)


def read_arpa_counts(path: Path) -> list[int]:
    """Read the number of n-grams per order from an ARPA file (gzip or plain); empty for other files."""
    with open(path, "rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    counts: list[int] = []
    with gzip.open(path, "rb") if zipped else open(path, "rb") as stream:
        if not stream.read(64).lstrip().startswith(b"\\data\\"):
            return counts
        stream.seek(0)
        for _, line in zip(range(ARPA_HEADER_LINES), stream, strict=False):
            if line.startswith(b"ngram ") and b"=" in line:
                counts.append(int(line.split(b"=")[1]))
    return counts

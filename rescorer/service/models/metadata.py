"""Owns what can be told of a bundle's models from their files, without loading them: words, size, memory."""

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
"""Of a word, as Python keeps it in vocabularies and tables, beside KenLM's own."""
NGRAM_BYTES = 32
"""Of an n-gram in KenLM's hash tables, which leave a third of their room free."""
WEIGHT_BYTES = 4
"""Weights are float32 in memory, whatever they are on disk."""
HEADER_LINES = 20
"""Within which an ARPA file has said its counts."""


class ModelFacts(NamedTuple):
    """What is known of one model."""

    name: str
    kind: str
    vocabulary_size: int
    """Words it knows, without the marks of sentences and of unknown words; 0: not told by its files."""
    parameters: int
    """Weights of a network, n-grams of an n-gram; 0: not told by its files."""
    memory_bytes: int
    """About what it takes in memory."""


def model_facts(folder: Path, manifest: Mapping[str, Any]) -> list[ModelFacts]:
    """The facts of every model of a bundle; raises BundleError where a file cannot be read."""
    facts = []
    for name, entry in manifest["models"].items():
        told_by = network_facts if entry["kind"] == "neural" else ngram_facts
        try:
            facts.append(told_by(name, folder, entry))
        except (OSError, EOFError, ValueError, KeyError, zlib.error) as fault:
            raise BundleError(f"{folder / entry['path']}: cannot be read: {fault}") from None
    return facts


def network_facts(name: str, bundle: Path, entry: Mapping[str, Any]) -> ModelFacts:
    """From the network's configuration and the header of its weights, which says their shapes."""
    folder = bundle / entry["path"]
    with open(folder / "model.safetensors", "rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    shapes = [each["shape"] for key, each in header.items() if key != "__metadata__"]
    parameters = sum(math.prod(shape) for shape in shapes)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    words = int(config["vocabulary_size"]) - len(SPECIAL_TOKENS)
    return ModelFacts(name, "neural", words, parameters, parameters * WEIGHT_BYTES + words * WORD_BYTES)


def ngram_facts(name: str, bundle: Path, entry: Mapping[str, Any]) -> ModelFacts:
    """From the counts that an ARPA file begins with; a KenLM binary is mapped into memory as it is."""
    path = bundle / entry["path"]
    counts = arpa_counts(path)
    if counts:
        words, n_grams = max(0, counts[0] - len(SPECIAL_TOKENS)), sum(counts)
        return ModelFacts(name, "ngram", words, n_grams, n_grams * NGRAM_BYTES + words * WORD_BYTES)
    words = len(read_words(bundle / entry["words"])) if "words" in entry else 0
    return ModelFacts(name, "ngram", words, 0, path.stat().st_size + words * WORD_BYTES)


def arpa_counts(path: Path) -> list[int]:
    """How many n-grams of each order an ARPA file, gzip or plain, says it has; none for another file."""
    with open(path, "rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    counts: list[int] = []
    with gzip.open(path, "rb") if zipped else open(path, "rb") as stream:
        if not stream.read(64).lstrip().startswith(b"\\data\\"):
            return counts
        stream.seek(0)
        for _, line in zip(range(HEADER_LINES), stream, strict=False):
            if line.startswith(b"ngram ") and b"=" in line:
                counts.append(int(line.split(b"=")[1]))
    return counts

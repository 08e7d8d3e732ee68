"""Define the fuzz targets that read a bundle's files: manifest, settings, weights and models."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rescorer.bundle import read_manifest, read_normaliser
from rescorer.lm.files.arpa import has_arpa_header
from rescorer.lm.files.arpa_ngrams import read_arpa
from rescorer.lm.files.kenlm_binary import read_kenlm_header
from rescorer.lm.files.network_config import NetworkConfig
from rescorer.lm.files.network_files import NETWORK_FILES, read_config, read_vocabulary
from rescorer.lm.files.parameter_shapes import parameter_shapes
from rescorer.reranking.files import RERANKER_FILES, read_reranker, write_reranker
from rescorer.safe_input.files import Folder, open_regular
from rescorer.score_combination import parse_weights, weights_to_dict
from rescorer.text import NormaliserSettings
from rescorer.types import Weights
from tests.support.hostile_bundles import KENLM_BINARY
from tests.support.tiny_models import ARPA
from tests.support.tiny_rerankers import random_reranker

MANIFEST_TEXT = {
    "schema": 1,
    "name": "tiny",
    "version": 1,
    "models": {
        "ngram": {"kind": "ngram", "path": "ngram/model.bin", "words": "ngram/words.txt"},
        "neural": {"kind": "neural", "path": "neural"},
    },
    "files": dict.fromkeys(
        ("ngram/model.bin", "ngram/words.txt", *(f"neural/{name}" for name in NETWORK_FILES)), "0" * 64
    ),
}
JSON_MEMORY_PER_BYTE = 400
"""Memory of the shortest JSON values, ``{}``, and of the lists that check their depth."""


def read_network(folder: Path) -> Iterator[object]:
    """Read a network's files as far as that needs no torch."""
    files = Folder(folder)
    yield read_vocabulary(files, read_config(files))


def read_ngram(folder: Path) -> Iterator[object]:
    """Read an ARPA file, or the header of a KenLM binary."""
    with open_regular(folder / "u1") as stream:
        yield read_arpa(stream) if has_arpa_header(stream) else read_kenlm_header(stream)


def read_settings(folder: Path) -> Iterator[object]:
    """Read a normaliser and a weights set."""
    yield read_normaliser(folder / "text.json")
    yield parse_weights(Folder(folder).read_json("weights.json"))


def read_one_reranker(folder: Path) -> Iterator[object]:
    yield read_reranker(Folder(folder), "mine")


def read_manifest_file(folder: Path) -> Iterator[object]:
    yield read_manifest(folder)


def build_network_files() -> tuple[bytes, ...]:
    """Contents of ``NETWORK_FILES`` for a tiny network whose parameters are all 0."""
    config = NetworkConfig(5, (4,), embedding_size=2, hidden_size=2)
    header, end = {}, 0
    for name, shape in parameter_shapes(config).items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    weights = len(text).to_bytes(8, "little") + text + bytes(end)
    return json.dumps(config.to_dict()).encode(), weights, b"</s>\n<unk>\na\nb\n<s>\n"


def build_reranker_files() -> tuple[bytes, ...]:
    """Contents of ``RERANKER_FILES`` for a tiny perceptron."""
    base = Weights("base", {"acoustic": 1.0}, {"mixture": 1.0}, mixture={"ngram": 1.0})
    reranker = random_reranker("mine", base, units=2, members=1, features=("total", "distance:2"))
    with tempfile.TemporaryDirectory() as folder:
        write_reranker(reranker, Path(folder))
        return tuple((Path(folder) / name).read_bytes() for name in RERANKER_FILES)


SETTINGS = (
    NormaliserSettings().to_json().encode(),
    json.dumps(
        weights_to_dict(Weights("w", {"am": 1.0}, {"mixture": 2.0}, 0.5, -1.0, {"a": 1.0}, ("f",)))
    ).encode(),
)
Seeds = tuple[Callable[[Path], Iterator[object]], tuple[str, ...], list[tuple[bytes, ...]]]
SEEDS: dict[str, Seeds] = {
    "bundle-manifest": (read_manifest_file, ("manifest.json",), [(json.dumps(MANIFEST_TEXT).encode(),)]),
    "bundle-settings": (read_settings, ("text.json", "weights.json"), [SETTINGS]),
    "bundle-network": (read_network, NETWORK_FILES, [build_network_files()]),
    "bundle-reranker": (read_one_reranker, RERANKER_FILES, [build_reranker_files()]),
    "bundle-ngram": (read_ngram, ("u1",), [(ARPA.encode(),), (KENLM_BINARY,)]),
}
"""Reader, files and valid contents of each target."""

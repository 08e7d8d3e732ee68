"""Read networks of Mikolov's rnnlm toolkit (Mikolov et al. 2010, 2011), of its versions 0.3 and 0.4.

Such a file has a header, the words with their classes, and weights in text or in binary. The network is an
Elman network with sigmoids and a class-factored softmax, which our own networks hold exactly: the columns of
its input weights become embeddings, and a unit matrix projects them.

The toolkit starts texts from a state, which the embedding of ``<s>`` contains here: ones if the network was
trained on independent sentences; else the state in the file, from which it scores the first sentence of a
text. It has no ``<unk>``: unknown words leave the input empty, and its n-best mode gives them the probability
1e-5. Here ``<unk>`` is a class of its own that has about this probability.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from rescorer.errors import BundleError, quote
from rescorer.models.network_files import (
    END,
    MAXIMA,
    START,
    UNKNOWN,
    NetworkConfig,
    Vocabulary,
)
from rescorer.models.neural import NeuralModel
from rescorer.safe_input import open_regular

VERSION = 10
MAX_HEADER_LINES = 60
MAX_LINE_BYTES = 1 << 16
UNKNOWN_PROBABILITY = 1e-5
CALIBRATED_BY = 1000  # largest number of words after which the probability of unknown ones is set


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the toolkit."""

    words: Sequence[str]
    class_of: np.ndarray  # (V,)
    n_classes: int
    state: np.ndarray  # (H,) before the first word of a text
    inputs: np.ndarray  # (H, V + H) from words, then from the state
    outputs: np.ndarray  # (V + C, H) to words, then to classes


def read_rnnlm(path: Path) -> tuple[NeuralModel, Vocabulary]:
    """Read a network of the toolkit.

    Raises:
        BundleError: the file is missing or damaged, or the network has parts that are not supported.
    """
    with open_regular(path) as stream:
        found = _read(stream, str(path))
    n_words, hidden = len(found.words), found.inputs.shape[0]
    names, sizes, rows = _arrange(found)
    vocabulary = Vocabulary((*names, START))
    config = NetworkConfig(
        vocabulary_size=len(vocabulary),
        class_sizes=tuple(sizes),
        kind="elman",
        embedding_size=hidden,
        hidden_size=hidden,
        tied=False,
        activation="sigmoid",
    )
    model = NeuralModel(config).eval().requires_grad_(False)
    recurrent = torch.from_numpy(found.inputs[:, n_words:].copy())
    start = torch.from_numpy(found.inputs[:, 0] + found.inputs[:, n_words:] @ found.state)
    tensors = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    tensors["network.elman.weight_ih_l0"] = torch.eye(hidden)
    tensors["network.elman.weight_hh_l0"] = recurrent
    places = [place for place, row in enumerate(rows) if row is not None]
    numbers = [row for row in rows if row is not None]
    tensors["network.embedding.weight"][places] = torch.from_numpy(found.inputs[:, numbers].T.copy())
    tensors["network.embedding.weight"][-1] = start
    tensors["output.word_weight"][places] = torch.from_numpy(found.outputs[numbers])
    tensors["output.class_layer.weight"][: found.n_classes] = torch.from_numpy(found.outputs[n_words:])
    model.load_state_dict(tensors)
    if UNKNOWN not in found.words:
        model.get_parameter("output.class_layer.bias")[-1] = _find_unknown_score(model)
    return model, vocabulary


def _arrange(found: _File) -> tuple[list[str], list[int], list[int | None]]:
    """Words in the order of our ids, the sizes of their classes, and the word of the file that each is.

    A class without words keeps its share of the probability by a word that no text has.
    """
    names, sizes, rows = list[str](), list[int](), list[int | None]()
    bounds = np.searchsorted(found.class_of, np.arange(found.n_classes + 1)).tolist()
    for number, (first, last) in enumerate(pairwise(bounds)):
        names += found.words[first:last] or [f"<class {number}>"]
        rows += list(range(first, last)) or [None]
        sizes.append(max(1, last - first))
    if UNKNOWN not in found.words:
        names.append(UNKNOWN)
        rows.append(None)
        sizes.append(1)
    return names, sizes, rows


def _find_unknown_score(model: NeuralModel) -> float:
    """The score of the class of unknown words that gives it ``UNKNOWN_PROBABILITY`` on average."""
    n_words = min(model.config.n_words, CALIBRATED_BY)
    words = torch.stack([torch.full((n_words,), model.config.n_words), torch.arange(n_words)], dim=1)
    vectors, _ = model.network(words)
    classes = vectors[:, -1] @ model.get_parameter("output.class_layer.weight")[:-1].t()
    return math.log(UNKNOWN_PROBABILITY) + float(torch.logsumexp(classes, dim=1).mean())


def _read(stream: BinaryIO, place: str) -> _File:
    header = _read_header(stream, place)
    counts = {
        name: _read_count(header, name, most, place)
        for name, most in {
            "version": 100,
            "file format": 100,
            "hidden layer size": MAXIMA["hidden_size"],
            "compression layer size": MAXIMA["hidden_size"],
            "direct connections": 1 << 62,
            "vocabulary size": MAXIMA["vocabulary_size"],
            "class size": MAXIMA["vocabulary_size"],
            "independent sentences mode": 1,
        }.items()
    }
    if counts["version"] != VERSION:
        raise BundleError(f"{place}: version {counts['version']}; expected {VERSION}, of rnnlm 0.3 and 0.4")
    reasons = {
        "direct connections": "maximum-entropy features, which are hashed n-grams",
        "compression layer size": "a compression layer",
    }
    for name, part in reasons.items():
        if counts[name]:
            raise BundleError(
                f"{place}: the network has {part} ({name}: {counts[name]:,}); expected one without"
            )
    n_words, n_classes, hidden = (counts[f"{name} size"] for name in ("vocabulary", "class", "hidden layer"))
    if not 1 <= n_classes <= n_words or not hidden:
        raise BundleError(
            f"{place}: {n_classes:,} classes of {n_words:,} words; expected 1 to as many as words"
        )
    words, class_of = _read_words(stream, n_words, n_classes, place)
    sizes = [hidden, hidden * (n_words + hidden), (n_words + n_classes) * hidden]
    read = _read_text if counts["file format"] == 0 else _read_binary
    state, inputs, outputs = read(stream, sizes, place)
    if not all(np.isfinite(values).all() for values in (state, inputs, outputs)):
        raise BundleError(f"{place}: has weights that are not finite")
    return _File(
        words,
        class_of,
        n_classes,
        np.ones(hidden, dtype=np.float32) if counts["independent sentences mode"] else state,
        inputs.reshape(hidden, -1),
        outputs.reshape(-1, hidden),
    )


def _read_header(stream: BinaryIO, place: str) -> dict[str, str]:
    """The settings before the words."""
    header: dict[str, str] = {}
    for _ in range(MAX_HEADER_LINES):
        line = stream.readline(MAX_LINE_BYTES).decode("utf-8", "replace")
        name, colon, value = line.partition(":")
        if name == "Vocabulary":
            return header
        if not line or (line.strip() and not colon):
            break
        header[name] = value.strip()
    raise BundleError(
        f"{place}: is not a file of the rnnlm toolkit; expected its settings, then 'Vocabulary:'"
    )


def _read_count(header: dict[str, str], name: str, most: int, place: str) -> int:
    value = header.get(name, "")
    if not re.fullmatch("[0-9]{1,19}", value) or int(value) > most:
        raise BundleError(f"{place}: {name} is {quote(value)}; expected a whole number, at most {most:,}")
    return int(value)


def _read_words(stream: BinaryIO, n_words: int, n_classes: int, place: str) -> tuple[list[str], np.ndarray]:
    """The words, of which ``</s>`` is the first, and their classes in ascending order."""
    words, classes = list[str](), list[int]()
    for number in range(n_words):
        fields = stream.readline(MAX_LINE_BYTES).split(b"\t")
        try:
            _, _, word, class_number = fields
            words.append(word.decode("utf-8"))
            classes.append(int(class_number))
        except ValueError:
            raise BundleError(
                f"{place}: word {number:,} cannot be read; expected its number, count, UTF-8 text and class"
            ) from None
    class_of = np.array(classes)
    if words[0] != END or len(set(words)) != n_words or START in words:
        raise BundleError(
            f"{place}: the words are not {END} and others, each of them once and none of them {START}"
        )
    if class_of.min() < 0 or class_of.max() >= n_classes or (np.diff(class_of) < 0).any():
        raise BundleError(f"{place}: the classes of words are not in ascending order below {n_classes:,}")
    return words, class_of


def _read_binary(stream: BinaryIO, sizes: Sequence[int], place: str) -> list[np.ndarray]:
    data = stream.read()
    if len(data) != 4 * sum(sizes):
        raise BundleError(f"{place}: {len(data):,} bytes of weights; expected {4 * sum(sizes):,}")
    values = np.frombuffer(data, dtype="<f4").astype(np.float32)
    return np.split(values, np.cumsum(sizes)[:-1])


def _read_text(stream: BinaryIO, sizes: Sequence[int], place: str) -> list[np.ndarray]:
    sections = re.split(rb"\n[^\n:]*:\n", stream.read())[1:]  # one before each title
    found = []
    for size, section in zip(sizes, sections, strict=False):
        if len(section) < 2 * size - 1:
            break
        try:
            found.append(np.loadtxt(io.BytesIO(section), dtype=np.float32, ndmin=1))
        except ValueError as error:
            raise BundleError(f"{place}: a weight cannot be read: {str(error)[:200]}") from None
    if [len(values) for values in found] != list(sizes):
        raise BundleError(f"{place}: the weights do not fit the sizes in its header; is the file complete?")
    return found

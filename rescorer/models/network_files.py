"""The files of a network: its configuration, vocabulary and parameters, checked before anything is built."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rescorer.errors import BundleError
from rescorer.safe_input import FLOAT_BYTES, Folder, TensorInfo, format_shape, read_tensor_header

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
SPECIAL_TOKENS = frozenset({START, END, UNKNOWN})
"""Entries of a vocabulary that are not words. In a text, each of them counts as an unknown word."""


@dataclass(frozen=True)
class Vocabulary:
    """Words and their ids, including ``<s>``, ``</s>`` and ``<unk>``.

    A network predicts the ids 0 … V-2, which are ordered so that the words of a class are contiguous. ``<s>``
    has the last id, because it is never predicted.

    Raises:
        BundleError: a word occurs twice, a special token is missing, or ``<s>`` is not the last word.
    """

    words: tuple[str, ...]  # words in the order of their ids
    ids: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _word_ids: Mapping[str, int] = field(init=False, repr=False, compare=False)  # without special tokens

    def __post_init__(self) -> None:
        ids = {word: i for i, word in enumerate(self.words)}
        if len(ids) != len(self.words):
            raise BundleError(f"the vocabulary contains {len(self.words) - len(ids)} duplicate words")
        missing = [token for token in sorted(SPECIAL_TOKENS) if token not in ids]
        if missing:
            raise BundleError(f"the vocabulary lacks {', '.join(missing)}")
        if self.words[-1] != START:
            raise BundleError(
                f"expected {START} as the last word of the vocabulary, got {self.words[-1][:100]!r}"
            )
        object.__setattr__(self, "ids", ids)
        word_ids = {word: i for word, i in ids.items() if word not in SPECIAL_TOKENS}
        object.__setattr__(self, "_word_ids", word_ids)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def start(self) -> int:
        """Id of the start of a sentence."""
        return self.ids[START]

    @property
    def end(self) -> int:
        """Id of the end of a sentence."""
        return self.ids[END]

    @property
    def unknown(self) -> int:
        """Id of unknown words."""
        return self.ids[UNKNOWN]

    def is_known(self, word: str) -> bool:
        """Whether the vocabulary has this word; special tokens are not words."""
        return word in self._word_ids

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """Return the id of each word, (n,) int64; unknown words have the id of ``<unk>``."""
        return np.fromiter(map(self._word_ids.get, words, repeat(self.unknown)), dtype=np.int64)

    def save(self, path: Path) -> None:
        """Write one word per line, in the order of ids."""
        path.write_text("".join(f"{word}\n" for word in self.words), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a file written by ``save``.

        Raises:
            BundleError: the file cannot be read, or is not a valid vocabulary.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BundleError(f"{path}: cannot be read as a vocabulary: {error.strerror}") from None
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: bytes, place: str) -> Vocabulary:
        """Parse the content of a file written by ``save``.

        Raises:
            BundleError: the content is not a valid vocabulary. The message begins with ``place``.
        """
        try:
            return cls(tuple(data.decode("utf-8").removesuffix("\n").split("\n")))
        except UnicodeDecodeError as error:
            raise BundleError(
                f"{place}: cannot be read as a vocabulary: not UTF-8 at byte {error.start:,}"
            ) from None
        except BundleError as error:
            raise BundleError(f"{place}: {error}") from None


KINDS = ("lstm", "gru", "elman", "feedforward", "lbl", "transformer")
"""Kinds of network, in this order: long short-term memory, gated recurrent unit, Elman's recurrent network,
Bengio's feed-forward network, log-bilinear model (nonlinear unless its activation is linear), transformer
decoder."""
WINDOWED_KINDS = ("feedforward", "lbl")  # kinds that see a fixed number of preceding words
OUTPUTS = ("classes", "full", "tree")
ACTIVATIONS = ("tanh", "sigmoid", "relu", "linear")
GRU_RESETS = ("after", "before")

MAXIMA = {
    "vocabulary_size": 10_000_000,
    "embedding_size": 16_384,
    "hidden_size": 16_384,
    "layers": 64,
    "window": 64,
    "softmaxes": 64,
    "heads": 256,
    "topics": 4096,
    "pos_tags": 1024,
}
"""Largest allowed sizes. The largest recurrent language models ever published have less than half of each."""
MAX_ATTENTION_WINDOW = 4096  # largest window of a transformer
MAX_TOPIC_DECAY = 0.999
"""Largest value of ``topic_decay``. It bounds the number of words from which topics are inferred."""
SMALLEST_VOCABULARY = 3
MAX_PLACES = 64  # largest number of leaves of one word in a tree
_TYPES = {
    "class_sizes": "a list of integers",
    **dict.fromkeys(("kind", "output", "activation", "gru_reset"), "a string"),
    **dict.fromkeys(("tied", "residual", "carried", "locked_dropout", "backward"), "true or false"),
    **dict.fromkeys(("dropout", "weight_dropout", "embedding_dropout", "topic_decay"), "a number"),
}
"""Types of the fields that are not integers."""
_FITS: dict[str, Callable[[Any], bool]] = {
    "an integer": lambda value: type(value) is int,
    "a list of integers": lambda value: type(value) is tuple and all(type(size) is int for size in value),
    "a string": lambda value: type(value) is str,
    "true or false": lambda value: type(value) is bool,
    "a number": lambda value: type(value) in (int, float),
}


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Configuration of a network, stored as ``config.json``.

    Fields that were added later have defaults that preserve the meaning of older files.
    """

    vocabulary_size: int
    """V, including ``<s>``."""
    class_sizes: tuple[int, ...] = ()
    """Number of words in each output class; they sum to V - 1, since ``<s>`` is never predicted. Empty for
    outputs without classes."""
    kind: str = "lstm"
    embedding_size: int = 200
    hidden_size: int = 200
    layers: int = 1
    tied: bool = True
    """Whether the input embedding and the word weights of the output layer are one matrix."""
    dropout: float = 0.0
    """Dropout probability in training, for embeddings, between layers and before the output layer."""
    output: str = "classes"
    """Output layer: class-factored softmax, full softmax, or a tree of binary decisions."""
    activation: str = "tanh"
    """Activation of an Elman, feed-forward or log-bilinear network; the log-bilinear model of Mnih & Hinton
    (2007) uses ``linear``."""
    window: int = 0
    """Number of words of context. A feed-forward or log-bilinear network of order n reads n - 1 words. Each
    layer of a transformer attends to ``window`` words, including the current one. 0 for recurrent networks.
    """
    residual: bool = False
    """Residual connections: every layer above the first adds its output to its input."""
    carried: bool = False
    """Whether training carried the state across sentences, with ``</s>`` as an ordinary input; scoring then
    starts from ``</s>``. Otherwise each sentence starts from the zero state and ``<s>``."""
    locked_dropout: bool = False
    """Whether one dropout mask applies to all positions of a sequence (Gal & Ghahramani 2016)."""
    weight_dropout: float = 0.0
    """Share of the recurrent weights that training drops, for a whole batch at a time (Merity et al.
    2018)."""
    embedding_dropout: float = 0.0
    """Share of the words whose input embedding training sets to zero, for a whole batch at a time (Gal &
    Ghahramani 2016)."""
    softmaxes: int = 1
    """Number of softmaxes that a class-factored output mixes (Yang et al. 2018)."""
    leaves: int = 0
    """Number of leaves of an output tree in which words may have several; 0 if every word has one."""
    heads: int = 1
    """Number of attention heads of a transformer; they share the hidden size evenly."""
    backward: bool = False
    """Whether the network predicts the words of a sentence from the last to the first. ``<s>`` then stands at
    the end of the sentence, and ``</s>`` before its first word."""

    topics: int = 0
    """Number K of topics of the text before a sentence, which are read with each word; 0 for none."""
    topic_decay: float = 0.0
    """Decay of the words from which topics are inferred: the n-th topical word before a sentence has the
    weight ``topic_decay`` ** n. 0 without topics.
    """
    pos_tags: int = 0
    """Number K of induced parts of speech, whose probabilities are read with each word; 0 for none."""
    gru_reset: str = "after"
    """Whether a GRU's reset gate r applies after the product, r · (W h + b), as in cuDNN, or before it,
    W (r · h), as Cho et al. (2014) have it."""

    def __post_init__(self) -> None:
        for problem in chain(self._find_wrong_values(), self._find_contradictions()):
            raise BundleError(problem)

    def _find_wrong_values(self) -> Iterator[str]:
        """Describe each value that is wrong by itself: it has a wrong type or is out of range."""
        for option in fields(self):
            value, expected = getattr(self, option.name), _TYPES.get(option.name, "an integer")
            if not _FITS[expected](value):
                yield f"{option.name} is {ascii(value)[:100]}; expected {expected}"
        choices = {"kind": KINDS, "output": OUTPUTS, "activation": ACTIVATIONS, "gru_reset": GRU_RESETS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                yield f"unknown {name} {getattr(self, name)[:100]!r}; expected one of {', '.join(known)}"
        maxima = MAXIMA | ({"window": MAX_ATTENTION_WINDOW} if self.kind == "transformer" else {})
        minima = dict.fromkeys(("window", "topics", "pos_tags"), 0) | {"vocabulary_size": SMALLEST_VOCABULARY}
        for name, most in maxima.items():
            least = minima.get(name, 1)
            if not least <= getattr(self, name) <= most:
                yield f"{name} is {getattr(self, name)}; expected at least {least}, at most {most:,}"

    def _find_contradictions(self) -> Iterator[str]:
        """Describe values that do not fit others."""
        if self.output != "classes":
            if self.class_sizes:
                yield f"class_sizes is given, but the output {self.output!r} has no classes"
        elif sum(self.class_sizes) != self.vocabulary_size - 1 or min(self.class_sizes, default=0) < 1:
            yield (
                f"class sizes sum to {sum(self.class_sizes)}; expected {self.vocabulary_size - 1} words in "
                "classes of at least one word"
            )
        yield from self._find_contradictions_of_kind()
        if self.softmaxes > 1 and self.output != "classes":
            yield f"softmaxes is {self.softmaxes} for the output {self.output}; expected 1"
        if self.backward and self.carried:
            yield "carried is true for a backward network; expected false: it reads each sentence by itself"
        most = MAX_PLACES * self.n_words if self.output == "tree" else 0
        if self.leaves and not self.n_words <= self.leaves <= most:
            expected = f"0, or {self.n_words:,} to {most:,}" if most else "0"
            yield f"leaves is {self.leaves} for the output {self.output}; expected {expected}"
        if self.topic_decay and not self.topics:
            yield f"topic_decay is {self.topic_decay} without topics; expected 0"
        if self.topics and not 0 < self.topic_decay <= MAX_TOPIC_DECAY:
            yield f"topic_decay is {self.topic_decay}; expected more than 0, at most {MAX_TOPIC_DECAY}"
        reasons = {"transformer": self.kind == "transformer", "a backward network": self.backward}
        for name in (name for name, holds in reasons.items() if holds and self.topics):
            yield f"topics is {self.topics} for {name}; expected 0"
        reasons = {
            "a network with topics": self.topics > 0,
            **reasons,
            "a network with carried state": self.carried,
        }
        for name in (name for name, holds in reasons.items() if holds and self.pos_tags):
            yield f"pos_tags is {self.pos_tags} for {name}; expected 0"
        for name in ("dropout", "weight_dropout", "embedding_dropout"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}; expected 0 ≤ {name} < 1"

    def _find_contradictions_of_kind(self) -> Iterator[str]:
        has_window = self.kind in (*WINDOWED_KINDS, "transformer")
        if (self.window > 0) != has_window:
            expected = "at least 1" if has_window else "0 for recurrent kinds"
            yield f"window is {self.window} for {self.kind}; expected {expected}"
        if self.kind == "lbl" and self.layers > 1:
            yield f"layers is {self.layers} for lbl; expected 1 (feedforward may have more)"
        if self.gru_reset != "after" and self.kind != "gru":
            yield f"gru_reset is {self.gru_reset!r} for {self.kind}; expected 'after': it has no such gate"
        if self.weight_dropout and has_window:
            yield f"weight_dropout is {self.weight_dropout} for {self.kind}; expected 0"
        if self.embedding_dropout and self.kind in WINDOWED_KINDS:
            yield f"embedding_dropout is {self.embedding_dropout} for {self.kind}; expected 0"
        if self.heads != 1 and self.kind != "transformer":
            yield f"heads is {self.heads} for {self.kind}; expected 1 (a transformer has heads)"
        if self.residual and self.kind == "transformer":
            yield "residual is true for transformer; expected false: all its layers are residual"
        if self.kind == "transformer" and self.hidden_size % (2 * self.heads):
            yield (
                f"hidden_size is {self.hidden_size} with {self.heads} heads; expected a multiple of "
                f"{2 * self.heads}: each head has an even number of values"
            )

    @property
    def n_features(self) -> int:
        """Number of features that are read with each word: topics or parts of speech."""
        return self.topics + self.pos_tags

    @property
    def tied_copy(self) -> str | None:
        """Name of the output parameter that is the input embedding and so is not stored; None if not tied."""
        if not self.tied:
            return None
        return "output.word_vectors" if self.output == "tree" else "output.word_weight"

    @property
    def n_words(self) -> int:
        """Number of words that can be predicted: all except ``<s>``."""
        return self.vocabulary_size - 1

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data that ``from_dict`` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> NetworkConfig:
        """Build a config from plain data.

        Raises:
            BundleError: a setting is unknown, missing or out of range.
        """
        if "labels" in values:
            raise BundleError(
                "the network is a classifier, made by rescorer-train classify, not a language model: it "
                "predicts labels of whole sentences; expected a network made by rescorer-train neural"
            )
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise BundleError(
                f"unknown network settings {str(unknown)[:200]}; was the model made by a newer version?"
            )
        try:
            arguments: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            return cls(**arguments)
        except TypeError as error:
            raise BundleError(f"network settings are incomplete: {error}") from None


Shapes = dict[str, tuple[int, ...]]
GATES = {"lstm": 4, "gru": 3, "elman": 1}  # rows of a recurrent layer's matrices, in units of the hidden size
FEEDFORWARD_STEP = 16  # the units of a transformer's feed-forward networks are a multiple of this


def parameter_shapes(config: NetworkConfig) -> Shapes:
    """Return the shape of every tensor in the weights file of this network, by name."""
    hidden, embedding = config.hidden_size, config.embedding_size
    shapes: Shapes = {"network.embedding.weight": (config.vocabulary_size, embedding)}
    if config.kind == "transformer":
        shapes |= _transformer_shapes(config)
    else:
        shapes |= _windowed_shapes(config) if config.kind in WINDOWED_KINDS else _recurrent_shapes(config)
    if hidden != embedding:
        shapes["network.projection.weight"] = (embedding, hidden)
    if config.n_features:
        shapes["topic_output.weight"] = (embedding, config.n_features)
    if config.topics:
        shapes["topic_words"] = (config.vocabulary_size, config.topics)
    if config.pos_tags:
        tags = config.pos_tags
        shapes |= {"tags.start": (tags,), "tags.transitions": (tags, tags)}
        shapes["tags.words"] = (config.vocabulary_size, tags)
    return shapes | _output_shapes(config)


def _recurrent_shapes(config: NetworkConfig) -> Shapes:
    rows = GATES[config.kind] * config.hidden_size
    shapes: Shapes = {}
    for layer in range(config.layers):
        prefix = f"network.{config.kind}"
        columns = config.hidden_size if layer else config.embedding_size + config.n_features
        shapes[f"{prefix}.weight_ih_l{layer}"] = (rows, columns)
        shapes[f"{prefix}.weight_hh_l{layer}"] = (rows, config.hidden_size)
        shapes[f"{prefix}.bias_ih_l{layer}"] = shapes[f"{prefix}.bias_hh_l{layer}"] = (rows,)
    return shapes


def _windowed_shapes(config: NetworkConfig) -> Shapes:
    hidden = config.hidden_size
    shapes: Shapes = {
        "network.positions": (config.window, hidden, config.embedding_size),
        "network.bias": (hidden,),
    }
    for layer in range(config.layers - 1):
        shapes[f"network.deeper.{layer}.weight"] = (hidden, hidden)
        shapes[f"network.deeper.{layer}.bias"] = (hidden,)
    if config.n_features:
        shapes["network.topics.weight"] = (hidden, config.n_features)
    return shapes


def feedforward_size(hidden: int) -> int:
    """Number of hidden units in a transformer's feed-forward networks: 8/3 of the hidden size, rounded up.

    Such a network has three matrices. With 8/3, they are as large as the usual two with four times the
    hidden size (Shazeer 2020).
    """
    return -(-8 * hidden // (3 * FEEDFORWARD_STEP)) * FEEDFORWARD_STEP


def _transformer_shapes(config: NetworkConfig) -> Shapes:
    hidden, units = config.hidden_size, feedforward_size(config.hidden_size)
    shapes: Shapes = {"network.norm": (hidden,)}
    for layer in range(config.layers):
        prefix = f"network.layers.{layer}"
        shapes |= {
            f"{prefix}.attention_norm": (hidden,),
            f"{prefix}.queries_keys_values": (3 * hidden, hidden),
            f"{prefix}.attention_output": (hidden, hidden),
            f"{prefix}.feedforward_norm": (hidden,),
            f"{prefix}.gate_and_input": (2 * units, hidden),
            f"{prefix}.feedforward_output": (hidden, units),
        }
    if hidden != config.embedding_size:
        shapes["network.input_projection.weight"] = (hidden, config.embedding_size)
    return shapes


def _output_shapes(config: NetworkConfig) -> Shapes:
    n_words, size = config.n_words, config.embedding_size
    if config.output == "tree":
        inner = (config.leaves or n_words) - 1
        tree: Shapes = {
            "output.word_weight": (inner, size),
            "output.word_bias": (inner,),
            "output.tree": (inner, 2),
        }
        return tree | ({"output.places": (n_words,)} if config.leaves else {})
    shapes: Shapes = {"output.word_bias": (n_words,)}
    if not config.tied:
        shapes["output.word_weight"] = (n_words, size)
    if config.output == "classes":
        n_classes = len(config.class_sizes)
        shapes |= {"output.class_layer.weight": (n_classes, size), "output.class_layer.bias": (n_classes,)}
    if config.softmaxes > 1:
        shapes |= {
            "output.share_layer.weight": (config.softmaxes, size),
            "output.share_layer.bias": (config.softmaxes,),
            "output.component_layer.weight": (config.softmaxes * size, size),
        }
    return shapes


CONFIG_FILE, WEIGHTS_FILE, VOCABULARY_FILE = "config.json", "model.safetensors", "vocabulary.txt"
NETWORK_FILES = (CONFIG_FILE, WEIGHTS_FILE, VOCABULARY_FILE)
LICENCE_FILE = "LICENSE"
"""File with the text of the licence of an imported model, if its source has one."""
TOKENIZER_FILE, SENTENCEPIECE_FILE = TOKENIZER_FILES = "tokenizer.json", "tokenizer.model"
SCALE_SUFFIX = ".int8_scale"  # suffix of the name of an int8 matrix's scales, (rows,) float32

MAX_WORD_BYTES = 1024  # largest average length of the words of a vocabulary
TREES = ("output.tree", "output.places")  # the only tensors of integers that are not quantised weights


def read_config(folder: Folder) -> NetworkConfig:
    """Read the configuration of a network, and check that the weights file has the tensors it asks for.

    Raises:
        BundleError: a file cannot be read, or the two files do not fit together.
    """
    place = folder.path / CONFIG_FILE
    try:
        config = NetworkConfig.from_dict(folder.read_json(CONFIG_FILE))
    except BundleError as error:
        message = str(error)
        raise BundleError(message if message.startswith(str(place)) else f"{place}: {message}") from None
    with folder.open(WEIGHTS_FILE) as stream:
        check_tensors(stream, parameter_shapes(config))
    return config


def read_vocabulary(folder: Folder, config: NetworkConfig) -> Vocabulary:
    """Read the vocabulary of a network; raises BundleError if it does not have the configured size."""
    path = folder.path / VOCABULARY_FILE
    data = folder.read_bytes(VOCABULARY_FILE, config.vocabulary_size * MAX_WORD_BYTES)
    n_words = data.count(b"\n") + (not data.endswith(b"\n"))
    if n_words != config.vocabulary_size:
        raise BundleError(
            f"{path}: the vocabulary has {n_words:,} words, the network {config.vocabulary_size:,}"
        )
    return Vocabulary.parse(data, str(path))


def check_tensors(stream: BinaryIO, expected: Shapes) -> None:
    """Compare the header of a weights file with the shapes of the tensors that a network needs.

    Raises:
        BundleError: a tensor is missing, not expected, or of another type or shape.
    """
    tensors = read_tensor_header(stream)
    n_bytes = sum(math.prod(shape) for shape in expected.values())
    largest = os.fstat(stream.fileno()).st_size
    if n_bytes > largest:  # before names are compared: the smallest type has one byte
        raise BundleError(
            f"{stream.name}: the weights do not fit the network: {CONFIG_FILE} describes {n_bytes:,} "
            f"parameters, but the file has only {largest:,} bytes"
        )
    for name, shape in expected.items():
        place = f"{stream.name}: the weights do not fit the network: {name}"
        if name not in tensors:
            raise BundleError(f"{place} is missing")
        _check_tensor(place, tensors[name], tensors.get(name + SCALE_SUFFIX), shape, is_tree=name in TREES)
    unknown = {name for name in tensors if name.removesuffix(SCALE_SUFFIX) not in expected}
    if unknown:
        raise BundleError(
            f"{stream.name}: the weights do not fit the network: it has no {min(unknown)[:100]!a}"
        )


def _check_tensor(
    place: str, found: TensorInfo, scale: TensorInfo | None, shape: tuple[int, ...], *, is_tree: bool
) -> None:
    if found.shape != shape:
        raise BundleError(
            f"{place} has the shape {format_shape(found.shape)}; {CONFIG_FILE} needs {format_shape(shape)}"
        )
    allowed = ("I32", "I64") if is_tree else tuple(FLOAT_BYTES) if scale is None else ("I8",)
    if found.dtype not in allowed:
        raise BundleError(f"{place} has the type {found.dtype}; expected {' or '.join(allowed)}")
    if scale is not None and (scale.shape != shape[:1] or scale.dtype not in FLOAT_BYTES):
        raise BundleError(
            f"{place}: its scales have the shape {format_shape(scale.shape)} and the type {scale.dtype}; "
            f"expected one F32 for each of {shape[0]:,} rows"
        )

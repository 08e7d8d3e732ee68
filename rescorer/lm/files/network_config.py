"""Define and validate ``NetworkConfig``, which holds everything needed to rebuild a neural model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from rescorer.errors import BundleError

KINDS = ("lstm", "gru", "elman", "feedforward", "lbl", "transformer")
"""Long short-term memory, gated recurrent unit, simple recurrent, Bengio's feed-forward, log-bilinear,
transformer decoder."""
WINDOWED_KINDS = ("feedforward", "lbl")
"""Kinds that see a fixed number of preceding words."""
OUTPUTS = ("classes", "full", "tree")
ACTIVATIONS = ("tanh", "sigmoid", "relu", "linear")

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
"""Largest dimensions. The largest recurrent language models that were ever published stay within a half."""
MAX_ATTENTION_WINDOW = 4096
"""Largest window of a transformer."""
MAX_TOPIC_DECAY = 0.999
"""Largest decay of the words from which topics are inferred, which bounds their number."""
SMALLEST_VOCABULARY = 3
MAX_PLACES = 64
"""Largest number of leaves of one word in a tree."""
_TYPES = {
    "class_sizes": "a list of integers",
    **dict.fromkeys(("kind", "output", "activation"), "a string"),
    **dict.fromkeys(("tied", "residual", "carried", "locked_dropout", "backward"), "true or false"),
    **dict.fromkeys(("dropout", "weight_dropout", "embedding_dropout", "topic_decay"), "a number"),
}
"""Types of the fields other than integers."""
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
    """Number of words in each output class. They sum to V - 1, since ``<s>`` is never predicted. Empty for
    outputs without classes."""
    kind: str = "lstm"
    embedding_size: int = 200
    hidden_size: int = 200
    layers: int = 1
    tied: bool = True
    """Use one matrix for input embedding and output word weights."""
    dropout: float = 0.0
    """Dropout probability in training, for embeddings, between layers and before the output layer."""
    output: str = "classes"
    """Output layer: class-factored softmax, full softmax, or a tree of binary decisions."""
    activation: str = "tanh"
    """Activation of a simple recurrent, feed-forward or log-bilinear network; the log-bilinear model of Mnih
    & Hinton (2007) uses ``linear``."""
    window: int = 0
    """Number of preceding words that a feed-forward or log-bilinear network uses as context (n - 1 for a
    network of order n), or of words to which each layer of a transformer attends, including the current one;
    0 for recurrent networks."""
    residual: bool = False
    """Residual connections: every layer above the first adds its output to its input."""
    carried: bool = False
    """True if training carried the state across sentence ends, with ``</s>`` as an ordinary input; scoring
    then starts from ``</s>``. Otherwise a sentence starts from the zero state and ``<s>``."""
    locked_dropout: bool = False
    """Use one dropout mask for all positions of a sequence (Gal & Ghahramani 2016)."""
    weight_dropout: float = 0.0
    """Share of the recurrent weights that training sets to zero, for a whole batch at a time (Merity et al.
    2018)."""
    embedding_dropout: float = 0.0
    """Share of the words whose input embedding training sets to zero, for a whole batch at a time (Gal &
    Ghahramani 2016)."""
    softmaxes: int = 1
    """Number of softmaxes that a class-factored output mixes (Yang et al. 2018)."""
    leaves: int = 0
    """Number of leaves of a tree in which words may have several; 0 if every word has one."""
    heads: int = 1
    """Number of attention heads of a transformer; they share the hidden size evenly."""
    backward: bool = False
    """Whether the network predicts the words of a sentence from the last to the first: ``<s>`` then stands at
    the end of the sentence, and ``</s>`` before its first word."""

    topics: int = 0
    """Number K of topics of the text before a sentence, which are read beside the words; 0 for none."""
    topic_decay: float = 0.0
    """The n-th topical word before a sentence counts ``topic_decay`` ** n; 0 without topics."""
    pos_tags: int = 0
    """Number K of induced parts of speech, whose probabilities after the words so far are read beside the
    words; 0 for none."""

    def __post_init__(self) -> None:
        self._check_types()
        for name, known in (("kind", KINDS), ("output", OUTPUTS), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in known:
                raise BundleError(
                    f"unknown {name} {getattr(self, name)[:100]!r}; expected one of {', '.join(known)}"
                )
        maxima = MAXIMA | ({"window": MAX_ATTENTION_WINDOW} if self.kind == "transformer" else {})
        minima = dict.fromkeys(("window", "topics", "pos_tags"), 0) | {"vocabulary_size": SMALLEST_VOCABULARY}
        for name, most in maxima.items():
            least = minima.get(name, 1)
            if not least <= getattr(self, name) <= most:
                raise BundleError(
                    f"{name} is {getattr(self, name)}; expected at least {least}, at most {most:,}"
                )
        self._check_classes()
        self._check_kind()
        if self.softmaxes > 1 and self.output != "classes":
            raise BundleError(f"softmaxes is {self.softmaxes} for the output {self.output}; expected 1")
        if self.backward and self.carried:
            raise BundleError(
                "carried is true for a backward network; expected false: it reads each sentence by itself"
            )
        self._check_leaves()
        self._check_topics()
        self._check_pos_tags()
        for name in ("dropout", "weight_dropout", "embedding_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise BundleError(f"{name} is {getattr(self, name)}; expected 0 ≤ {name} < 1")

    def _check_kind(self) -> None:
        """Check the fields that only some kinds have."""
        has_window = self.kind in (*WINDOWED_KINDS, "transformer")
        if (self.window > 0) != has_window:
            expected = "at least 1" if has_window else "0 for recurrent kinds"
            raise BundleError(f"window is {self.window} for {self.kind}; expected {expected}")
        if self.kind == "lbl" and self.layers > 1:
            raise BundleError(f"layers is {self.layers} for lbl; expected 1 (feedforward may have more)")
        if self.weight_dropout and has_window:
            raise BundleError(f"weight_dropout is {self.weight_dropout} for {self.kind}; expected 0")
        if self.embedding_dropout and self.kind in WINDOWED_KINDS:
            raise BundleError(f"embedding_dropout is {self.embedding_dropout} for {self.kind}; expected 0")
        if self.kind != "transformer":
            if self.heads != 1:
                raise BundleError(
                    f"heads is {self.heads} for {self.kind}; expected 1 (a transformer has heads)"
                )
            return
        if self.residual:
            raise BundleError("residual is true for transformer; expected false: all its layers are residual")
        if self.hidden_size % (2 * self.heads):
            raise BundleError(
                f"hidden_size is {self.hidden_size} with {self.heads} heads; expected a multiple of "
                f"{2 * self.heads}: each head has an even number of values"
            )

    def _check_leaves(self) -> None:
        most = MAX_PLACES * self.n_words if self.output == "tree" else 0
        if self.leaves and not self.n_words <= self.leaves <= most:
            expected = f"0, or {self.n_words:,} to {most:,}" if most else "0"
            raise BundleError(f"leaves is {self.leaves} for the output {self.output}; expected {expected}")

    def _check_topics(self) -> None:
        if not self.topics:
            if self.topic_decay:
                raise BundleError(f"topic_decay is {self.topic_decay} without topics; expected 0")
            return
        if not 0 < self.topic_decay <= MAX_TOPIC_DECAY:
            raise BundleError(
                f"topic_decay is {self.topic_decay}; expected more than 0, at most {MAX_TOPIC_DECAY}"
            )
        if self.kind == "transformer":
            raise BundleError(f"topics is {self.topics} for transformer; expected 0")
        if self.backward:
            raise BundleError(f"topics is {self.topics} for a backward network; expected 0")

    def _check_pos_tags(self) -> None:
        reasons = {
            "a network with topics": self.topics > 0,
            "transformer": self.kind == "transformer",
            "a backward network": self.backward,
            "a network with carried state": self.carried,
        }
        if self.pos_tags and (found := next((name for name, holds in reasons.items() if holds), None)):
            raise BundleError(f"pos_tags is {self.pos_tags} for {found}; expected 0")

    def _check_types(self) -> None:
        for field in fields(self):
            value, expected = getattr(self, field.name), _TYPES.get(field.name, "an integer")
            if not _FITS[expected](value):
                raise BundleError(f"{field.name} is {ascii(value)[:100]}; expected {expected}")

    def _check_classes(self) -> None:
        if self.output != "classes":
            if self.class_sizes:
                raise BundleError(f"class_sizes is given, but the output {self.output!r} has no classes")
        elif sum(self.class_sizes) != self.vocabulary_size - 1 or min(self.class_sizes, default=0) < 1:
            raise BundleError(
                f"class sizes sum to {sum(self.class_sizes)}; expected {self.vocabulary_size - 1} words in "
                f"classes of at least one word"
            )

    @property
    def n_features(self) -> int:
        """Number of features that are read beside each word."""
        return self.topics + self.pos_tags

    @property
    def tied_copy(self) -> str | None:
        """Name of the parameter that is the embedding itself, so that it is not stored; None if not tied."""
        if not self.tied:
            return None
        return "output.word_vectors" if self.output == "tree" else "output.word_weight"

    @property
    def n_words(self) -> int:
        """Number of words that can be predicted: all but ``<s>``."""
        return self.vocabulary_size - 1

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data that ``from_dict`` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> NetworkConfig:
        """Build a config from plain data.

        Raises:
            BundleError: If a setting is unknown, missing or out of range.
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

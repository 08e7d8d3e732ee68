"""Owns ``NetworkConfig``: everything needed to build a neural model again, checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from rescorer.errors import BundleError

KINDS = ("lstm", "gru", "elman", "feedforward", "lbl")
"""Long short-term memory, gated recurrent unit, simple recurrent, Bengio's feed-forward, log-bilinear."""
WINDOWED = ("feedforward", "lbl")
"""Kinds that see a fixed number of words and nothing before them."""
OUTPUTS = ("classes", "full", "tree")
ACTIVATIONS = ("tanh", "sigmoid", "relu", "linear")


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Stored as ``config.json``; settings that came later have defaults under which old models stay what they
    were."""

    vocabulary_size: int
    """V, with ``<s>``."""
    class_sizes: tuple[int, ...] = ()
    """Words in each output class; they sum to V - 1, for ``<s>`` is never predicted. Empty: no classes."""
    kind: str = "lstm"
    embedding_size: int = 200
    hidden_size: int = 200
    layers: int = 1
    tied: bool = True
    """Input embedding and output word weights are one matrix."""
    dropout: float = 0.0
    """Training only: on embeddings, between layers and on the vectors that reach the output layer."""
    output: str = "classes"
    """The output layer: class-factored softmax, full softmax or tree of binary decisions."""
    activation: str = "tanh"
    """Of a simple recurrent or feed-forward network; ``linear`` is the log-bilinear model itself, others make
    it non-linear."""
    window: int = 0
    """Words that a feed-forward or log-bilinear network sees: n - 1 of its n-gram; 0 for recurrent ones."""
    residual: bool = False
    """Every layer above the first adds what it makes to what it was given."""
    carried: bool = False
    """In training the state went on over sentence ends, ``</s>`` being an input like any word; scoring then
    starts from ``</s>``. Otherwise a sentence starts from the zero state and ``<s>``."""
    locked_dropout: bool = False
    """One dropout mask for all positions of a sequence (Gal & Ghahramani 2016)."""
    weight_dropout: float = 0.0
    """Training only: share of the recurrent weights dropped for a whole batch (Merity et al. 2018)."""

    def __post_init__(self) -> None:
        for name, known in (("kind", KINDS), ("output", OUTPUTS), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in known:
                raise BundleError(f"unknown {name} {getattr(self, name)!r}; known are {', '.join(known)}")
        self._check_classes()
        for name in ("embedding_size", "hidden_size", "layers"):
            if getattr(self, name) < 1:
                raise BundleError(f"{name} is {getattr(self, name)}; expected at least 1")
        if (self.window > 0) != (self.kind in WINDOWED):
            raise BundleError(f"window is {self.window} for {self.kind}; expected 0 for recurrent kinds only")
        if self.kind == "lbl" and self.layers > 1:
            raise BundleError(f"layers is {self.layers} for lbl; expected 1 (feedforward may have more)")
        if self.weight_dropout and self.kind in WINDOWED:
            raise BundleError(f"weight_dropout is {self.weight_dropout} for {self.kind}; expected 0")
        for name in ("dropout", "weight_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise BundleError(f"{name} is {getattr(self, name)}; expected 0 ≤ {name} < 1")

    def _check_classes(self) -> None:
        if self.output != "classes":
            if self.class_sizes:
                raise BundleError(f"class sizes are given for output {self.output!r}, which has no classes")
        elif sum(self.class_sizes) != self.vocabulary_size - 1 or min(self.class_sizes, default=0) < 1:
            raise BundleError(
                f"class sizes sum to {sum(self.class_sizes)}; expected {self.vocabulary_size - 1} words in "
                f"classes of at least one"
            )

    @property
    def n_words(self) -> int:
        """Words that can be predicted: all but ``<s>``."""
        return self.vocabulary_size - 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> NetworkConfig:
        """Raises BundleError where a setting is unknown or missing."""
        unknown = sorted(set(values) - {each.name for each in fields(cls)})
        if unknown:
            raise BundleError(f"unknown network settings {unknown}; was the model made by a newer version?")
        try:
            arguments: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            return cls(**arguments)
        except TypeError as fault:
            raise BundleError(f"network settings are incomplete: {fault}") from None

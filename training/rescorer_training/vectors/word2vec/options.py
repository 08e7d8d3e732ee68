"""Options of CBOW and skip-gram, validated on construction."""

from __future__ import annotations

from dataclasses import dataclass

from rescorer.errors import ConfigError
from rescorer_training.option_fields import option

MODELS = ("skip-gram", "cbow")
OUTPUT_LAYERS = ("negative", "hierarchical")
DEFAULT_LEARNING_RATES = {"skip-gram": 0.025, "cbow": 0.05}
"""The defaults of the original program."""
MAX_WINDOW = 50
MAX_DIMENSIONS = 4096
MAX_NEGATIVES = 1000


@dataclass(frozen=True, slots=True)
class Word2VecOptions:
    """Training options, saved with the run. When the run is resumed, they are compared with the new ones.

    Raises:
        ConfigError: a value is out of range or unknown.
    """

    model: str = option(
        "skip-gram",
        "Predict a word from each word near it (skip-gram), or from the mean of the words near it (cbow).",
        metavar="skip-gram|cbow",
    )
    output_layer: str = option(
        "negative",
        "Tell words from random noise words (negative), or decide at every node of a Huffman tree "
        "(hierarchical).",
        metavar="negative|hierarchical",
    )
    dimensions: int = option(100, "Number of values per vector.")
    window: int = option(
        5, "Largest distance of a context word. Each word draws its own distance, from 1 to this one."
    )
    negatives: int = option(5, "With negative sampling: noise words per predicted word.")
    noise_exponent: float = option(
        0.75, "With negative sampling: noise words are drawn in proportion to their count to this power."
    )
    subsample: float = option(
        1e-3,
        "Relative frequency above which occurrences of a word are skipped at random; 0 skips none.",
    )
    min_count: int = option(5, "Leave out words that occur less often.")
    epochs: int = option(5, "Number of passes over the text.")
    learning_rate: float | None = option(
        None, "Learning rate at the start. Default: 0.025 for skip-gram, 0.05 for cbow."
    )
    final_learning_rate: float = option(
        1e-4, "Learning rate at the end; it decreases linearly with the words read."
    )
    block_words: int = option(
        1024,
        "Number of words whose gradients are computed together. Smaller blocks are slower and nearer to the "
        "original algorithm, which updates after each pair of words.",
    )
    seed: int = option(1, "Random seed.")

    def __post_init__(self) -> None:
        _check(self.model in MODELS, f"model {self.model!r}: expected skip-gram or cbow")
        _check(
            self.output_layer in OUTPUT_LAYERS,
            f"output layer {self.output_layer!r}: expected negative or hierarchical",
        )
        for name in ("min_count", "epochs", "block_words"):
            value = getattr(self, name)
            _check(value >= 1, f"{name.replace('_', ' ')} {value}: expected 1 or more")
        largest = {"dimensions": MAX_DIMENSIONS, "window": MAX_WINDOW, "negatives": MAX_NEGATIVES}
        for name, most in largest.items():
            value = getattr(self, name)
            _check(1 <= value <= most, f"{name} {value}: expected 1 to {most}")
        _check(self.subsample >= 0, f"subsample {self.subsample}: expected 0 or more")
        _check(0 <= self.noise_exponent <= 1, f"noise exponent {self.noise_exponent}: expected 0 to 1")
        _check(
            0 < self.final_learning_rate <= self.initial_learning_rate < float("inf"),
            f"learning rates {self.initial_learning_rate} to {self.final_learning_rate}: expected numbers "
            "above 0 that do not increase",
        )
        _check(self.seed >= 0, f"seed {self.seed}: expected 0 or more")

    @property
    def initial_learning_rate(self) -> float:
        """Learning rate at the start: the given one, or the default of the model."""
        return DEFAULT_LEARNING_RATES[self.model] if self.learning_rate is None else self.learning_rate


def _check(valid: bool, message: str) -> None:
    if not valid:
        raise ConfigError(message)

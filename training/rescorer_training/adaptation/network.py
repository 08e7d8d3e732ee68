"""Finish a network of a bundle on the text of a domain: a few more epochs from the weights that it has."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rescorer.lm.checkpoint import load_model
from rescorer.lm.files.network_files import NETWORK_FILES
from rescorer.text import Normaliser
from rescorer_training.adaptation.text import DomainText
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.postprocess import find_precision, quantise
from rescorer_training.neural.prepare import RunInputs
from rescorer_training.neural.train import prepare_run, train
from rescorer_training.neural.validation import perplexity

LONGEST_SENTENCE = 200
"""Maximum number of words per training sentence; longer sentences are truncated."""


@dataclass(frozen=True)
class AdaptedNetwork:
    """A network that was trained further on the text of a domain."""

    folder: Path
    """The model to put into the bundle: that of the bundle if training did not improve it."""
    perplexity_before: float
    """On the held-out half that decides when training stops; unknown words count as ``<unk>``."""
    perplexity_after: float
    epochs: int
    seconds: float
    unknown_words: int
    """Number of distinct words of the training text that the network does not know."""
    unknown_uses: int
    """Number of times that these words occur."""

    @property
    def is_improved(self) -> bool:
        return self.perplexity_after < self.perplexity_before

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "improved": self.is_improved,
            "fitting_perplexity": [round(self.perplexity_before, 3), round(self.perplexity_after, 3)],
            "epochs": self.epochs,
            "seconds": round(self.seconds, 1),
            "unknown_words": self.unknown_words,
            "unknown_uses": self.unknown_uses,
        }


def adapt_network(
    source: Path,
    text: DomainText,
    normaliser: Normaliser,
    options: TrainingOptions,
    folder: Path,
    *,
    device: str = "cpu",
    threads: int | None = None,
) -> AdaptedNetwork:
    """Continue the training of a network on the domain's text, with early stopping on held-out text.

    The vocabulary stays; words outside it are trained as ``<unk>``. The result is stored in the precision of
    the source.

    Args:
        source: folder of the model in the bundle.
        folder: folder for the training run.

    Raises:
        FormatError: the network knows none of the words.
        ConfigError: the device is not available.
    """
    start = folder / "start" / "best"
    start.mkdir(parents=True)
    for name in NETWORK_FILES:
        shutil.copyfile(source / name, start / name)
    run = folder / "run"
    inputs = RunInputs([text.train], text.fitting, run, normaliser, LONGEST_SENTENCE, start.parent)
    prepared = prepare_run(inputs, None, 0)
    model, vocabulary = load_model(start)
    before = perplexity(model, prepared.validation)
    network = NetworkOptions(dropout=model.config.dropout)
    facts = train(inputs, prepared, network, options, RunOptions(threads, device))
    after = facts["validation_perplexity"]
    adapted = source
    if after < before:
        adapted = folder / "adapted"
        quantise(run / "best", adapted, find_precision(source))
    unknown = text.count_unknown(frozenset(vocabulary.words))
    return AdaptedNetwork(adapted, before, after, facts["epochs"], facts["seconds"], *unknown)

"""Open the models that a command is given, and score text files with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.errors import FormatError
from rescorer.trie import Words
from rescorer_training.cli.options import parse_shares
from rescorer_training.data.corpus import read_sentences
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.evaluation.model_set import ModelSet, load_models, resolve_model_folder
from rescorer_training.evaluation.token_scores import TokenScores, score_tokens


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Language models to open."""

    bundle: Annotated[
        Path | None, typer.Option(help="Bundle folder: NAME/VERSION, or NAME for its newest version.")
    ] = None
    ngram: Annotated[
        list[Path] | None,
        typer.Option(help="ARPA file, n-gram table or KenLM binary; repeat for more models."),
    ] = None
    neural: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of a trained network or of its run; repeat for more models."),
    ] = None

    @property
    def shares(self) -> Mapping[str, float]:
        """The given interpolation weights λ, by model name."""
        return {}

    def open(self, normaliser: str | None, device: str) -> ModelSet:
        """Load the models.

        Args:
            normaliser: value of ``--normaliser``; None for the one recorded with the models.
        """
        ngrams, neurals = self.ngram or [], self.neural or []
        given = [*ngrams, *map(resolve_model_folder, neurals)]
        chosen = choose_normaliser(normaliser, given) if normaliser else None
        return load_models(self.bundle, ngrams, neurals, normaliser=chosen, shares=self.shares, device=device)


@dataclass(frozen=True, slots=True)
class MixtureOptions(ModelOptions):
    """Language models to open, and their interpolation weights λ."""

    share: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=WEIGHT",
            help="Interpolation weight λ of a model in the mixture, such as ngram=0.4; repeat for each "
            "model. Default: the bundle's weights, or equal ones.",
        ),
    ] = None

    @property
    def shares(self) -> Mapping[str, float]:
        return parse_shares(self.share)


def score_file(models: ModelSet, path: Path) -> TokenScores:
    """Score a text file with every model.

    Networks that carry their state across sentence boundaries read the sentences in text order."""
    return score_tokens(models.models, read_words(models, path), f"scoring {path.name}", in_order=True)


def read_words(models: ModelSet, path: Path) -> list[Words]:
    """Read the sentences of a text file with the normaliser of the models; raises FormatError without any."""
    sentences = list(read_sentences([path], models.normaliser))
    if not sentences:
        raise FormatError("no words in the text to score", file=str(path))
    return sentences

"""Open the models that a command is given, and score text files with them."""

from __future__ import annotations

from pathlib import Path

from rescorer.errors import FormatError
from rescorer.trie import Words
from rescorer_training.cli.options import parse_shares
from rescorer_training.data.corpus import read_sentences
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.evaluation.model_set import ModelSet, load_models, resolve_model_folder
from rescorer_training.evaluation.token_scores import TokenScores, score_tokens


def open_models(
    bundle: Path | None,
    ngrams: list[Path] | None,
    neurals: list[Path] | None,
    *,
    normaliser: str | None,
    device: str,
    share: list[str] | None = None,
) -> ModelSet:
    """Load the models of the options ``--bundle``, ``--ngram`` and ``--neural``.

    Args:
        normaliser: value of ``--normaliser``; None for the one recorded with the models.
        share: values of ``--share``.
    """
    given = [*(ngrams or []), *map(resolve_model_folder, neurals or [])]
    chosen = choose_normaliser(normaliser, given) if normaliser else None
    return load_models(
        bundle, ngrams or (), neurals or (), normaliser=chosen, shares=parse_shares(share), device=device
    )


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

"""Adapt a bundle's n-gram model: interpolate it with one of the domain's text, or put that one beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rescorer.bundle import Bundle
from rescorer.errors import BundleError, FormatError
from rescorer.lm.ngrams import NgramModel
from rescorer.lm.ngrams.reading import contains_words
from rescorer.lm.vocabulary_alignment import align_vocabularies
from rescorer.model_loading import load_ngram
from rescorer_training.adaptation.text import DomainText
from rescorer_training.data.corpus import read_sentences
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.model_set import choose_name, open_ngram
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.ngram.interpolate import interpolate_files

SOURCE, DOMAIN = "source", "domain"
"""Names of the bundle's n-gram and of the domain's; the latter is also a name in the mixture."""
DEFAULT_ORDER, MAX_ORDER = 4, 6
MIN_SOURCE_SHARE = 0.01
"""Least interpolation weight of the bundle's n-gram, which knows words that the domain's text lacks.

It costs at most 0.01 nats per word of a text that is just like the domain's."""


@dataclass(frozen=True)
class AdaptedNgram:
    """An n-gram model to put into the adapted bundle."""

    model: str
    """Its name in the bundle: that of the model that it replaces, or a new one."""
    file: Path
    order: int
    shares: Mapping[str, float] = field(default_factory=dict)
    """Interpolation weights of the bundle's n-gram and of the domain's; empty if not interpolated."""
    reason: str = ""
    """Why the domain's n-gram stands beside that of the bundle."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        facts: dict[str, Any] = {"model": self.model, "order": self.order}
        if self.shares:
            return facts | {"interpolation": {name: round(share, 4) for name, share in self.shares.items()}}
        return facts | {"beside_because": self.reason}


def adapt_ngram(bundle: Bundle, text: DomainText, folder: Path) -> AdaptedNgram:
    """Estimate a Kneser-Ney model of the domain's text, and interpolate the bundle's n-gram with it.

    The interpolation weights are fitted by EM on held-out text. A KenLM binary cannot be read back, so the
    domain's model then stands beside it, as a further model of the mixture.

    Args:
        folder: folder for the files.

    Raises:
        ConfigError: the text has special words, such as ``<unk>``.
    """
    name = next((name for name, kind in bundle.model_kinds.items() if kind == "ngram"), None)
    entry = bundle.manifest["models"].get(name, {})
    source = None if name is None else load_ngram(bundle.files, name, entry)
    order = min(source.order, MAX_ORDER) if source else DEFAULT_ORDER
    file = folder / "domain.arpa.gz"
    train_ngram([text.train], bundle.normaliser, file, NGramOptions(order))
    beside = choose_name(DOMAIN, bundle.model_kinds)
    if name is None or source is None:
        return AdaptedNgram(beside, file, order, reason="the bundle has no n-gram")
    path = bundle.files.path / entry["path"]
    if not contains_words(path):
        return AdaptedNgram(beside, file, order, reason="the bundle's n-gram is a KenLM binary")
    models = {SOURCE: source, DOMAIN: open_ngram(file, DOMAIN)}
    try:
        shares = _interpolate(models, [path, file], text, bundle, folder / "ngram.arpa.gz")
    except (FormatError, BundleError) as error:
        return AdaptedNgram(beside, file, order, reason=str(error))
    return AdaptedNgram(name, folder / "ngram.arpa.gz", max(source.order, order), shares)


def _interpolate(
    models: Mapping[str, NgramModel], paths: list[Path], text: DomainText, bundle: Bundle, output: Path
) -> dict[str, float]:
    """Fit the interpolation weights and write the interpolated model; return the weights."""
    align_vocabularies(list(models.values()))
    sentences = list(read_sentences([text.fitting], bundle.normaliser))
    fitted = fit_mixture(score_tokens(models, sentences, "fitting the n-grams").log_probs)
    domain = min(fitted[DOMAIN], 1 - MIN_SOURCE_SHARE)
    shares = {SOURCE: 1 - domain, DOMAIN: domain}
    interpolate_files(paths, list(models.values()), list(shares.values())).save(output)
    return shares

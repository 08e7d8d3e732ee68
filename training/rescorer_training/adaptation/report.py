"""Perplexities of a bundle before and after its adaptation, on words that the adaptation has not seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rescorer.lm.base import LanguageModel
from rescorer.lm.vocabulary_alignment import align_vocabularies
from rescorer.score_combination import MIXTURE
from rescorer.trie import Words
from rescorer_training.adaptation.network import AdaptedNetwork
from rescorer_training.adaptation.ngram import AdaptedNgram
from rescorer_training.adaptation.text import DomainText
from rescorer_training.evaluation.perplexity import measure
from rescorer_training.evaluation.token_scores import score_tokens

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Change:
    """A figure of the bundle and of the adapted one; None for a model that one of them does not have."""

    before: float | None
    after: float | None

    def to_list(self, decimals: int) -> list[float | None]:
        """Convert to JSON data."""
        return [None if value is None else round(value, decimals or None) for value in self]

    def __iter__(self) -> Iterator[float | None]:
        return iter((self.before, self.after))


@dataclass(frozen=True)
class MeasuredText:
    """Perplexities on a text from which nothing was learnt."""

    file: str
    tokens: int
    """Number of words and sentence ends."""
    unknown: Change
    """Number of words that no model knows."""
    perplexity: Mapping[str, Change]
    """By model, ``mixture`` included."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; pairs are before and after."""
        perplexity = {name: change.to_list(3) for name, change in self.perplexity.items()}
        return {
            "text": self.file,
            "tokens": self.tokens,
            "unknown_words": self.unknown.to_list(0),
            "perplexity": perplexity,
        }

    def to_measurement(self) -> dict[str, Any]:
        """Convert to what a manifest says of the adapted models."""
        perplexity = {name: change.after for name, change in self.perplexity.items() if change.after}
        return {
            "text": self.file,
            "tokens": self.tokens,
            "unknown_words": self.unknown.after,
            "perplexity": {name: round(value, 3) for name, value in perplexity.items()},
        }


@dataclass(frozen=True)
class AdaptedModels:
    """The adapted models, and what they were made from."""

    source: str
    """Name and version of the bundle that was adapted."""
    text: DomainText
    seed: int
    ngram: AdaptedNgram
    networks: Mapping[str, AdaptedNetwork]
    """By the name of the model."""


@dataclass(frozen=True)
class AdaptationReport:
    """What was done to a bundle, and what it changed."""

    adapted: AdaptedModels
    shares: Mapping[str, Change]
    """Interpolation weight λ of each model in the mixture."""
    texts: Mapping[str, MeasuredText]
    """What was measured on the ``domain`` and on the ``general`` text."""
    stale_weights: Sequence[str]
    """Weights sets that lost what was learnt with the models of the source, as from ``write_settings``."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data, as the manifest has it; pairs are before and after."""
        adapted = self.adapted
        return {
            "source": adapted.source,
            "text": adapted.text.name,
            "sentences": adapted.text.n_sentences,
            "words": adapted.text.n_words,
            "seed": adapted.seed,
            "ngram": adapted.ngram.to_dict(),
            "networks": {name: network.to_dict() for name, network in adapted.networks.items()},
            "mixture": {name: change.to_list(4) for name, change in self.shares.items()},
            "texts": {name: text.to_dict() for name, text in self.texts.items()},
            "stale_weights": list(self.stale_weights),
        }


@dataclass(frozen=True)
class JudgedText:
    """A text to measure perplexities on."""

    file: str
    """Name to report."""
    sentences: Sequence[Words]


@dataclass(frozen=True)
class MixedModels:
    """Models of a bundle, by name, and the interpolation weights λ of their mixture."""

    models: Mapping[str, LanguageModel]
    shares: Mapping[str, float]


def measure_texts(
    before: MixedModels, after: MixedModels, texts: Mapping[str, JudgedText]
) -> dict[str, MeasuredText]:
    """Measure perplexities on each text.

    All models spread probability 1 over the same words: the bundle pays for the new words of the adapted one
    as for any word that it does not know, so that the perplexities are comparable.
    """
    vocabulary = frozenset().union(*(model.vocabulary() for model in after.models.values()))
    align_vocabularies(list(before.models.values()), vocabulary)
    align_vocabularies(list(after.models.values()))
    measured: dict[str, MeasuredText] = {}
    for name, text in texts.items():
        perplexities: list[dict[str, float]] = []
        unknown: list[int] = []
        n_tokens = 0
        for label, mixed in ((BEFORE, before), (AFTER, after)):
            scores = score_tokens(mixed.models, text.sentences, f"scoring {name} text, {label}")
            values = measure(scores, mixed.shares)
            perplexities.append({model: value.shared for model, value in values.models.items()})
            unknown.append(values.models[MIXTURE].n_unknown)
            n_tokens = values.n_tokens
        measured[name] = MeasuredText(text.file, n_tokens, Change(*unknown), pair_up(*perplexities))
    return measured


def pair_up(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Change]:
    """Pair the figures of the same model, the mixture last."""
    names = [name for name in dict.fromkeys([*before, *after]) if name != MIXTURE]
    ends = [MIXTURE] if MIXTURE in after else []
    return {name: Change(before.get(name), after.get(name)) for name in [*names, *ends]}

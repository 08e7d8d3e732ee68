"""Explain why a hypothesis won: its weighted components beside those of the first pass and of the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rescorer.conversation import Generated
from rescorer.evaluation.comparison.rankings import order_by_decision
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.formats.conversation_fields import generated_record
from rescorer.phrases.matching import PhraseMatch
from rescorer.pipeline import Rescorer
from rescorer.reranking.reranker import Reranker
from rescorer.score_combination import get_component, totals, weights_by_component
from rescorer.trie import Words
from rescorer.types import NBestList, Weights

MERGED = "merged"
"""Name of what other hypotheses with the same words add to a total."""
INTERACTION = "interaction"
"""Name of what the features of a reranker add to its score together, beyond what each adds alone."""
N_SHOWN = 5
"""Number of the best hypotheses of an explanation."""


@dataclass(frozen=True, slots=True)
class FeaturePart:
    """A feature of a hypothesis, and what it adds to the total."""

    value: float | None
    """In the unit of the feature; None for ``INTERACTION`` and encodings of words."""
    term: float
    """What the total would lose if the feature were as on average in the list, in the total's units."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A hypothesis with what its total consists of."""

    rank: int
    """From 1; 0 if the hypothesis was dropped or merged into another."""
    first_pass_rank: int
    """From 1; generated hypotheses come after all that the recogniser ranked."""
    words: Words
    errors: int | None
    """None without a reference."""
    total: float
    components: Mapping[str, float]
    """Unweighted, for components whose weight is not 0."""
    terms: Mapping[str, float]
    """Weighted; they add up to the total."""
    phrases: tuple[str, ...] = ()
    """The phrases that gave the component ``phrases``, as they stand in the hypothesis, and their slots."""
    features: Mapping[str, Mapping[str, FeaturePart]] = field(default_factory=dict)
    """For each component of a reranker, its features by name; their terms add up to that of the component."""
    generated: Generated | None = None
    """How the hypothesis was made, if the recogniser did not have it."""

    def to_dict(self) -> dict[str, Any]:
        features = {
            component: {name: asdict(part) for name, part in parts.items()}
            for component, parts in self.features.items()
        }
        return {
            "text": " ".join(self.words),
            "rank": self.rank or None,
            "first_pass_rank": self.first_pass_rank if self.generated is None else None,
            "errors": self.errors,
            "total": self.total,
            "components": dict(self.components),
            "weighted": dict(self.terms),
            **({"phrases": list(self.phrases)} if self.phrases else {}),
            **({} if self.generated is None else {"generated": generated_record(self.generated)}),
            **({"features": features} if features else {}),
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """The best hypotheses of a list, the choice of the first pass, and the oracle."""

    id: str
    reference: str | None
    weights: Weights
    best: tuple[Candidate, ...]
    """The first hypotheses, as the weights and their decision rule rank them."""
    first_pass: Candidate
    oracle: Candidate | None
    """The hypothesis with the fewest errors, the best-ranked of several; None without a reference."""

    @property
    def winner(self) -> Candidate:
        return self.best[0]

    @property
    def has_changed(self) -> bool:
        """Whether the winner differs from the choice of the first pass."""
        return self.winner.first_pass_rank != self.first_pass.first_pass_rank

    @property
    def errors_saved(self) -> int:
        """Errors of the first pass that the winner does not have; 0 without a reference."""
        return (self.first_pass.errors or 0) - (self.winner.errors or 0)

    def lead_over(self, other: Candidate) -> dict[str, float]:
        """The weighted components of the winner minus those of another hypothesis."""
        return {name: value - other.terms[name] for name, value in self.winner.terms.items()}

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        oracle = None if self.oracle is None else self.oracle.to_dict()
        return {
            "id": self.id,
            "reference": self.reference,
            "weights": weights_by_component(self.weights),
            "decision": self.weights.decision.kind,
            "best": [candidate.to_dict() for candidate in self.best],
            "first_pass": self.first_pass.to_dict(),
            "oracle": oracle,
            "lead_over_first_pass": self.lead_over(self.first_pass),
            "lead_over_oracle": None if self.oracle is None else self.lead_over(self.oracle),
        }


def explain_list(
    scored: ScoredList,
    weights: Weights,
    rerankers: Sequence[Reranker] = (),
    encodings: Mapping[str, np.ndarray] | None = None,
    phrases: Sequence[Sequence[PhraseMatch]] = (),
    *,
    has_reference: bool = True,
) -> Explanation:
    """Explain the ranking of a list.

    Args:
        weights: weights and decision rule that rank it.
        rerankers: those that the weights name.
        encodings: result of ``encode_words`` for the list; None if no reranker encodes words.
        phrases: phrases of each hypothesis; empty if there are none.
        has_reference: whether the errors of the list mean something.

    Raises:
        LimitExceeded: the list is too long for its decision rule.
    """
    order = order_by_decision(scored, weights)
    list_totals = scored.selection.order(scored.words, totals(scored.components, weights))[1]
    errors = [counts.errors for counts in scored.evaluated.hypotheses]
    ranks = {position: rank for rank, position in enumerate(order, 1)}
    by_name = weights_by_component(weights, scored.components)
    by_weight = {name: weight for name, weight in by_name.items() if weight}
    encodings = encodings or {}
    features = [
        _find_features(scored, reranker, weights, encodings.get(reranker.name)) for reranker in rerankers
    ]

    def candidate(position: int) -> Candidate:
        components = {name: float(get_component(scored.components, name)[position]) for name in by_weight}
        terms = {name: weight * components[name] for name, weight in by_weight.items()}
        total = float(list_totals[position])
        if not np.isfinite(total):  # dropped, or merged into another
            total = sum(terms.values())
        if scored.selection.merge:
            terms[MERGED] = total - sum(terms.values())
        return Candidate(
            ranks.get(position, 0),
            scored.first_pass_order.index(position) + 1,
            scored.words[position],
            errors[position] if has_reference else None,
            total,
            components,
            terms,
            _quote_phrases(scored.read[position], phrases[position] if phrases else ()),
            {
                reranker.component: parts[position]
                for reranker, parts in zip(rerankers, features, strict=True)
            },
            scored.nbest.hypotheses[position].generated,
        )

    oracle = min(order, key=errors.__getitem__) if has_reference else None
    return Explanation(
        scored.evaluated.id,
        scored.reference if has_reference else None,
        weights,
        tuple(map(candidate, order[:N_SHOWN])),
        candidate(scored.first_pass_index),
        None if oracle is None else candidate(oracle),
    )


def _quote_phrases(words: Words, matches: Sequence[PhraseMatch]) -> tuple[str, ...]:
    """Each phrase, with the slots in which it is read."""
    quoted = []
    for match in matches:
        phrase = " ".join(words[match.start : match.start + match.n_words])
        slots = ", ".join(share.slot for share in match.slots)
        quoted.append(f"{phrase} ({slots})" if slots else phrase)
    return tuple(quoted)


def encode_words(
    rescorer: Rescorer, lists: Sequence[NBestList], rerankers: Sequence[Reranker]
) -> list[dict[str, np.ndarray]]:
    """The encodings of words that rerankers need, (H, K) float64 by the name of the reranker, per list."""
    by_list: list[dict[str, np.ndarray]] = [{} for _ in lists]
    for reranker in rerankers:
        if reranker.encoder is not None:
            for found, encoding in zip(by_list, rescorer.encode(lists, reranker.encoder), strict=True):
                found[reranker.name] = encoding
    return by_list


def _find_features(
    scored: ScoredList, reranker: Reranker, weights: Weights, encoding: np.ndarray | None
) -> list[dict[str, FeaturePart]]:
    """The features of each hypothesis, by name, with what they add to the total under some weights."""
    inputs = scored.components, scored.read, scored.context
    values, weight = reranker.feature_values(*inputs).tolist(), weights.rerankers[reranker.name]
    x, encoding = reranker.inputs(*inputs), reranker.centre_encoding(encoding)
    parts = weight * reranker.contributions(x, encoding)
    rests = weight * scored.components[reranker.component] - parts.sum(axis=1)
    rows = []
    names = reranker.inputs_by_name
    for row, terms, rest in zip(values, parts.tolist(), rests.tolist(), strict=True):
        shown = row + [None] * (len(names) - len(row))  # an encoding is not one number
        found = {name: FeaturePart(*pair) for name, *pair in zip(names, shown, terms, strict=True)}
        if not reranker.ensemble.is_linear:
            found[INTERACTION] = FeaturePart(None, rest)
        rows.append(found)
    return rows


def sort_by_change(explanations: list[Explanation]) -> list[Explanation]:
    """The explanations whose winner is not that of the first pass, the largest change of errors first.

    Among equal changes, and without references, the lists with the largest lead in the total come first.
    """
    changed = [item for item in explanations if item.has_changed]
    return sorted(
        changed, key=lambda item: (-abs(item.errors_saved), item.first_pass.total - item.winner.total)
    )

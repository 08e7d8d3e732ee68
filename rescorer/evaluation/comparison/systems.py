"""Compare the first pass, rules without language models, each model, the mixture and the oracle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rescorer.errors import LimitExceeded
from rescorer.evaluation.comparison.baselines import FIRST_PASS, SELECTIONS, TUNED, WORD_ONLY, build_baselines
from rescorer.evaluation.comparison.false_alarms import PhraseBound, find_false_alarms, has_phrases
from rescorer.evaluation.comparison.mixture_scores import score_mixtures
from rescorer.evaluation.comparison.rankings import (
    order_by_errors,
    order_by_expected_errors,
    order_by_file,
    order_by_first_pass,
    order_by_weights,
)
from rescorer.evaluation.comparison.row import Row, build_row
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.tuned import MixtureScores, Tuning, WeightedList
from rescorer.extensions.rerankers import used_rerankers
from rescorer.pipeline import Rescorer
from rescorer.reranking.reranker import replace_by_base
from rescorer.score_combination import MIXTURE
from rescorer.types import DecisionRule, Weights

ORACLE = "oracle"
ORACLE_GENERATED = "oracle with generated"
"""The oracle that may also choose generated hypotheses; rows of models may."""
RISK = "MBR"
"""Minimum Bayes risk: the hypothesis with the fewest expected errors."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows about the same lists."""

    scored: Sequence[ScoredList]
    first_pass: Row
    """What gains are measured from, whether or not it is among the rows."""
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    """Remarks about rows that are missing."""
    held_out: Mapping[str, Sequence[Weights]] = field(default_factory=dict)
    """Weights of each list that were tuned without its fold, by name of the system."""
    mixtures: Mapping[str, MixtureScores] = field(default_factory=dict)
    """The mixture's scores under the λ that tuning chose from, by name of the system."""


def weights_by_system(rescorer: Rescorer, weights: Weights, with_tuning: bool = False) -> dict[str, Weights]:
    """Apply ``weights`` to each model of the bundle alone, and to the mixture if it has several models.

    Each gets the weight of the mixture and of all backward models together, which share it between them.
    Without a mixture, the only model that it would have comes after the others.

    A last system has the weights as they are if they weigh several language models, such as one to subtract,
    or name rerankers; the others then use the base weights of the rerankers.

    Args:
        with_tuning: whether the λ may change, so that a mixture has the models of λ 0, too.
    """
    weights = rescorer.ranker.effective_weights(weights)
    rerankers = used_rerankers(rescorer.bundle, weights)
    plain = replace_by_base(weights, rerankers)
    scale = plain.lm.get(MIXTURE, 1.0) + sum(plain.lm.get(name, 0.0) for name in rescorer.bundle.backward)
    mixed = [name for name, share in plain.mixture.items() if share or with_tuning]
    last = MIXTURE if len(mixed) > 1 else mixed[0]
    names = [*(name for name in rescorer.models if name != last), last]
    systems = {name: replace(plain, name=name, lm={name: scale}) for name in names}
    weighted = [name for name, weight in weights.lm.items() if weight]
    if rerankers:
        weighted = [reranker.component for reranker in rerankers]
    if rerankers or len(weighted) > 1:
        name = " + ".join(weighted)
        systems[name] = replace(weights, name=name)
    return systems


def compare_systems(
    scored: Sequence[ScoredList],
    systems: Mapping[str, Weights],
    with_tuning: bool,
    word_only: Weights | None = None,
    rescorer: Rescorer | None = None,
) -> Comparison:
    """Make the rows of the first pass, the baselines, each system, and the oracle.

    Args:
        systems: weights by the name of the system.
        with_tuning: add a row per system, and for the word weight alone, with cross-validated weights.
        word_only: as in ``build_baselines``.
        rescorer: mixes the models' scores, so that the λ of the mixture are tuned too; None keeps the λ.
    """
    recognised = [item.recognised for item in scored]
    baselines = build_baselines(recognised, word_only, with_tuning=with_tuning)
    rows, notes = list(baselines.rows), list(baselines.notes)
    held_out: dict[str, Sequence[Weights]] = {}
    mixtures: dict[str, MixtureScores] = {}
    bound = _bound_phrases(rescorer, scored, systems) if with_tuning and rescorer else None
    for name, weights in systems.items():
        used = [model for model, share in weights.mixture.items() if share]
        if name == MIXTURE and len(used) == 1:
            notes.append(f"the same choices as {used[0]!r}: 'mixture', whose other λ are 0 before tuning")
        lists: Sequence[WeightedList] = [(item, weights) for item in scored]
        rows.append(_build_model_row(name, lists))
        if with_tuning:
            start = _with_risk(weights)
            mixture = score_mixtures(rescorer, scored, start) if rescorer else None
            start = bound.apply(scored, start) if bound else start
            lists = Tuning(scored, start, mixture=mixture, phrase_bound=bound).hold_out()
            held_out[name] = [list_weights for _, list_weights in lists]
            if mixture:
                mixtures[name] = mixture
            rows.append(_build_model_row(f"{name}, {TUNED}", lists, held_out=True))
    if systems:
        try:
            rows.append(_build_risk_row(rows[-1], lists))
        except LimitExceeded as error:
            notes.append(f"no row {RISK!r}: {error}")
    rows.append(build_oracle(recognised))
    if n_lists := sum(item.has_generated for item in scored):
        rows.append(build_oracle(scored, ORACLE_GENERATED))
        notes.append(_describe_generated(scored, n_lists))
    return Comparison(scored, rows[0], rows, notes, held_out, mixtures)


def _describe_generated(scored: Sequence[ScoredList], n_lists: int) -> str:
    count = sum(len(item.words) - item.n_recognised for item in scored)
    return (
        f"hypotheses that were generated, {count:,} for {n_lists:,} of {len(scored):,} lists, take part in "
        f"rows of models and in {ORACLE_GENERATED!r}, but not in other rows, nor in the oracle by depth"
    )


def _bound_phrases(
    rescorer: Rescorer, scored: Sequence[ScoredList], systems: Mapping[str, Weights]
) -> PhraseBound | None:
    """What bounds the weight of phrases in tuning; None if there are none. All systems have the same λ."""
    if not systems or not has_phrases(rescorer, scored):
        return None
    return PhraseBound(find_false_alarms(rescorer, scored, next(iter(systems.values()))))


def name_possible_rows(
    systems: Collection[str], with_tuning: bool, with_generated: bool = False
) -> list[str]:
    """The names of all rows that ``compare_systems`` may make, or ``compare_rules`` without systems.

    Which of them a comparison has depends on the lists: rows that choose the same become one.
    """
    models = [WORD_ONLY, *systems] if systems else []
    risk = [f"{name}, {RISK}" for name in systems]
    if with_tuning:
        models += [f"{name}, {TUNED}" for name in models]
        risk = [f"{name}, {TUNED}, {RISK}" for name in systems]
    return [FIRST_PASS, *SELECTIONS, *models, *risk[-1:], ORACLE, *[ORACLE_GENERATED] * with_generated]


def _with_risk(weights: Weights) -> Weights:
    """The same weights for minimum Bayes risk, so that a temperature is tuned too; others ignore it."""
    if weights.decision.kind == "minimum_bayes_risk":
        return weights
    return replace(weights, decision=DecisionRule("minimum_bayes_risk"))


def _build_model_row(name: str, lists: Sequence[WeightedList], *, held_out: bool = False) -> Row:
    """Rank each list by the weights for it."""
    orders = (order_by_weights(*pair) for pair in lists)
    return build_row(name, "model", [item for item, _ in lists], orders, held_out=held_out)


def _build_risk_row(row: Row, lists: Sequence[WeightedList]) -> Row:
    """Decide by minimum Bayes risk instead of the maximum, with the same weights as another row."""
    orders = (order_by_expected_errors(*pair) for pair in lists)
    name = f"{row.name}, {RISK}"
    return build_row(name, "decision", [item for item, _ in lists], orders, held_out=row.held_out)


def compare_file(scored: Sequence[ScoredList], name: str) -> Comparison:
    """Make the row of a file: its lists in the order that they have."""
    first = build_row(FIRST_PASS, "first pass", scored, map(order_by_first_pass, scored))
    return Comparison(scored, first, [build_row(name, "file", scored, map(order_by_file, scored))])


def compare_rules(scored: Sequence[ScoredList], name: str) -> Comparison:
    """Make the row of a file, then the baselines that differ from it and the oracle.

    Where the order of the file is that of the first pass, its row stands for both. Lists of one hypothesis
    leave no choice, and get one row.
    """
    if max(len(item.words) for item in scored) == 1:
        return compare_file(scored, name)
    baselines = build_baselines(scored)
    first = baselines.rows[0]
    row = build_row(name, "file", scored, map(order_by_file, scored))
    if np.array_equal(row.winners, first.winners):
        row = first = replace(row, kind="first pass")
        baselines.rows.pop(0)
    return Comparison(scored, first, [row, *baselines.rows, build_oracle(scored)], baselines.notes)


def build_oracle(scored: Sequence[ScoredList], name: str = ORACLE) -> Row:
    """The row that chooses the hypothesis with the fewest errors of each list."""
    return build_row(name, "oracle", scored, map(order_by_errors, scored))

"""Scored lists made from random numbers, without models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer.evaluation.error_rate import count_errors
from rescorer.evaluation.list_errors import ALL, EvaluatedList, Selection
from rescorer.evaluation.scored_lists import MeasuredList
from rescorer.ranking import best_first
from rescorer.types import Hypothesis, NBestList

VOCABULARY = ["the", "cat", "sat", "on", "a", "mat", "and", "rug"]
MODELS = ("ngram", "mixture")


def make_scored_list(
    rng: np.random.Generator, list_id: str, group: str = "", n_hypotheses: int = 5, selection: Selection = ALL
) -> MeasuredList:
    """A sentence, hypotheses with random changes, and scores that know a little about the errors."""
    reference = tuple(rng.choice(VOCABULARY, size=rng.integers(1, 8)))
    words = tuple(_change(rng, reference) for _ in range(n_hypotheses))
    errors = tuple(count_errors(reference, hypothesis) for hypothesis in words)
    wrong = np.array([counts.errors for counts in errors])
    components = {"acoustic": -0.2 * wrong + rng.normal(0, 2, n_hypotheses)}
    first_same = [words.index(hypothesis) for hypothesis in words]  # models score equal words equally
    for name in MODELS:
        components[name] = (-1.5 * wrong + rng.normal(0, 2, n_hypotheses))[first_same]
    components["words"] = np.array([float(len(hypothesis)) for hypothesis in words])
    components["oov"] = np.zeros(n_hypotheses)
    order = best_first(components["acoustic"]).tolist()
    evaluated = EvaluatedList(list_id, group, errors, errors[order[0]])
    texts = tuple(Hypothesis(" ".join(hypothesis)) for hypothesis in words)
    streams = {"acoustic": tuple(components["acoustic"].tolist())}
    nbest = NBestList(list_id, texts, streams, reference=" ".join(reference), group=group)
    return MeasuredList(
        nbest, evaluated, " ".join(reference), components, words, order, components["acoustic"], selection
    )


def make_scored_lists(
    n_lists: int = 12, seed: int = 1, n_groups: int = 3, selection: Selection = ALL
) -> list[MeasuredList]:
    """Lists of ``n_groups`` speakers."""
    rng = np.random.default_rng(seed)
    return [
        make_scored_list(
            rng, f"u{n:02}", f"s{n % n_groups}" if n_groups else "", rng.integers(1, 7), selection
        )
        for n in range(n_lists)
    ]


def _change(rng: np.random.Generator, words: Sequence[str]) -> tuple[str, ...]:
    changed: list[str] = []
    for word in words:
        kind = rng.integers(0, 8)
        changed += {0: [], 1: [str(rng.choice(VOCABULARY))], 2: [word, "uh"]}.get(int(kind), [word])
    return tuple(changed)

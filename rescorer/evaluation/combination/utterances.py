"""Bring the lists of several recognisers for the same utterances together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.decision.rover import SystemList
from rescorer.errors import InvalidList
from rescorer.formats.rescored import is_rescored
from rescorer.formats.word_times import is_finite_number
from rescorer.ranking import MAX_TOTAL
from rescorer.text import Normaliser
from rescorer.types import NBestList

Key = tuple[str, int]
"""Id of an utterance, and number of earlier lists of the file with that id."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """The lists of all systems for one utterance."""

    id: str
    group: str
    reference: str | None
    systems: tuple[SystemList, ...]


def find_totals(nbest: NBestList) -> np.ndarray:
    """Find the scores by which a list is ranked, (H,) float64.

    They are the totals of a list that ``rescorer rescore`` wrote, else the only stream; a single hypothesis
    needs none.

    Raises:
        InvalidList: there are several hypotheses without such scores, or a score is too large.
    """
    totals = _read_totals(nbest)
    for index in np.flatnonzero(np.abs(totals) > MAX_TOTAL)[:1].tolist():
        message = f"the score is {totals[index]}; expected at most {MAX_TOTAL} in absolute value"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index)
    return totals


def _read_totals(nbest: NBestList) -> np.ndarray:
    if is_rescored(nbest):
        totals = [hypothesis.fields.get("total") for hypothesis in nbest.hypotheses]
        for index, total in enumerate(totals):
            if not is_finite_number(total):
                message = f"expected a finite number, got {total!r}"
                raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="total")
        return np.array(totals, dtype=np.float64)
    if len(nbest.hypotheses) == 1:
        return np.zeros(1)
    if len(nbest.streams) != 1:
        raise InvalidList(
            f"{len(nbest.streams)} score streams; expected one, or the output of `rescorer rescore`",
            list_id=nbest.id,
            field="streams",
        )
    (scores,) = nbest.streams.values()
    return np.array(scores, dtype=np.float64)


def join_systems(
    systems: Sequence[Iterable[NBestList]], normaliser: Normaliser
) -> tuple[list[Utterance], list[InvalidList], list[int]]:
    """Join the lists of all systems by id.

    Returns:
        The utterances that all systems have, in the order of the first system; the errors of lists without
        scores; and the number of lists of each system that another system lacks.
    """
    errors: list[InvalidList] = []
    indexed: list[dict[Key, tuple[NBestList, SystemList]]] = []
    for lists in systems:
        seen: Counter[str] = Counter()
        found: dict[Key, tuple[NBestList, SystemList]] = {}
        for nbest in lists:
            key = nbest.id, seen[nbest.id]
            seen[nbest.id] += 1
            try:
                totals = find_totals(nbest)
            except InvalidList as error:
                errors.append(error)
                continue
            words, surfaces = (
                tuple(words_of(hypothesis.text) for hypothesis in nbest.hypotheses)
                for words_of in (normaliser.normalise, normaliser.surfaces)
            )
            found[key] = nbest, SystemList(words, totals, surfaces)
        indexed.append(found)
    shared = [key for key in indexed[0] if all(key in found for found in indexed)]
    utterances = [_join([found[key] for found in indexed]) for key in shared]
    return utterances, errors, [len(found) - len(shared) for found in indexed]


def _join(parts: Sequence[tuple[NBestList, SystemList]]) -> Utterance:
    lists = [nbest for nbest, _ in parts]
    reference = next((nbest.reference for nbest in lists if nbest.reference is not None), None)
    group = next((nbest.group for nbest in lists if nbest.group), "")
    return Utterance(lists[0].id, group, reference, tuple(system for _, system in parts))

"""Take the prior of a reranker from lists of another kind, such as made lists or lists without all streams.

A first reranker is trained on these lists, over the features that both kinds have; its weights, and not only
those of the base total, are then what the final weights keep close to (Chelba and Acero, 2004, "Adaptation of
maximum entropy capitalizer: Little data can help a lot").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer_training.reranker.arrays import TrainingArrays

MIN_PRIOR_LISTS = 20
"""Fewer prior lists are not trained on; the prior is then that of the base weights."""
ORDER_FEATURES = ("log_rank", "first")
"""Stand in for streams that the prior lists lack, so that the models need not explain what these did."""


@dataclass(frozen=True, slots=True)
class ListKeys:
    """What lists of two kinds may share; parallel sequences of L."""

    ids: Sequence[str]
    groups: Sequence[str]
    """Empty for lists without a group."""
    references: Sequence[str]
    """Canonical words; empty where lists may share references."""


@dataclass(frozen=True, slots=True)
class PriorLists:
    """Features and errors of P lists of another kind, and what they share with the L lists to train on."""

    arrays: TrainingArrays
    """Features and errors of the prior lists, scaled by their own standard deviations."""
    feature_sets: Mapping[str, Sequence[str]]
    """Features of each set, by its name."""
    own: np.ndarray
    """(3, P) int64, code of the id, the group and the reference of each prior list."""
    others: np.ndarray
    """(3, L) int64, the same of each list to train on; equal where they are equal."""

    @classmethod
    def match(
        cls,
        arrays: TrainingArrays,
        feature_sets: Mapping[str, Sequence[str]],
        own: ListKeys,
        others: ListKeys,
    ) -> PriorLists:
        """Find out which lists share an id, a group or a reference."""
        pairs = zip(
            (own.ids, own.groups, own.references), (others.ids, others.groups, others.references), strict=True
        )
        coded = [_code(ours, theirs) for ours, theirs in pairs]
        return cls(
            arrays, feature_sets, np.stack([ours for ours, _ in coded]), np.stack([them for _, them in coded])
        )

    def find_allowed(self, lists: np.ndarray) -> np.ndarray:
        """Indices of the prior lists that share nothing with the lists to train on other than these ones."""
        held_out = np.ones(self.others.shape[1], dtype=bool)
        held_out[lists] = False
        shared = [np.isin(ours, them[held_out]) for ours, them in zip(self.own, self.others, strict=True)]
        return np.flatnonzero(~np.any(shared, axis=0))

    def describe(self) -> str:
        """Say how many lists there are, and what is left out where."""
        n_lists, n_free = self.arrays.n_lists, len(self.find_allowed(np.zeros(0, dtype=np.int64)))
        return (
            f"{n_lists:,} lists of another kind; {n_lists - n_free:,} share an id, a group or a reference "
            "with the lists to train on, and are left out where these are held out"
        )

    def select(self, lists: np.ndarray) -> TrainingArrays | None:
        """The prior lists that may be used where the reranker is trained on some lists; None if they are too
        few."""
        allowed = self.find_allowed(lists)
        return self.arrays.select(allowed) if len(allowed) >= MIN_PRIOR_LISTS else None


def _code(ours: Sequence[str], theirs: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Number the values of two sequences, equal ones alike; empty ones are -1 and -2, which match nothing."""
    codes: dict[str, int] = {}
    return (
        np.array([codes.setdefault(value, len(codes)) if value else -1 for value in ours], dtype=np.int64),
        np.array([codes.setdefault(value, len(codes)) if value else -2 for value in theirs], dtype=np.int64),
    )

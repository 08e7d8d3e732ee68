"""Divide lists into folds that share neither groups nor references, for cross-validation and the
bootstrap."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError

N_FOLDS = 5
"""Largest number of folds, outside and inside: methods and weights are fitted about 200 times in all."""
MAX_UNIT_SHARE = 0.5
"""Largest share of all lists that may hang together by groups and references."""


@dataclass(frozen=True, slots=True)
class Folds:
    """Which lists are held out together, and which are drawn together."""

    fold: np.ndarray
    """(L,) int64, number of the fold of each list, from 0."""
    unit: np.ndarray
    """(L,) int64, lists of the same unit are never divided: the unit of folds and of the bootstrap."""
    reference: np.ndarray
    """(L,) int64, equal for lists with the same reference."""
    by: str
    """What a unit is: ``group``, or ``reference`` if there are no groups."""
    shares_references: bool = False
    """Whether folds share references; such lists must then be left out of tuning, see ``split``."""

    def split(self, fold: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the lists to tune on without a fold, and of the lists of the fold.

        Lists with a reference that occurs in the fold are in neither.
        """
        held_out = self.fold == fold
        known = np.isin(self.reference, self.reference[held_out])
        return np.flatnonzero(~held_out & ~known), np.flatnonzero(held_out)

    @property
    def n_folds(self) -> int:
        return int(self.fold.max()) + 1

    @property
    def n_units(self) -> int:
        return len(np.unique(self.unit))

    def subdivide(self, lists: np.ndarray, n_folds: int = N_FOLDS) -> Folds:
        """Divide some of the lists into folds by the same units."""
        fold = _deal(self.unit[lists].tolist(), n_folds)
        return Folds(fold, self.unit[lists], self.reference[lists], self.by, self.shares_references)

    def describe(self) -> str:
        """Say by what the lists were divided."""
        if self.by == "group":
            what = "by group; lists that share a reference stay together"
            if self.shares_references:
                what = "by group; lists that share a reference with a fold do not tune its weights"
            return f"{self.n_folds} folds of {self.n_units} units {what}"
        why = "the lists have no groups, or only one: --groups keeps the lists of a speaker together"
        return f"{self.n_folds} folds by id, because {why}"


def make_folds(
    ids: Sequence[str], groups: Sequence[str], references: Sequence[str], n_folds: int = N_FOLDS
) -> Folds:
    """Divide lists into at most ``n_folds`` folds: by groups if there are at least two, else by id.

    A list without a group is divided by its id.

    Lists that share a reference are in the same fold. If most lists hang together in this way, as in
    dialogues, where everybody says "yes", groups alone make the folds, and lists that share a reference with
    a fold are left out when its weights are tuned.

    Raises:
        ConfigError: there are fewer than two units.
    """
    by = "group" if len(set(groups)) > 1 else "reference"
    groups = groups if by == "group" else [""] * len(ids)
    names = [group or f"id {list_id}" for group, list_id in zip(groups, ids, strict=True)]
    units = _join(names, references)
    reference = _number(references)
    shares = Counter(units).most_common(1)[0][1] > max(MAX_UNIT_SHARE * len(ids), 1)
    if shares and len(set(names)) > 1:
        units = list(names)
    unit = _number(units)
    if len(set(unit)) < 2:
        raise ConfigError("cross-validation needs at least two lists with distinct ids, got one id")
    return Folds(_deal(units, n_folds), unit, reference, by, shares)


def _join(names: Sequence[str], references: Sequence[str]) -> list[str]:
    """Name the unit of each list: lists with the same name or reference, directly or through others, are one
    (union-find)."""
    parent: dict[Hashable, Hashable] = {}

    def find(key: Hashable) -> Hashable:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for name, reference in zip(names, references, strict=True):
        first, second = sorted((find(("name", name)), find(("reference", reference))))  # type: ignore[type-var]
        parent[second] = first
    smallest: dict[Hashable, str] = {}
    for name in sorted(set(names)):
        smallest.setdefault(find(("name", name)), name)
    return [smallest[find(("name", name))] for name in names]


def _number(values: Sequence[Hashable]) -> np.ndarray:
    """Number distinct values in order of appearance, (L,) int64."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def _deal(units: Sequence[Hashable], n_folds: int) -> np.ndarray:
    """Deal units to folds of about equal numbers of lists, the largest unit first: (L,) int64.

    Units of equal size come in the order of their hashes, so that folds neither depend on the order of the
    lists nor follow the order of a recording.
    """
    sizes = Counter(units)
    order = sorted(sizes, key=lambda unit: (-sizes[unit], hashlib.sha256(str(unit).encode()).digest()))
    n_lists = [0] * min(n_folds, len(order))
    fold_of: dict[Hashable, int] = {}
    for unit in order:
        fold_of[unit] = n_lists.index(min(n_lists))
        n_lists[fold_of[unit]] += sizes[unit]
    return np.array([fold_of[unit] for unit in units], dtype=np.int64)

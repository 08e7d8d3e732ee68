"""Divide lists into folds for cross-validation: by speaker or other group, else by id."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from rescorer.errors import ConfigError

N_FOLDS = 10
"""Number of folds of lists without groups; tuning takes about as many times as long as without validation."""


def choose_folds(ids: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Return the fold of each list: its group if there are at least two groups, else one of ten by its id.

    Raises:
        ConfigError: all lists have the same id and group.
    """
    if len(set(groups)) > 1:
        return list(groups)
    # by hash, so that folds neither depend on the order of the lists nor follow the order of a recording
    distinct = sorted(set(ids), key=lambda list_id: hashlib.sha256(list_id.encode()).digest())
    if len(distinct) < 2:
        raise ConfigError("cross-validation needs at least two lists with different ids, got one id")
    fold_by_id = {list_id: f"fold {index % N_FOLDS + 1}" for index, list_id in enumerate(distinct)}
    return [fold_by_id[list_id] for list_id in ids]


def describe_folds(ids: Sequence[str], groups: Sequence[str]) -> str:
    """Say by what the lists were divided."""
    folds = len(set(choose_folds(ids, groups)))
    if len(set(groups)) > 1:
        return f"{folds} folds by group"
    why = "all lists are of one group" if any(groups) else "the lists have no groups"
    return f"{folds} folds by id, because {why}: --groups keeps the lists of a speaker together"

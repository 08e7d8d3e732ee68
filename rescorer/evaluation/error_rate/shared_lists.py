"""Find the lists that several systems have in common, on which alone their error rates can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
ListKey = tuple[str, tuple[str, ...], int]
"""Id, canonical words of the reference, and number of earlier lists of the file with the same two."""


def index_lists(lists: Iterable[tuple[str, tuple[str, ...], T]]) -> dict[ListKey, T]:
    """Index lists, given with their id and reference, by a key that is the same in all systems' files."""
    seen: Counter[tuple[str, tuple[str, ...]]] = Counter()
    indexed: dict[ListKey, T] = {}
    for list_id, reference, item in lists:
        indexed[list_id, reference, seen[list_id, reference]] = item
        seen[list_id, reference] += 1
    return indexed


def find_shared_lists(systems: Sequence[Mapping[ListKey, Any]]) -> list[ListKey]:
    """Return the keys that all systems have, in the order of the first system."""
    first, *others = systems
    return [key for key in first if all(key in other for other in others)]

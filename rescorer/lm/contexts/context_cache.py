"""Cache what networks have computed of contexts.

A context that is sent again is not read again; if a context has grown, only its new words are read. Of
recurrent networks, the vectors and states after whole contexts are cached; of transformers, the keys and
values of each word after the words before it. Networks with a fixed window need no cache, because they read
only the last few words.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Rows = tuple[Tensor, ...]
"""Vectors and states after contexts, one context per row: (R, D), (R, H), …"""

BOOKKEEPING_BYTES = 1024
"""Worst-case size of the Python objects that index one context, besides its row in the table."""


class RowCache:
    """Rows of a table by key, in bounded memory; the least recently used row is evicted first.

    Args:
        max_bytes: limit for all rows and their index; 0 disables the cache.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._slots: OrderedDict[Hashable, int] = OrderedDict()  # row in the table, most recently used last
        self._table: Tensor | None = None  # (slots, width), allocated when the width is known
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def recall_rows(self, keys: Sequence[Hashable]) -> tuple[np.ndarray, Tensor]:
        """Look up rows.

        Returns:
            (n,) bool, True for each key that is cached, and the rows of these, (cached, width).
        """
        with self._lock:
            is_cached = np.array([key in self._slots for key in keys], dtype=bool)
            found = [key for key, cached in zip(keys, is_cached, strict=True) if cached]
            for key in found:
                self._slots.move_to_end(key)
            if self._table is None:
                return is_cached, torch.empty(0, 0)
            return is_cached, self._table[[self._slots[key] for key in found]]

    def store_rows(self, keys: Sequence[Hashable], rows: Tensor) -> None:
        """Copy rows into the cache, (n, width), except those whose keys are already cached.

        If there are more than the cache has room for, the last ones are stored. If one is not finite, none
        is.
        """
        with self._lock:
            table = self._allocate_table(rows)
            new = {key: position for position, key in enumerate(keys) if key not in self._slots}
            items = list(new.items())[max(0, len(new) - len(table)) :]
            if items and rows.isfinite().all():  # values that are not finite must not outlive their batch
                values = rows[[position for _, position in items]]
                table[[self._allocate(key) for key, _ in items]] = values

    def _allocate_table(self, rows: Tensor) -> Tensor:
        if self._table is None:
            width = rows.shape[1]
            n_slots = self.max_bytes // (width * rows.element_size() + BOOKKEEPING_BYTES)
            self._table = rows.new_empty(n_slots, width)
        return self._table

    def _allocate(self, key: Hashable) -> int:
        """Assign a slot to a new key, evicting the least recently used one if the table is full."""
        slot = len(self._slots)
        if self._table is not None and slot == len(self._table):
            evicted, slot = self._slots.popitem(last=False)
            self._forget(evicted)
        self._slots[key] = slot
        return slot

    def _forget(self, key: Any) -> None:
        """Called when a key is evicted."""


class _Key(NamedTuple):
    """Identifies a context by a digest, so that the cache keeps no texts."""

    first_word: int
    n_words: int
    digest: bytes


class ContextCache(RowCache):
    """Vectors and states of recurrent networks by context."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._lengths: dict[int, Counter[int]] = {}  # lengths of the cached contexts, by first word
        self._widths: tuple[int, ...] = ()  # of the vectors and states in a row

    def recall(self, contexts: Sequence[np.ndarray], start: Callable[[], Rows]) -> tuple[list[int], Rows]:
        """Look up the longest cached prefix of each context.

        Args:
            contexts: (R,) arrays of the model's word ids.
            start: returns the rows after the start word, which contexts without a cached prefix get; called
                if there are any.

        Returns:
            For each context, the length of its longest cached prefix in words, and the rows after it.
        """
        n_known, found = [0] * len(contexts), dict[int, int]()
        with self._lock:
            for position, context in enumerate(contexts):
                if (key := self._longest_prefix(context)) is not None:
                    self._slots.move_to_end(key)
                    n_known[position], found[position] = key.n_words, self._slots[key]
            if self._table is None or not found:
                return n_known, start()
            cached = self._table[list(found.values())].split(self._widths, dim=1)
        if len(found) == len(contexts):
            return n_known, cached
        rows = start()
        positions = torch.tensor(list(found), device=rows[0].device)
        return n_known, tuple(
            part.index_copy(0, positions, new) for part, new in zip(rows, cached, strict=True)
        )

    def store(self, contexts: Sequence[np.ndarray], rows: Rows) -> None:
        """Copy the rows after these contexts into the cache, except those that are already cached."""
        positions = [position for position, context in enumerate(contexts) if len(context)]
        keys = [_key(contexts[position], len(contexts[position])) for position in positions]
        self._widths = tuple(part.shape[1] for part in rows)
        self.store_rows(keys, torch.cat([part[positions] for part in rows], dim=1))

    def _longest_prefix(self, context: np.ndarray) -> _Key | None:
        """Key of the longest cached prefix of a context."""
        if not len(context):
            return None
        lengths = self._lengths.get(int(context[0]), ())
        for n_words in sorted((length for length in lengths if length <= len(context)), reverse=True):
            if (key := _key(context, n_words)) in self._slots:
                return key
        return None

    def _allocate(self, key: Any) -> int:
        slot = super()._allocate(key)
        self._lengths.setdefault(key.first_word, Counter())[key.n_words] += 1
        return slot

    def _forget(self, key: Any) -> None:
        lengths = self._lengths[key.first_word]
        lengths[key.n_words] -= 1
        if not lengths[key.n_words]:
            del lengths[key.n_words]
        if not lengths:
            del self._lengths[key.first_word]


def _key(context: np.ndarray, n_words: int) -> _Key:
    return _Key(int(context[0]), n_words, blake2b(context[:n_words].tobytes(), digest_size=16).digest())

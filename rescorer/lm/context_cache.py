"""Cache the vectors and states of a recurrent network after the contexts it has read.

A context that is sent again is not read again; if a context has grown, only its new words are read. Networks
with a fixed window need no cache, because they read only the last few words.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Rows = tuple[Tensor, ...]
"""Vectors and states after contexts, one context per row: (R, D), (R, H), …"""

BOOKKEEPING_BYTES = 1024
"""Worst-case size of the Python objects that index one context, besides its row in the table."""


class _Key(NamedTuple):
    """Identifies a context by a digest, so that the cache keeps no texts."""

    first_word: int
    n_words: int
    digest: bytes


class ContextCache:
    """Rows by context in bounded memory; the least recently used context is evicted first.

    Args:
        max_bytes: limit for all rows and their index; 0 disables the cache.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._slots: OrderedDict[_Key, int] = OrderedDict()  # row in the table, most recently used last
        self._lengths: dict[int, Counter[int]] = {}  # lengths of the cached contexts, by first word
        self._table: Tensor | None = None  # (slots, D + H + …), allocated when the width is known
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def recall(self, contexts: Sequence[np.ndarray], rows: Rows) -> tuple[list[int], Rows]:
        """Look up the longest cached prefix of each context.

        Args:
            contexts: (R,) arrays of the model's word ids.
            rows: rows after the start word, returned for contexts without a cached prefix.

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
                return n_known, rows
            cached = self._table[list(found.values())].split([part.shape[1] for part in rows], dim=1)
        positions = torch.tensor(list(found), device=rows[0].device)
        return n_known, tuple(
            part.index_copy(0, positions, new) for part, new in zip(rows, cached, strict=True)
        )

    def store(self, contexts: Sequence[np.ndarray], rows: Rows) -> None:
        """Copy the rows after these contexts into the cache, except those that are already cached."""
        with self._lock:
            if self._table is None:
                width = sum(part.shape[1] for part in rows)
                n_slots = self.max_bytes // (width * rows[0].element_size() + BOOKKEEPING_BYTES)
                self._table = rows[0].new_empty(n_slots, width)
            keys = {
                _key(context, len(context)): position
                for position, context in enumerate(contexts)
                if len(context)
            }
            new = [item for item in keys.items() if item[0] not in self._slots][: len(self._table)]
            if new:
                positions = [position for _, position in new]
                # Concatenated before slots are allocated: if this fails, no key points at an unwritten row.
                values = torch.cat([part[positions] for part in rows], dim=1)
                if values.isfinite().all():  # values that are not finite must not outlive their batch
                    self._table[[self._allocate(key) for key, _ in new]] = values

    def _longest_prefix(self, context: np.ndarray) -> _Key | None:
        """Key of the longest cached prefix of a context."""
        if not len(context):
            return None
        lengths = self._lengths.get(int(context[0]), ())
        for n_words in sorted((length for length in lengths if length <= len(context)), reverse=True):
            if (key := _key(context, n_words)) in self._slots:
                return key
        return None

    def _allocate(self, key: _Key) -> int:
        """Assign a slot to a new context, evicting the least recently used one if the table is full."""
        slot = len(self._slots)
        if self._table is not None and slot == len(self._table):
            evicted, slot = self._slots.popitem(last=False)
            lengths = self._lengths[evicted.first_word]
            lengths[evicted.n_words] -= 1
            if not lengths[evicted.n_words]:
                del lengths[evicted.n_words]
            if not lengths:
                del self._lengths[evicted.first_word]
        self._slots[key] = slot
        self._lengths.setdefault(key.first_word, Counter())[key.n_words] += 1
        return slot


def _key(context: np.ndarray, n_words: int) -> _Key:
    return _Key(int(context[0]), n_words, blake2b(context[:n_words].tobytes(), digest_size=16).digest())

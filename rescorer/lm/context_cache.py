"""Owns what a recurrent network made of contexts it has read, so that the same one, or one that has grown, is
not read from its start again.

A network with a window reads no contexts: it has no use for this.
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
"""Vectors and states after contexts, one a row: (R, D), (R, H), …"""

BOOKKEEPING_BYTES = 1024
"""Of a context, beside its row: what Python keeps to find it, in the worst case."""


class _Key(NamedTuple):
    """Stands for a context; texts are not kept."""

    first_word: int
    n_words: int
    digest: bytes


class ContextCache:
    """Rows by context, in bounded memory; what was not asked for the longest goes first.

    Args:
        max_bytes: of all rows and what it takes to find them; 0: nothing is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._slots: OrderedDict[_Key, int] = OrderedDict()  # where in the table, the last asked for last
        self._lengths: dict[int, Counter[int]] = {}  # of what is kept, by first word
        self._table: Tensor | None = None  # (slots, D + H + …), made when the width is known
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def recall(self, contexts: Sequence[np.ndarray], rows: Rows) -> tuple[list[int], Rows]:
        """The rows after the longest beginnings of contexts that are known, and how many words these have.

        Args:
            contexts: (R,) arrays of the model's word ids.
            rows: after no words at all, for contexts that begin as no other has.
        """
        n_known, found = [0] * len(contexts), dict[int, int]()
        with self._lock:
            for place, context in enumerate(contexts):
                if (key := self._longest(context)) is not None:
                    self._slots.move_to_end(key)
                    n_known[place], found[place] = key.n_words, self._slots[key]
            if self._table is None or not found:
                return n_known, rows
            kept = self._table[list(found.values())].split([part.shape[1] for part in rows], dim=1)
        places = torch.tensor(list(found), device=rows[0].device)
        return n_known, tuple(part.index_copy(0, places, new) for part, new in zip(rows, kept, strict=True))

    def keep(self, contexts: Sequence[np.ndarray], rows: Rows) -> None:
        """Copies the rows after these contexts, of those that are not there."""
        with self._lock:
            if self._table is None:
                width = sum(part.shape[1] for part in rows)
                n_slots = self.max_bytes // (width * rows[0].element_size() + BOOKKEEPING_BYTES)
                self._table = rows[0].new_empty(n_slots, width)
            keys = {_key(each, len(each)): place for place, each in enumerate(contexts) if len(each)}
            new = [each for each in keys.items() if each[0] not in self._slots][: len(self._table)]
            if new:
                places = [place for _, place in new]
                made = torch.cat([part[places] for part in rows], dim=1)  # where that fails, nothing is named
                if made.isfinite().all():  # a fault is not to outlive its batch
                    self._table[[self._slot(key) for key, _ in new]] = made

    def _longest(self, context: np.ndarray) -> _Key | None:
        """The longest beginning that is known."""
        if not len(context):
            return None
        lengths = self._lengths.get(int(context[0]), ())
        for n_words in sorted((each for each in lengths if each <= len(context)), reverse=True):
            if (key := _key(context, n_words)) in self._slots:
                return key
        return None

    def _slot(self, key: _Key) -> int:
        """A place in the table for a context that is not there."""
        slot = len(self._slots)
        if self._table is not None and slot == len(self._table):
            oldest, slot = self._slots.popitem(last=False)
            lengths = self._lengths[oldest.first_word]
            lengths[oldest.n_words] -= 1
            if not lengths[oldest.n_words]:
                del lengths[oldest.n_words]
            if not lengths:
                del self._lengths[oldest.first_word]
        self._slots[key] = slot
        self._lengths.setdefault(key.first_word, Counter())[key.n_words] += 1
        return slot


def _key(context: np.ndarray, n_words: int) -> _Key:
    return _Key(int(context[0]), n_words, blake2b(context[:n_words].tobytes(), digest_size=16).digest())

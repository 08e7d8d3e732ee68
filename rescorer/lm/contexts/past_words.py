"""Read again what was said before the roots of a trie: the vectors from which a network predicts each word.

A network whose state is reset at the end of a sentence reads each sentence by itself, so that equal sentences
are read once; one that carries its state reads the past as one path. Vectors are cached by the words before
them: of a past that has grown, only the new words are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.contexts.context_cache import RowCache
from rescorer.trie import SENTENCE_END, HypothesisTrie, Words, build_trie


class _Path(NamedTuple):
    """Words that a network reads from its first state on."""

    words: Words
    names: tuple[bytes, ...]
    """A digest of the words before each word, so that the cache keeps no texts."""


def read_past(
    trie: HypothesisTrie,
    carried: bool,
    cache: RowCache,
    read: Callable[[HypothesisTrie], tuple[Tensor, np.ndarray]],
) -> list[Tensor | None]:
    """Compute the vectors from which the words before the roots of a trie are predicted.

    Args:
        trie: a trie with all that was said before.
        carried: whether the network carries its state across the ends of sentences.
        cache: vectors by the words before them.
        read: returns the distinct context vectors of a trie, and the row of each node, for a trie whose paths
            may have ``SENTENCE_END`` as a word.

    Returns:
        (T, D) float32 for each root that has a neural cache and something before it; None for the others.
    """
    words = (*trie.words, SENTENCE_END)
    paths: dict[Words, _Path] = {}
    by_root: list[list[_Path]] = []
    for context, flatness in zip(trie.contexts, trie.flatness, strict=True):
        parts = _cut(context, len(trie.words), carried) if flatness else []
        texts = [tuple(words[i] for i in part) for part in parts]
        by_root.append([paths.setdefault(text, _Path(text, _name_words(text))) for text in texts])
    if not paths:
        return [None] * trie.n_roots
    vectors, row_of = _find_vectors(list(paths.values()), cache, read)
    found: list[Tensor | None] = []
    for of_root in by_root:
        rows = torch.tensor([row_of[name] for path in of_root for name in path.names], dtype=torch.int64)
        found.append(vectors[rows.to(vectors.device)] if of_root else None)
    return found


def _cut(context: np.ndarray, end: int, carried: bool) -> list[np.ndarray]:
    """The paths of a past: its sentences, with their ends, or all of it."""
    if carried:
        return [context] if len(context) else []
    parts = np.split(context, np.flatnonzero(context == end) + 1)
    return [part for part in parts if len(part)]


def _name_words(words: Words) -> tuple[bytes, ...]:
    """A digest of the words before each of these."""
    digest, names = blake2b(digest_size=16), []
    for word in words:
        names.append(digest.digest())
        digest.update(f"{word} ".encode("utf-8", "surrogatepass"))
    return tuple(names)


def _find_vectors(
    paths: Sequence[_Path], cache: RowCache, read: Callable[[HypothesisTrie], tuple[Tensor, np.ndarray]]
) -> tuple[Tensor, dict[bytes, int]]:
    """The vectors of all words of some paths, (U, D), and their rows by name; reads what is not cached."""
    names = list(dict.fromkeys(name for path in paths for name in path.names))
    is_cached, cached = cache.recall_rows(names)
    row_of = {name: row for row, name in enumerate(np.array(names, dtype=object)[is_cached].tolist())}
    missing = [next((k for k, name in enumerate(path.names) if name not in row_of), -1) for path in paths]
    unread = [(path, first) for path, first in zip(paths, missing, strict=True) if first >= 0]
    if not unread:
        return cached, row_of
    past = build_trie(
        [path.words[first:-1] for path, first in unread], [path.words[:first] for path, first in unread]
    )
    vectors, row_of_node = read(past)
    new: dict[bytes, int] = {}
    for index, (path, first) in enumerate(unread):
        nodes = past.edge_parent[past.path_edges(index)]
        new |= dict(zip(path.names[first:], row_of_node[nodes].tolist(), strict=True))
    new = {name: row for name, row in new.items() if name not in row_of}
    rows = vectors.float()[torch.tensor(list(new.values()), device=vectors.device)]
    cache.store_rows(list(new), rows)
    row_of |= {name: len(row_of) + place for place, name in enumerate(new)}
    return torch.cat([cached, rows]) if len(cached) else rows, row_of

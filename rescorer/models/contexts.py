"""The memory of networks for the words before a hypothesis: cached contexts, neural caches, topics and parts
of speech.

A context that is sent again is not read again; if a context has grown, only its new words are read. For
recurrent networks, the vectors and states after whole contexts are cached; for transformers, the keys and
values of each word. Networks with a fixed window read only the last few words and need no cache.

The neural cache of a session expects a word again where the network's state is like the state before the word
was said (Grave, Joulin & Usunier 2016, "Improving Neural Language Models with a Continuous Cache"). For each
word w_t that was said before a root, let h_t be the context vector from which the network predicted it. For
an edge whose word w is predicted from the context vector h,

    P_cache(w | h) = Σ_{t: w_t = w} c_t exp(θ h · h_t) / Σ_t c_t exp(θ h · h_t),

where c_t is the confidence of the utterance that has w_t. Words are compared as texts, not as ids of the
network. So Σ_w P_cache(w | h) = 1 over the words of the session and ``</s>``, including words that the
network does not know.

A network may also read features with each word: the topics of the text before the sentence, or the parts of
speech of the words so far. ``docs/decisions/feature-inputs.md`` says where they enter the network.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rescorer.models.language_model import spread_confidences
from rescorer.trie import SENTENCE_END, HypothesisTrie, Words, build_trie


def node_windows(trie: HypothesisTrie, size: int, start_word: int) -> np.ndarray:
    """Return the last ``size`` words on the path to each node, oldest first, (N, size) int64.

    Words are indices of the trie's words; positions before the start of a sentence have ``start_word``.
    """
    windows = np.full((trie.n_nodes, size), start_word, dtype=np.int64)
    for window, context in zip(windows, trie.contexts, strict=False):
        known = context[-size:]
        window[size - len(known) :] = known
    for level in trie.levels():
        windows[level, :-1] = windows[trie.parent[level], 1:]
        windows[level, -1] = trie.node_word[level]
    return windows


def distinct_rows(rows: np.ndarray, n_values: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct rows of a matrix, (U, size), and which of them each row of the matrix is, (N,).

    The values are from 0 to ``n_values`` - 1. Each row is packed into one integer, because integers sort many
    times faster than rows. Whenever the next column would overflow the integers, they are replaced by their
    ranks.
    """
    keys, bound = np.zeros(len(rows), dtype=np.int64), 1
    for values in rows.T:
        if bound > np.iinfo(np.int64).max // n_values:
            distinct, keys = np.unique(keys, return_inverse=True)
            bound = len(distinct)
        keys = keys * n_values + values
        bound *= n_values
    _, first, position = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], position


Rows = tuple[Tensor, ...]  # vectors and states after contexts, one context per row: (R, D), (R, H), …

BOOKKEEPING_BYTES = 1024
"""Largest size of the Python objects that index one row of a cache."""


class RowCache:
    """Rows of numbers by key, in bounded memory; the least recently used row is evicted first.

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
        """Return which keys are cached, (n,) bool, and their rows, (cached, width)."""
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

        If there is no room for all of them, the last ones are stored. If any value is not finite, no row is
        stored.
        """
        with self._lock:
            if self._table is None:
                width = rows.shape[1]
                n_slots = self.max_bytes // (width * rows.element_size() + BOOKKEEPING_BYTES)
                self._table = rows.new_empty(n_slots, width)
            table = self._table
            new = {key: position for position, key in enumerate(keys) if key not in self._slots}
            items = list(new.items())[max(0, len(new) - len(table)) :]
            if items and rows.isfinite().all():  # values that are not finite must not outlive their batch
                values = rows[[position for _, position in items]]
                table[[self._allocate(key) for key, _ in items]] = values

    def _allocate(self, key: Hashable) -> int:
        """Assign a row of the table to a new key; evict the least recently used key if the table is full."""
        slot = len(self._slots)
        if self._table is not None and slot == len(self._table):
            evicted, slot = self._slots.popitem(last=False)
            self._forget(evicted)
        self._slots[key] = slot
        return slot

    def _forget(self, key: Any) -> None:
        """Called when a key is evicted."""


class _Key(NamedTuple):
    """A digest of a context, so that the cache contains no texts."""

    first_word: int
    n_words: int
    digest: bytes


class ContextCache(RowCache):
    """Vectors and states of recurrent networks after whole contexts."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._lengths: dict[int, Counter[int]] = {}  # lengths of the cached contexts, by first word
        self._widths: tuple[int, ...] = ()  # of the vectors and states in a row

    def recall(self, contexts: Sequence[np.ndarray], start: Callable[[], Rows]) -> tuple[list[int], Rows]:
        """Look up the longest cached prefix of each context, an array of the model's word ids.

        Args:
            start: computes the vectors and states after the start word, if a context has no cached prefix.

        Returns:
            The number of words of each prefix, and the vectors and states after the prefixes.
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
        """Copy the vectors and states after whole contexts into the cache, except those already cached."""
        positions = [position for position, context in enumerate(contexts) if len(context)]
        keys = [_key(contexts[position], len(contexts[position])) for position in positions]
        self._widths = tuple(part.shape[1] for part in rows)
        self.store_rows(keys, torch.cat([part[positions] for part in rows], dim=1))

    def _longest_prefix(self, context: np.ndarray) -> _Key | None:
        """The key of the longest cached prefix of a context."""
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


class _Path(NamedTuple):
    """A sequence of words that a network reads from its initial state."""

    words: Words
    names: tuple[bytes, ...]  # for each word, a digest of the words before it: the cache keeps no texts


def read_past(
    trie: HypothesisTrie,
    carried: bool,
    cache: RowCache,
    read: Callable[[HypothesisTrie], tuple[Tensor, np.ndarray]],
) -> list[Tensor | None]:
    """Compute the vectors from which a network predicts the words said before the roots of a trie.

    A network that carries its state across sentences reads the past as one path. Any other network reads each
    sentence by itself, so that equal sentences are read once.

    Args:
        trie: a trie whose contexts include the previous utterances.
        carried: whether the network carries its state across sentences.
        cache: known vectors, each by a digest of the words that were read before it.
        read: returns the distinct context vectors of a trie, and the row of each node. The trie's paths may
            contain ``SENTENCE_END``.

    Returns:
        (T, D) float32 for each root that has a neural cache and a past; None for other roots.
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
    """Divide what was said into texts that a network reads from its start: one text if its state is carried,
    otherwise one per sentence, with the end of the sentence.
    """
    if carried:
        return [context] if len(context) else []
    parts = np.split(context, np.flatnonzero(context == end) + 1)
    return [part for part in parts if len(part)]


def _name_words(words: Words) -> tuple[bytes, ...]:
    """Return a name for the vector that predicts each word: a digest of the words before the word."""
    digest, names = blake2b(digest_size=16), []
    for word in words:
        names.append(digest.digest())
        digest.update(f"{word} ".encode("utf-8", "surrogatepass"))
    return tuple(names)


def _find_vectors(
    paths: Sequence[_Path], cache: RowCache, read: Callable[[HypothesisTrie], tuple[Tensor, np.ndarray]]
) -> tuple[Tensor, dict[bytes, int]]:
    """Look up or compute the distinct vectors of all paths, (U, D); return also the row of each name."""
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


class TagFilter(nn.Module):
    """A hidden Markov model of K induced tags, which estimates the tag of a word from the words so far.

    After each word, the network reads the features P(tag | words of the sentence so far) - 1/K. They depend
    on no later word, so that the network remains a left-to-right model. The parameters come from a trained
    tagger, and are not trained with the network.

    ``<s>`` and ``</s>`` have no tags: their rows in ``words`` are zero. After them, the features are zero and
    tags start again as in a new sentence. So it is after a word to which the tagger gives probability 0.
    """

    start: Tensor  # (K,) P(tag of the first word)
    transitions: Tensor  # (K, K) P(next tag | tag), one row per tag
    words: Tensor  # (V, K) P(tag | word) under even tags, which is proportional to P(word | tag)

    def __init__(self, n_tags: int, vocabulary_size: int) -> None:
        super().__init__()
        self.n_tags = n_tags
        self.register_buffer("start", torch.zeros(n_tags))
        self.register_buffer("transitions", torch.zeros(n_tags, n_tags))
        self.register_buffer("words", torch.zeros(vocabulary_size, n_tags))

    def initial(self, n: int) -> Tensor:
        """The probabilities of the first tag of n sentences, (n, K)."""
        return self.start.expand(n, -1)

    def read(self, expected: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Read one word of each of N texts.

        Args:
            expected: (N, K) probabilities of the word's tag, before the word is known.
            words: (N,) ids of the words.

        Returns:
            (N, K) features, and (N, K) probabilities of the next tag.
        """
        joint = expected * self.words[words]
        total = joint.sum(dim=1, keepdim=True)
        is_tagged = total > torch.finfo(joint.dtype).tiny
        posterior = joint / torch.where(is_tagged, total, torch.ones_like(total))
        features = torch.where(is_tagged, posterior - 1 / self.n_tags, torch.zeros_like(joint))
        return features, torch.where(is_tagged, posterior @ self.transitions, self.start)

    def read_texts(self, words: Tensor, expected: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Features after each word, (B, T) → (B, T, K); and after the last, P(next tag), (B, K)."""
        expected = self.initial(len(words)) if expected is None else expected
        features = expected.new_zeros(*words.shape, self.n_tags)
        for position, column in enumerate(words.t()):
            features[:, position], expected = self.read(expected, column)
        return features, expected

    def read_trie(self, trie: HypothesisTrie, ids: np.ndarray) -> tuple[Tensor, list[Tensor]]:
        """Features after the word of each node, (N, K); and for each root, after each word of its context.

        The features of a root are those after its whole context, or zero without context words. ``ids`` are
        the ids of the trie's words.
        """
        device = self.start.device
        features = torch.zeros(trie.n_nodes, self.n_tags, device=device)
        expected = torch.empty_like(features)
        in_contexts = []
        for root, context in enumerate(trie.contexts):
            words = torch.from_numpy(ids[context]).to(device)
            read, expected[root : root + 1] = self.read_texts(words[None])
            in_contexts.append(read[0])
            features[root] = read[0, -1] if len(context) else 0.0
        parent = torch.from_numpy(trie.parent).to(device)
        words = torch.from_numpy(ids[trie.node_word]).to(device)
        for level in trie.levels():
            features[level], expected[level] = self.read(expected[parent[level]], words[level])
        return features, in_contexts


UPDATES = 20  # number of updates of a mixture; a fixed number, so that a mixture does not depend on others
MIN_WEIGHT = 0.05  # words whose decayed weight is smaller are not read
CONTEXT_BLOCK = 32
"""Number of words per block of a context. All words of a block get the topics of the text before it."""
MAX_VALUES = 1 << 19
"""Number of values P(topic | word) to work on at once: 2 MB, which stay in a processor's cache."""
CACHE_BYTES = 1 << 24  # size of the cache of mixtures


def infer_mixtures(word_topics: Tensor, counts: Tensor) -> Tensor:
    """Infer the mixture θ of topics of each text, (N, K), with a Dirichlet prior of 1/K.

    Variational Bayes (Blei, Ng & Jordan 2003) updates γ_k = 1/K + Σ_w n_w φ_wk, where φ_wk ∝ P(k | w) exp
    ψ(γ_k) is the posterior probability that word w is of topic k. The mixture is γ / Σ_k γ_k, which is even
    for a text without topical words.

    Args:
        word_topics: (N, L, K) P(topic | word) under even topics, or zeros, for the words of each text.
        counts: (N, L) how often each word counts; need not be integers.
    """
    n_topics = word_topics.shape[2]
    gamma = torch.ones_like(word_topics[:, 0])
    tiny = torch.finfo(gamma.dtype).tiny
    for _ in range(UPDATES):
        expected = torch.digamma(gamma)  # E[ln θ] up to a constant, (N, K)
        weights = (expected - expected.amax(dim=1, keepdim=True)).exp()
        total = (word_topics @ weights.unsqueeze(2)).squeeze(2)  # (N, L)
        shares = counts / total.clamp(min=tiny)
        shares = torch.where(total > 0, shares, torch.zeros_like(shares))
        gamma = 1 / n_topics + weights * (shares.unsqueeze(1) @ word_topics).squeeze(1)
    return gamma / gamma.sum(dim=1, keepdim=True)


class TopicReader:
    """Computes the topic features of texts, θ - 1/K, from their last topical words, and caches them.

    Args:
        word_topics: (V, K) P(topic | word) under even topics; zeros for words that are not topical.
        decay: the n-th topical word from the end counts decay^n.
    """

    def __init__(self, word_topics: Tensor, decay: float) -> None:
        self._word_topics = word_topics.detach().cpu().float()
        self._is_topical = (self._word_topics > 0).any(dim=1).numpy()
        self.n_read = math.ceil(math.log(MIN_WEIGHT) / math.log(decay))
        """Number of topical words that are read."""
        self._weights = (decay ** torch.arange(self.n_read, dtype=torch.float64)).float()
        self._cache = RowCache(CACHE_BYTES)

    @property
    def n_topics(self) -> int:
        return self._word_topics.shape[1]

    def topical(self, words: np.ndarray) -> np.ndarray:
        """Whether each word is topical, that is, has topics: (n,) ids of the network → (n,) bool."""
        return self._is_topical[words]

    def features(self, texts: Sequence[np.ndarray]) -> Tensor:
        """Features of N texts, each an array of the network's word ids: (N, K) float32."""
        texts = [text[self.topical(text)][-self.n_read :] for text in texts]
        keys = [blake2b(np.ascontiguousarray(text).tobytes(), digest_size=16).digest() for text in texts]
        features = torch.zeros(len(texts), self.n_topics)
        is_cached, cached = self._cache.recall_rows(keys)
        if is_cached.any():
            features[torch.from_numpy(is_cached)] = cached
        unread = [i for i, text in enumerate(texts) if len(text) and not is_cached[i]]
        if unread:
            last = np.zeros((len(unread), self.n_read), dtype=np.int64)  # the last word first
            for row, i in zip(last, unread, strict=True):
                row[: len(texts[i])] = texts[i][::-1]
            lengths = np.array([len(texts[i]) for i in unread])
            features[unread] = self.read_last(last, lengths)
            self._cache.store_rows([keys[i] for i in unread], features[unread])
        return features

    def read_last(self, words: np.ndarray, lengths: np.ndarray) -> Tensor:
        """Features of texts, (N, K) float32, from the last topical words of each.

        Args:
            words: (N, n_read) ids of these words, the last word first.
            lengths: (N,) number of words that each text has, at most n_read.
        """
        exists = torch.arange(self.n_read) < torch.from_numpy(lengths)[:, None]
        counts = torch.where(exists, self._weights, torch.zeros_like(self._weights))
        rows = max(1, MAX_VALUES // (self.n_read * self.n_topics))
        parts = zip(torch.from_numpy(words).split(rows), counts.split(rows), strict=True)
        mixtures = torch.cat([infer_mixtures(self._word_topics[ids], part) for ids, part in parts])
        return mixtures - 1 / self.n_topics

    def block_features(self, contexts: Sequence[np.ndarray]) -> list[Tensor]:
        """For each context, features to read its words with: one row per block of ``CONTEXT_BLOCK`` words.

        The features of a block are the topics of the words before it. They do not depend on later words. So
        what a network has computed for a context remains valid when the context has grown.
        """
        starts = [range(0, len(context), CONTEXT_BLOCK) for context in contexts]
        before = [context[:start] for context, row in zip(contexts, starts, strict=True) for start in row]
        return list(self.features(before).split([len(row) for row in starts]))


CHUNK_VALUES = 1 << 20  # largest number of products of vectors that are held at once, 8 MB


def predict_from_past(
    trie: HypothesisTrie, vectors: Tensor, row_of_node: np.ndarray, past: Sequence[Tensor | None]
) -> np.ndarray:
    """P_cache of the word on each edge, (E,) float64; 0 for words that were not said before the root.

    Args:
        vectors: (U, D) distinct context vectors of the trie.
        row_of_node: (N,) row of each node's vector.
        past: for each root, (T, D) vectors from which the words said before it are predicted, or None: the
            result of ``read_past``.
    """
    probs = np.zeros(trie.n_edges)
    root_of_edge = trie.root_of_node[trie.edge_parent]
    order = np.argsort(root_of_edge, kind="stable")
    ends = np.cumsum(np.bincount(root_of_edge, minlength=trie.n_roots))
    for root, (edges, before) in enumerate(zip(np.split(order, ends[:-1]), past, strict=True)):
        if before is None:
            continue
        said, place = np.unique(trie.contexts[root], return_inverse=True)
        sure = spread_confidences(trie.contexts[root], trie.confidences[root], len(trie.words))
        edges = edges[np.isin(trie.edge_word[edges], said)]
        if not len(edges) or not sure.any():
            continue
        rows, row_of_edge = np.unique(row_of_node[trie.edge_parent[edges]], return_inverse=True)
        states = vectors.index_select(0, torch.from_numpy(rows).to(vectors.device))
        by_word = _sum_by_word(states.float(), before, trie.flatness[root], sure, place, len(said))
        probs[edges] = by_word[row_of_edge, np.searchsorted(said, trie.edge_word[edges])]
    return probs


def _sum_by_word(
    states: Tensor, before: Tensor, flatness: float, sure: np.ndarray, place: np.ndarray, n_words: int
) -> np.ndarray:
    """P_cache of each of W distinct words after each of U states: (U, D) → (U, W).

    Args:
        before: (T, D) vectors of the past.
        sure: (T,) confidence of each word of the past.
        place: (T,) index, among the W words, of each word of the past.
    """
    device, parts = states.device, []
    with np.errstate(divide="ignore"):
        log_sure = torch.from_numpy(np.log(sure)).to(device)
    index = torch.from_numpy(place).to(device)
    for chunk in states.split(max(1, CHUNK_VALUES // len(before))):
        alike = (chunk @ before.t()).double().mul_(flatness).add_(log_sure).softmax(dim=1)  # (n, T)
        parts.append(alike.new_zeros(len(chunk), n_words).index_add_(1, index, alike))
    return torch.cat(parts).cpu().numpy()

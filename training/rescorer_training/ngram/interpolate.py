"""Interpolate several n-gram models into one (static interpolation).

As with SRILM's ``ngram -mix-lm`` (Stolcke 2002), the resulting model has the union of the n-grams. Each
stored n-gram has the probability that the mixture assigns to it. For other n-grams the model backs off, with
recomputed weights, so that their probabilities differ from those of the mixture.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rescorer.lm.base import LanguageModel
from rescorer.vocabulary import END, START, UNKNOWN
from rescorer_training.ngram.backoff_model import (
    BackoffModel,
    NGramTrie,
    find_word_ids,
    load_backoff_model,
    pack_keys,
)


def interpolate_files(
    paths: Sequence[Path], models: Sequence[LanguageModel], shares: Sequence[float]
) -> BackoffModel:
    """Interpolate ARPA files or n-gram tables; the result knows all their words.

    Args:
        models: the same n-gram models, loaded, with aligned vocabularies.
        shares: interpolation weight λ of each.

    Raises:
        FormatError: a file cannot be read as a back-off model.
    """
    words = frozenset().union(*(model.vocabulary() for model in models))
    log_shares = [compute_unknown_log_shares(model, words) for model in models]
    loaded = [load_backoff_model(path, f"reading {path.name}") for path in paths]
    return interpolate(loaded, shares, log_shares)


def interpolate(
    models: Sequence[BackoffModel], shares: Sequence[float], log_shares: Sequence[Mapping[str, float]]
) -> BackoffModel:
    """Return one model with the union of the models' n-grams.

    Args:
        shares: interpolation weight λ of each model.
        log_shares: for each model, a dictionary with ``<unk>`` and the words that the model does not know.
            The values are ln of the share of the model's P(``<unk>``) that each of these gets. See
            ``compute_unknown_log_shares``.
    """
    trie = merge_tries([model.trie for model in models])
    prob = np.zeros(len(trie.word))
    for model, share, unknown_log_shares in zip(models, shares, log_shares, strict=True):
        word_share = np.exp([unknown_log_shares.get(word, 0.0) for word in trie.words])  # (V,)
        prob += share * word_share[trie.word] * score_ngrams(model, trie)
    return BackoffModel(trie, prob, np.ones_like(prob)).renormalise()


def merge_tries(tries: Sequence[NGramTrie]) -> NGramTrie:
    """Return the union of the n-grams of several tries, as one trie."""
    words = tuple(dict.fromkeys(itertools.chain.from_iterable(trie.words for trie in tries)))
    ids = {word: i for i, word in enumerate(words)}
    new_ids = [np.fromiter((ids[word] for word in trie.words), np.int32) for trie in tries]
    new_rows = [np.zeros(len(trie.word), np.int32) for trie in tries]
    bounds = [1]
    keys = [np.zeros(1, np.int64)]
    for n in range(1, max(trie.order for trie in tries) + 1):
        order_keys = []
        for trie, trie_new_rows, trie_new_ids in zip(tries, new_rows, new_ids, strict=True):
            rows = trie.rows(n) if n <= trie.order else slice(0, 0)
            prefix, word = trie_new_rows[trie.prefix[rows]], trie_new_ids[trie.word[rows]]
            order_keys.append((rows, trie_new_rows, pack_keys(prefix, word, len(words))))
        distinct = np.unique(np.concatenate([trie_keys for _, _, trie_keys in order_keys]))
        for rows, trie_new_rows, trie_keys in order_keys:
            trie_new_rows[rows] = bounds[-1] + np.searchsorted(distinct, trie_keys)
        keys.append(distinct)
        bounds.append(bounds[-1] + len(distinct))
    flat = np.concatenate(keys)
    prefix, word = np.divmod(flat, len(words))
    return NGramTrie(words, tuple(bounds), prefix.astype(np.int32), word.astype(np.int32))


def score_ngrams(model: BackoffModel, trie: NGramTrie) -> np.ndarray:
    """Compute the probability that a model assigns to each n-gram of another trie: (R,), 0 in row 0."""
    ids = find_word_ids(model, trie.words)
    prob = np.zeros(len(trie.word))
    state = np.zeros(len(trie.word), np.int32)  # the model's context after each n-gram
    for n in range(1, trie.order + 1):
        rows = trie.rows(n)
        prob[rows], state[rows] = model.follow(state[trie.prefix[rows]], ids[trie.word[rows]])
    return prob


def compute_unknown_log_shares(model: LanguageModel, words: Iterable[str]) -> dict[str, float]:
    """Compute, for ``<unk>`` itself and each of ``words``, ln of the share of P(``<unk>``) that it gets.

    The result does not include ``<s>``, ``</s>`` and words that the model knows.
    """
    known = model.vocabulary()
    lacking = (word for word in (UNKNOWN, *words) if word not in known and word not in (START, END))
    return {word: model.log_share(word) for word in lacking}

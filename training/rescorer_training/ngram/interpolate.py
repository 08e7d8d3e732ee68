"""Owns the mixing of n-gram models into one (static interpolation), and what each model adds to a mixture.

As SRILM's ``ngram -mix-lm`` (Stolcke 2002): the union of the n-grams, each with the mixture's probability,
and back-off weights anew. Where an n-gram is stored the result equals the mixture of the models; elsewhere
it backs off, which the mixture does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.lm.base import LanguageModel
from rescorer.vocabulary import END, START, UNKNOWN
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.perplexity import perplexity
from rescorer_training.evaluation.token_scores import TokenScores
from rescorer_training.ngram.backoff_model import BackoffModel, NGramTrie, pair_keys, word_ids


@dataclass(frozen=True, slots=True)
class Member:
    """One model of a mixture."""

    share: float
    """λ, fitted on the validation text."""
    alone: float
    """Its perplexity there."""
    without: float | None
    """The perplexity of the mixture of the others, with λ fitted anew; None where there are no others."""


def members(scores: TokenScores, shares: Mapping[str, float]) -> dict[str, Member]:
    """What each model is worth on the text that λ were fitted on."""

    def without(name: str) -> float | None:
        others = {key: values for key, values in scores.log_probs.items() if key != name}
        return perplexity(scores.mix(fit_mixture(others))) if others else None

    return {
        name: Member(share, perplexity(scores.log_probs[name]), without(name))
        for name, share in shares.items()
    }


def interpolate(
    models: Sequence[BackoffModel], shares: Sequence[float], log_shares: Sequence[Mapping[str, float]]
) -> BackoffModel:
    """One model with the union of the n-grams.

    Args:
        shares: λ of each model.
        log_shares: for each model, ln of the part of its P(``<unk>``) that each word it lacks gets, and that
            ``<unk>`` itself keeps; nothing for the words it knows.
    """
    trie = union([model.trie for model in models])
    prob = np.zeros(len(trie.word))
    for model, share, parts in zip(models, shares, log_shares, strict=True):
        part = np.exp([parts.get(word, 0.0) for word in trie.words])  # (V,)
        prob += share * part[trie.word] * probs_over(model, trie)
    return BackoffModel(trie, prob, np.ones_like(prob)).renormalised()


def union(tries: Sequence[NGramTrie]) -> NGramTrie:
    """The n-grams that one trie or another has."""
    words = tuple(dict.fromkeys(itertools.chain.from_iterable(trie.words for trie in tries)))
    ids = {word: i for i, word in enumerate(words)}
    new_ids = [np.fromiter((ids[word] for word in trie.words), np.int32) for trie in tries]
    new_rows = [np.zeros(len(trie.word), np.int32) for trie in tries]
    bounds = [1]
    keys = [np.zeros(1, np.int64)]
    for n in range(1, max(trie.order for trie in tries) + 1):
        of_tries = []
        for trie, row, new in zip(tries, new_rows, new_ids, strict=True):
            rows = trie.rows(n) if n <= trie.order else slice(0, 0)
            of_tries.append((rows, row, pair_keys(row[trie.prefix[rows]], new[trie.word[rows]], len(words))))
        distinct = np.unique(np.concatenate([each for _, _, each in of_tries]))
        for rows, row, each in of_tries:
            row[rows] = bounds[-1] + np.searchsorted(distinct, each)
        keys.append(distinct)
        bounds.append(bounds[-1] + len(distinct))
    flat = np.concatenate(keys)
    prefix, word = np.divmod(flat, len(words))
    return NGramTrie(words, tuple(bounds), prefix.astype(np.int32), word.astype(np.int32))


def probs_over(model: BackoffModel, trie: NGramTrie) -> np.ndarray:
    """What a model gives to each n-gram of another trie, stored or backed off: (R,), 0 in row 0."""
    ids = word_ids(model, trie.words)
    prob = np.zeros(len(trie.word))
    state = np.zeros(len(trie.word), np.int32)  # the model's row after each n-gram
    for n in range(1, trie.order + 1):
        rows = trie.rows(n)
        prob[rows], state[rows] = model.follow(state[trie.prefix[rows]], ids[trie.word[rows]])
    return prob


def unknown_shares(model: LanguageModel, words: Iterable[str]) -> dict[str, float]:
    """ln of the part of a model's ``<unk>`` that ``<unk>`` itself, and each of some words it lacks, has."""
    known = model.vocabulary()
    lacking = (word for word in (UNKNOWN, *words) if word not in known and word not in (START, END))
    return {word: model.log_share(word) for word in lacking}

"""Owns relative-entropy pruning of a back-off model, Stolcke (1998), "Entropy-based pruning of backoff
language models": n-grams go whose loss changes the model's distributions least.

The loss of (h, w) is P(h) times the divergence between P(· | h) and what it becomes. In a Kneser-Ney model
the chain of lower-order probabilities is no P(h), for those count contexts, not occurrences, and pruning
by it ruins the model (Chelba et al. 2010, "Study on interaction between entropy pruning and Kneser-Ney
smoothing"). Two histories are right for it: counts of the training text, and the stationary distribution of
the model itself, which needs no text.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from rescorer.errors import ConfigError
from rescorer.vocabulary import END, START
from rescorer_training.ngram.backoff_model import BackoffModel
from rescorer_training.ngram.counts import NGramCounts, count_ngrams

logger = logging.getLogger(__name__)

HISTORIES = ("stationary", "counts", "model")
STATIONARY_TOLERANCE = 1e-4
"""Stop when no more probability than this moves in a round."""
MOST_ROUNDS = 100
BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class Pruning:
    """What was done."""

    threshold: float
    kept: tuple[int, ...]
    """N-grams of each order."""


def prune(
    model: BackoffModel, history: np.ndarray, *, threshold: float | None = None, keep: int | None = None
) -> tuple[BackoffModel, Pruning]:
    """Drops n-grams of orders above 1 and renormalises what is left.

    Args:
        history: (R,) P(h) of each row as a context.
        threshold: drop an n-gram where it changes the training perplexity by a smaller part, as SRILM's
            ``-prune``.
        keep: instead, the threshold that leaves about so many n-grams, at most.

    Raises:
        ConfigError: not one of the two is given, or fewer n-grams are to be kept than there are words.
    """
    if (threshold is None) == (keep is None):
        raise ConfigError("give either a threshold or the number of n-grams to keep")
    changes, left = perplexity_changes(model, history)
    if threshold is None:
        threshold = threshold_for(model, changes, int(keep or 0))
    kept = survivors(model, changes, threshold)
    dropped = np.flatnonzero(~kept)
    left += np.bincount(model.trie.prefix[dropped], weights=model.prob[dropped], minlength=len(left))
    trie = model.trie.kept(kept)
    smaller = BackoffModel(trie, model.prob[kept], model.backoff[kept]).renormalised(left[kept])
    sizes = tuple(int(n) for n in np.diff(trie.bounds))
    return smaller, Pruning(threshold, sizes)


def perplexity_changes(model: BackoffModel, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By what part the perplexity rises without each n-gram, and what each context leaves to back off with.

    Returns:
        (R,) e^D - 1, infinite for unigrams, which stay; and (R,) 1 - Σ of the n-grams that continue a row.
    """
    changes = np.full(len(model.prob), np.inf)
    left = np.ones(len(model.prob))
    for n in range(2, model.trie.order + 1):
        rows, contexts = model.trie.rows(n), model.trie.rows(n - 1)
        context = model.trie.prefix[rows]
        lower = model.lower_probs(n)
        lower_left = model.left_over(n, lower)  # (N_{n-1},)
        left[contexts] = model.backoff[contexts] * lower_left  # more digits than 1 - Σ P
        changes[rows] = _changes(
            np.maximum(model.prob[rows], 1e-99),
            np.maximum(lower, 1e-99),
            np.maximum(left[context], 1e-99),
            lower_left[context - contexts.start],
            history[context],
        )
    return changes, left


def _changes(
    prob: np.ndarray, lower: np.ndarray, left: np.ndarray, lower_left: np.ndarray, history: np.ndarray
) -> np.ndarray:
    """Equation 5 of the paper for n-grams of one order, (N,) each: e^D - 1."""
    log_backoff = np.log(left / lower_left)
    log_new_backoff = np.log((left + prob) / (lower_left + lower))
    moved = prob * (np.log(lower) + log_new_backoff - np.log(prob)) + left * (log_new_backoff - log_backoff)
    return np.expm1(-history * moved)


def survivors(model: BackoffModel, changes: np.ndarray, threshold: float) -> np.ndarray:
    """(R,) bool: the n-grams at or above the threshold, and every prefix and suffix of one that stays.

    Backing off needs the prefixes. KenLM's tables have only a little room for suffixes that are missing, and
    it refuses a model that lacks more.
    """
    keep = changes >= threshold
    keep[0] = True
    for n in range(model.trie.order, 2, -1):
        rows = model.trie.rows(n)
        for shorter in (model.trie.prefix, model.trie.suffix):
            keep[shorter[rows][keep[rows]]] = True
    return keep


def threshold_for(model: BackoffModel, changes: np.ndarray, keep: int) -> float:
    """The smallest threshold that leaves at most ``keep`` n-grams, by bisection."""
    n_words = model.trie.bounds[1] - 1
    if keep < n_words:
        raise ConfigError(f"{keep:,} n-grams are to be kept; expected at least its {n_words:,} words")
    low, high = 0, len(changes) - n_words - 1
    ranked = np.append(np.sort(changes[model.trie.bounds[1] :]), np.inf)
    while low < high:
        middle = (low + high) // 2
        if survivors(model, changes, ranked[middle]).sum() - 1 <= keep:
            high = middle
        else:
            low = middle + 1
    return float(ranked[low])


def model_history(model: BackoffModel) -> np.ndarray:
    """P(h) as the chain of the model's own probabilities, (R,): Stolcke's, wrong for Kneser-Ney.

    ``<s>`` stands as often as ``</s>``.
    """
    history = np.ones(len(model.prob))
    rows = model.trie.rows(1)
    history[rows] = model.prob[rows]
    start, end = (1 + model.trie.words.index(mark) for mark in (START, END))
    history[start] = history[end]
    for n in range(2, model.trie.order):
        rows = model.trie.rows(n)
        history[rows] = history[model.trie.prefix[rows]] * model.prob[rows]
    return history


def count_history(model: BackoffModel, ids: np.ndarray) -> np.ndarray:
    """P(h) as the share of the text's tokens before which h stands, (R,).

    Args:
        ids: (T,) the training text in the model's word ids, every sentence closed by ``</s>``.
    """
    trie = model.trie
    start, end = trie.words.index(START), trie.words.index(END)
    tables = count_ngrams(ids, max(1, trie.order - 1), n_words=len(trie.words), begin=start, end=end)
    history = np.zeros(len(model.prob))
    history[0] = 1.0
    row = np.zeros(1, np.int64)  # the trie's row of each n-gram of the order below, 0 where it has none
    for n, table in enumerate(tables, start=1):
        row = _rows_of(model, table, row, n)
        history[row[row > 0]] = table.count[row > 0] / len(ids)
    return history


def _rows_of(model: BackoffModel, table: NGramCounts, below: np.ndarray, order: int) -> np.ndarray:
    """The trie's row of each n-gram of a table, 0 where it has none: (N,)."""
    if order == 1:
        return 1 + table.word.astype(np.int64)
    context = below[table.prefix]
    return np.where(context > 0, model.trie.find(context, table.word), 0)


def stationary_history(model: BackoffModel, progress: str = "") -> np.ndarray:
    """P(h) in endless text that the model itself makes, (R,): the stationary distribution of its states.

    A state is the longest stored suffix of what was said; ``</s>`` leads to ``<s>``. One round moves the
    probability of every state along its n-grams, and what it leaves along the shorter context, less what
    that would give to words that are stored.

    Args:
        progress: names the bar that is shown, empty for none.
    """
    trie = model.trie
    lower = [np.empty(0)] * 2 + [model.lower_probs(n) for n in range(2, trie.order + 1)]
    states = _settled(model, model_history(model) * (trie.word != trie.words.index(END)))
    rounds = tqdm(range(MOST_ROUNDS), progress, leave=False, disable=None if progress else True)
    for _ in rounds:
        before, states = states, _settled(model, _one_round(model, states, lower))
        if (moved := np.abs(states - before).sum()) < STATIONARY_TOLERANCE:
            rounds.close()
            break
    else:
        logger.warning("the stationary distribution still moves by %.2g after %d rounds", moved, MOST_ROUNDS)
    for n in range(trie.order, 0, -1):  # a shorter context stands wherever a longer one ends with it
        rows = trie.rows(n)
        states[: rows.start] += np.bincount(trie.suffix[rows], weights=states[rows], minlength=rows.start)
    return states


def _one_round(model: BackoffModel, states: np.ndarray, lower: list[np.ndarray]) -> np.ndarray:
    """Where the probability of all states is one word later, (R,)."""
    trie = model.trie
    here, after = states.copy(), np.zeros_like(states)
    for n in range(trie.order, -1, -1):  # contexts of n words, and what they leave to shorter ones
        contexts = trie.rows(n) if n else slice(0, 1)
        backed_off = here[contexts] * model.backoff[contexts]
        if n < trie.order:
            rows = trie.rows(n + 1)
            after[rows] += here[trie.prefix[rows]] * model.prob[rows]
            if n:
                too_much = backed_off[trie.prefix[rows] - contexts.start] * lower[n + 1]
                after[: rows.start] -= np.bincount(trie.suffix[rows], weights=too_much, minlength=rows.start)
        if n:
            here[: contexts.start] += np.bincount(
                trie.suffix[contexts], weights=backed_off, minlength=contexts.start
            )
    return after


def _settled(model: BackoffModel, states: np.ndarray) -> np.ndarray:
    """The probability of all that ended moved to ``<s>``, rounding's negatives gone, the sum 1."""
    trie = model.trie
    ended = trie.word == trie.words.index(END)
    ended[0] = False
    states = np.maximum(states, 0.0)
    states[0] = 0.0
    states[1 + trie.words.index(START)] += states[ended].sum()
    states[ended] = 0.0
    return states / states.sum()

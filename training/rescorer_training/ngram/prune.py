"""Change n-gram models: prune by relative entropy, and interpolate several into one.

Pruning removes the n-grams whose removal changes the model least (Stolcke 1998, "Entropy-based pruning of
backoff language models"). The cost of removing (h, w) is P(h) times the divergence between P(· | h) with and
without the n-gram. Stolcke computes P(h) as a product of lower-order probabilities. This is wrong for
Kneser-Ney models, whose lower orders are estimated from counts of contexts rather than of occurrences, and
ruins them (Chelba et al. 2010, "Study on interaction between entropy pruning and Kneser-Ney smoothing"). Two
estimates of P(h) are right for all models: counts of the training text; and the stationary distribution of
the model, for which no text is needed.

Interpolation is static, as with SRILM's ``ngram -mix-lm`` (Stolcke 2002): the resulting model has the n-grams
of all models, each with its probability under the mixture. For all other n-grams, the model backs off with
recomputed weights, so that their probabilities differ from those of the mixture.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError
from rescorer.models.language_model import LanguageModel
from rescorer.models.network_files import END, START, UNKNOWN
from rescorer.progress import track
from rescorer_training.ngram.backoff_model import BackoffModel, NGramTrie, load_backoff_model
from rescorer_training.ngram.smoothing import count_ngrams, pack_keys

logger = logging.getLogger(__name__)

HISTORIES = ("stationary", "counts", "model")
STATIONARY_TOLERANCE = 1e-4
"""The stationary distribution has converged if a round moves less probability than this."""
MAX_ROUNDS = 100
"""Maximum number of rounds to compute the stationary distribution."""


@dataclass(frozen=True, slots=True)
class PruningResult:
    """Threshold and size of a pruned model."""

    threshold: float
    """N-grams were kept if their removal would raise the perplexity by at least this share."""
    kept: tuple[int, ...]
    """Number of n-grams of each order."""


def prune(
    model: BackoffModel, history: np.ndarray, *, threshold: float | None = None, keep: int | None = None
) -> tuple[BackoffModel, PruningResult]:
    """Remove n-grams of orders above 1 and renormalise the rest.

    Args:
        history: (R,) P(h) of each row as a context.
        threshold: prune an n-gram if its removal raises the training perplexity by a smaller relative amount,
            like SRILM's ``-prune``.
        keep: maximum number of n-grams to keep, instead of a threshold.

    Raises:
        ConfigError: both or none of ``threshold`` and ``keep`` are given, or ``keep`` is less than the
            number of words.
    """
    if (threshold is None) == (keep is None):
        raise ConfigError("give either a threshold or the number of n-grams to keep")
    changes, left_over = compute_perplexity_changes(model, history)
    if threshold is None:
        threshold = find_threshold(model, changes, int(keep or 0))
    kept = select_survivors(model, changes, threshold)
    pruned = np.flatnonzero(~kept)
    left_over += np.bincount(model.trie.prefix[pruned], weights=model.prob[pruned], minlength=len(left_over))
    trie = model.trie.select(kept)
    smaller = BackoffModel(trie, model.prob[kept], model.backoff[kept]).renormalise(left_over[kept])
    sizes = tuple(int(n) for n in np.diff(trie.bounds))
    return smaller, PruningResult(threshold, sizes)


def compute_perplexity_changes(model: BackoffModel, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute how much the removal of each n-gram would raise the perplexity.

    Returns:
        (R,) relative rise e^D - 1, infinite for unigrams, which are always kept; and (R,) the probability
        mass that each row, as a context, leaves for backing off, 1 - Σ P over the stored n-grams.
    """
    changes = np.full(len(model.prob), np.inf)
    left_over = np.ones(len(model.prob))
    for n in range(2, model.trie.order + 1):
        rows, contexts = model.trie.rows(n), model.trie.rows(n - 1)
        context = model.trie.prefix[rows]
        lower = model.compute_lower_order_probs(n)
        lower_left_over = model.compute_left_over_mass(n, lower)  # (N_{n-1},)
        left_over[contexts] = model.backoff[contexts] * lower_left_over  # more precise than 1 - Σ P
        changes[rows] = _compute_changes(
            np.maximum(model.prob[rows], 1e-99),
            np.maximum(lower, 1e-99),
            np.maximum(left_over[context], 1e-99),
            lower_left_over[context - contexts.start],
            history[context],
        )
    return changes, left_over


def _compute_changes(
    prob: np.ndarray,
    lower: np.ndarray,
    left_over: np.ndarray,
    lower_left_over: np.ndarray,
    history: np.ndarray,
) -> np.ndarray:
    """Compute e^D - 1 for n-grams of one order, (N,) each, by Stolcke's equation 5."""
    log_backoff = np.log(left_over / lower_left_over)
    log_new_backoff = np.log((left_over + prob) / (lower_left_over + lower))
    moved = prob * (np.log(lower) + log_new_backoff - np.log(prob))
    moved += left_over * (log_new_backoff - log_backoff)
    return np.expm1(-history * moved)


def select_survivors(model: BackoffModel, changes: np.ndarray, threshold: float) -> np.ndarray:
    """Select the n-grams at or above the threshold, and every prefix and suffix of a selected n-gram.

    Backing off needs the prefixes. The suffixes are for KenLM, which rejects a model if more than a few of
    them are missing.

    Returns:
        (R,) bool.
    """
    keep = changes >= threshold
    keep[0] = True
    for n in range(model.trie.order, 2, -1):
        rows = model.trie.rows(n)
        for shorter in (model.trie.prefix, model.trie.suffix):
            keep[shorter[rows][keep[rows]]] = True
    return keep


def find_threshold(model: BackoffModel, changes: np.ndarray, keep: int) -> float:
    """Find the smallest threshold that keeps at most ``keep`` n-grams, by bisection.

    Raises:
        ConfigError: ``keep`` is less than the number of words.
    """
    n_words = model.trie.bounds[1] - 1
    if keep < n_words:
        raise ConfigError(
            f"cannot keep only {keep:,} n-grams: expected at least one for each of the {n_words:,} words"
        )
    low, high = 0, len(changes) - n_words - 1
    ranked = np.append(np.sort(changes[model.trie.bounds[1] :]), np.inf)
    while low < high:
        middle = (low + high) // 2
        if select_survivors(model, changes, ranked[middle]).sum() - 1 <= keep:
            high = middle
        else:
            low = middle + 1
    return float(ranked[low])


def compute_model_history(model: BackoffModel) -> np.ndarray:
    """Compute P(h) as the product of the model's own probabilities, like Stolcke (1998).

    This is wrong for Kneser-Ney models. ``<s>`` gets the probability of ``</s>``.

    Returns:
        (R,) float64.
    """
    history = np.ones(len(model.prob))
    rows = model.trie.rows(1)
    history[rows] = model.prob[rows]
    start, end = (1 + model.trie.words.index(special) for special in (START, END))
    history[start] = history[end]
    for n in range(2, model.trie.order):
        rows = model.trie.rows(n)
        history[rows] = history[model.trie.prefix[rows]] * model.prob[rows]
    return history


def compute_count_history(model: BackoffModel, ids: np.ndarray) -> np.ndarray:
    """Compute P(h) as the fraction of the training text's tokens whose context is h.

    Args:
        ids: (T,) the text in the model's word ids, every sentence closed by ``</s>``.

    Returns:
        (R,) float64.
    """
    trie = model.trie
    start, end = trie.words.index(START), trie.words.index(END)
    tables = count_ngrams(ids, max(1, trie.order - 1), n_words=len(trie.words), start_id=start, end_id=end)
    history = np.zeros(len(model.prob))
    history[0] = 1.0
    row = np.zeros(1, np.int64)  # row in the trie of each n-gram one order lower; 0 if it is not stored
    for n, table in enumerate(tables, start=1):
        context = row[table.prefix]
        row = np.where((context > 0) | (n == 1), trie.find(context, table.word), 0)
        history[row[row > 0]] = table.count[row > 0] / len(ids)
    return history


def compute_stationary_history(model: BackoffModel, progress: str = "") -> np.ndarray:
    """Compute P(h) in an endless text that the model generates: the stationary distribution of its states.

    A state is the longest stored suffix of the words so far; ``</s>`` leads to ``<s>``. One round moves the
    text on by one word: the probability of a state goes to the states that its stored n-grams lead to. The
    rest, for words without a stored n-gram, goes to the state of the shorter context, as in backing off.

    Returns:
        (R,) float64.
    """
    trie = model.trie
    lower = [np.empty(0)] * 2 + [model.compute_lower_order_probs(n) for n in range(2, trie.order + 1)]
    states = _restart_ended(model, compute_model_history(model) * (trie.word != trie.words.index(END)))
    with track(progress, "rounds", MAX_ROUNDS) as task:
        for _ in range(MAX_ROUNDS):
            before, states = states, _restart_ended(model, _advance_one_word(model, states, lower))
            task.advance()
            if (moved := np.abs(states - before).sum()) < STATIONARY_TOLERANCE:
                break
        else:
            logger.warning(
                "the stationary distribution still moves by %.2g after %d rounds", moved, MAX_ROUNDS
            )
    for n in range(trie.order, 0, -1):  # a shorter context occurs wherever a longer one ends with it
        rows = trie.rows(n)
        states[: rows.start] += np.bincount(trie.suffix[rows], weights=states[rows], minlength=rows.start)
    return states


def _advance_one_word(model: BackoffModel, states: np.ndarray, lower: list[np.ndarray]) -> np.ndarray:
    """Compute the probabilities of all states one word later, (R,).

    Args:
        lower: for each order, the result of ``compute_lower_order_probs``.
    """
    trie = model.trie
    here, after = states.copy(), np.zeros_like(states)
    for n in range(trie.order, -1, -1):  # contexts of n words
        contexts = trie.rows(n) if n else slice(0, 1)
        backed_off = here[contexts] * model.backoff[contexts]
        if n < trie.order:
            rows = trie.rows(n + 1)
            after[rows] += here[trie.prefix[rows]] * model.prob[rows]
            if n:
                excess = backed_off[trie.prefix[rows] - contexts.start] * lower[n + 1]
                after[: rows.start] -= np.bincount(trie.suffix[rows], weights=excess, minlength=rows.start)
        if n:
            here[: contexts.start] += np.bincount(
                trie.suffix[contexts], weights=backed_off, minlength=contexts.start
            )
    return after


def _restart_ended(model: BackoffModel, states: np.ndarray) -> np.ndarray:
    """Move the probability of states that end with ``</s>`` to ``<s>``, and normalise."""
    trie = model.trie
    ended = trie.word == trie.words.index(END)
    ended[0] = False
    states = np.maximum(states, 0.0)
    states[0] = 0.0
    states[1 + trie.words.index(START)] += states[ended].sum()
    states[ended] = 0.0
    return states / states.sum()


def interpolate_files(
    paths: Sequence[Path], models: Sequence[LanguageModel], shares: Sequence[float]
) -> BackoffModel:
    """Interpolate ARPA files or n-gram tables; the result knows all their words.

    Args:
        models: the models of these files, loaded for scoring, with aligned vocabularies.
        shares: interpolation weight λ of each model.

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
        log_shares: for each model, its shares of P(``<unk>``), the result of
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
    known = {word: i for i, word in enumerate(model.trie.words)}
    ids = np.array([known.get(word, known[UNKNOWN]) for word in trie.words], np.int32)
    prob = np.zeros(len(trie.word))
    state = np.zeros(len(trie.word), np.int32)  # the model's context after each n-gram
    for n in range(1, trie.order + 1):
        rows = trie.rows(n)
        prob[rows], state[rows] = model.follow(state[trie.prefix[rows]], ids[trie.word[rows]])
    return prob


def compute_unknown_log_shares(model: LanguageModel, words: Iterable[str]) -> dict[str, float]:
    """Compute ln of the share of P(``<unk>``) that ``<unk>`` itself and each unknown word get.

    Args:
        words: words to look at; ``<s>``, ``</s>`` and words that the model knows are left out of the result.
    """
    known = model.vocabulary()
    lacking = (word for word in (UNKNOWN, *words) if word not in known and word not in (START, END))
    return {word: model.log_share(word) for word in lacking}

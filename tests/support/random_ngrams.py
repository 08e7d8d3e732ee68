"""Random back-off models as ARPA text, and a slow, obvious scorer of such models."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rescorer.models.network_files import END, START, UNKNOWN
from rescorer.trie import Words

WORDS = ("a", "b", "c", "d", "e")
Orders = list[dict[Words, tuple[float, float]]]
"""For each order, log10 probability and log10 back-off weight by n-gram."""


def random_orders(seed: int, order: int, *, unknown: bool = True, gaps: bool = False) -> Orders:
    """Draw the n-grams of random sentences, with random values.

    Args:
        unknown: whether ``<unk>`` is a word of the model.
        gaps: leave out some n-grams that are contexts or ends of longer ones, as some tools do.
    """
    random = np.random.default_rng(seed)
    vocabulary = [*WORDS, *([UNKNOWN] if unknown else [])]
    orders: Orders = [
        {(word,): (0.0, 0.0) for word in (START, END, *vocabulary)},
        *({} for _ in range(order - 1)),
    ]
    for _ in range(int(random.integers(1, 12))):
        sentence = (START, *random.choice(vocabulary, size=random.integers(0, 8)).tolist(), END)
        for n in range(2, order + 1):
            ngrams = (sentence[i : i + n] for i in range(len(sentence) - n + 1))
            orders[n - 1].update((ngram, (0.0, 0.0)) for ngram in ngrams)
    for n, ngrams in enumerate(orders, 1):
        for ngram in list(ngrams):
            prob, backoff = -random.exponential(), random.normal(scale=0.5) * (random.random() < 0.7)
            ngrams[ngram] = float(np.float32(prob)), float(np.float32(backoff)) if n < order else 0.0
            if gaps and 1 < n < order and random.random() < 0.2:
                del ngrams[ngram]
    return orders


def format_arpa(orders: Orders, without_zeros: bool = False) -> str:
    """Write a model as ARPA text.

    Args:
        without_zeros: leave out back-off weights of 0, which leaves lines with and without one.
    """
    lines = ["\\data\\", *(f"ngram {n}={len(ngrams)}" for n, ngrams in enumerate(orders, 1))]
    for n, ngrams in enumerate(orders, 1):
        lines += ["", f"\\{n}-grams:"]
        for ngram, (prob, backoff) in ngrams.items():
            weight = "" if n == len(orders) or (without_zeros and backoff == 0) else f"\t{backoff!r}"
            lines.append(f"{prob!r}\t{' '.join(ngram)}{weight}")
    return "\n".join([*lines, "", "\\end\\", ""])


def write_random_arpa(path: Path, orders: Orders, without_zeros: bool = False) -> Path:
    path.write_text(format_arpa(orders, without_zeros), encoding="utf-8")
    return path


def katz_log10_probs(orders: Orders, words: Words, context: Words = (), skip: int = 0) -> list[float]:
    """log10 P of each word and of ``</s>`` after a context, by Katz's recursion over dictionaries.

    Args:
        skip: number of words between what an n-gram sees and the word that it predicts.
    """
    known = {ngram[0] for ngram in orders[0]} - {START, END}
    starts = (START,) * (1 + skip)
    text = (*starts, *(word if word in known else UNKNOWN for word in (*context, *words)), END)
    return [
        _katz(orders, text[max(0, i - skip - len(orders) + 1) : i - skip], text[i])
        for i in range(1 + skip + len(context), len(text))
    ]


def _katz(orders: Orders, context: Words, word: str) -> float:
    ngram = (*context, word)
    if ngram in orders[len(context)]:
        return orders[len(context)][ngram][0]
    if not context:
        return -100.0  # <unk> is missing
    backoff = orders[len(context) - 1].get(context, (0.0, 0.0))[1]
    return backoff + _katz(orders, context[1:], word)

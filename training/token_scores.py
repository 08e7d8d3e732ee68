"""Owns what several models give to every token of a text, ln P token by token, over the same tries that
rescoring works on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from rescorer.errors import FormatError
from rescorer.lm.base import LanguageModel
from rescorer.lm.mixture import mix
from rescorer.pipeline import MAX_BATCH_WORDS, budget_cuts
from rescorer.trie import Words, build_trie


@dataclass(frozen=True)
class TokenScores:
    """Scores of T tokens, every word and every ``</s>`` of S sentences, by model."""

    lengths: np.ndarray
    """(S,) int64 tokens of each sentence."""
    log_probs: Mapping[str, np.ndarray]
    """(T,) float64 ln P over the union of the models' vocabularies: a word that one of them lacks has its
    part of that model's ``<unk>``."""
    unknown: Mapping[str, np.ndarray]
    """(T,) bool, the model lacks the word."""
    log_shares: Mapping[str, np.ndarray]
    """(T,) float64 ln of the part of P(``<unk>``) that is the word's; 0 where the model knows it."""

    def mixed(self, shares: Mapping[str, float]) -> np.ndarray:
        """ln Σ_m λ_m · P_m, (T,)."""
        return mix([self.log_probs[name] for name in shares], list(shares.values()))

    def of_sentences(self, log_probs: np.ndarray) -> np.ndarray:
        """Sums over each sentence of (T,) values, (S,) float64."""
        return np.add.reduceat(log_probs, np.cumsum(self.lengths) - self.lengths)


def score_tokens(
    models: Mapping[str, LanguageModel], sentences: Sequence[Words], progress: str = ""
) -> TokenScores:
    """Scores every sentence from its start, by every model.

    Args:
        progress: names the bar that is shown, empty for none.

    Raises:
        FormatError: there is no sentence.
    """
    if not sentences:
        raise FormatError("no words in the text to score")
    costs = [len(words) + 1 for words in sentences]
    parts: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {name: [] for name in models}
    with tqdm(
        desc=progress, total=sum(costs), unit=" words", unit_scale=True, leave=False,
        disable=None if progress else True,
    ) as bar:  # fmt: skip
        for begin, end in budget_cuts(costs, MAX_BATCH_WORDS):
            trie = build_trie(sentences[begin:end])
            edges = np.concatenate([trie.path_edges(i) for i in range(end - begin)])
            words = trie.edge_word[edges]
            for name, model in models.items():
                scores = model.score(trie)
                shares = np.array([*(model.log_share(word) for word in trie.words), 0.0])
                parts[name].append((scores.log_probs[edges], scores.unknown[edges], shares[words]))
            bar.update(len(edges))
    joined = {
        name: [np.concatenate(column) for column in zip(*rows, strict=True)] for name, rows in parts.items()
    }
    by_column = [{name: columns[i] for name, columns in joined.items()} for i in range(3)]
    return TokenScores(np.array(costs), *by_column)


def perplexity(log_probs: np.ndarray) -> float:
    """exp of the mean −ln P."""
    return math.exp(-math.fsum(log_probs) / len(log_probs))

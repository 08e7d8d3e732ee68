"""Log-probabilities that several models assign to every token of a text, computed over the same tries as
rescoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import FormatError, ScoringError
from rescorer.lm.base import LanguageModel
from rescorer.lm.mixture import mix
from rescorer.pipeline import MAX_BATCH_WORDS
from rescorer.scoring.batch import plan_batches
from rescorer.trie import Words, build_trie
from rescorer_training.progress import ProgressTask, track


@dataclass(frozen=True)
class TokenScores:
    """Scores of a text by model. Its T tokens are all words and one ``</s>`` for each of its S sentences."""

    lengths: np.ndarray
    """(S,) int64 number of tokens in each sentence."""
    log_probs: Mapping[str, np.ndarray]
    """(T,) float64 ln P over the union of the models' vocabularies: a word that a model does not know gets
    its share of that model's ``<unk>``."""
    unknown: Mapping[str, np.ndarray]
    """(T,) bool, True where the model does not know the word."""
    log_shares: Mapping[str, np.ndarray]
    """(T,) float64 ln of the share of P(``<unk>``) that the word gets; 0 where the model knows the word."""
    backward: frozenset[str] = frozenset()
    """Names of the backward models, whose last token of a sentence is its start instead of its end."""

    def mix(self, shares: Mapping[str, float]) -> np.ndarray:
        """Return the mixture's log-probabilities ln Σ_m λ_m · P_m, (T,), for interpolation weights λ."""
        return mix([self.log_probs[name] for name in shares], list(shares.values()))

    @property
    def has_both_directions(self) -> bool:
        """Whether there are forward and backward models."""
        return 0 < len(self.backward) < len(self.log_probs)

    def average_directions(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Average (T,) values by model over the models of each direction, then over both directions: (T,)."""
        backward = [part for name, part in values.items() if name in self.backward]
        forward = [part for name, part in values.items() if name not in self.backward]
        mean: np.ndarray = (np.mean(forward, axis=0) + np.mean(backward, axis=0)) / 2
        return mean

    def sum_by_sentence(self, values: np.ndarray) -> np.ndarray:
        """Sum (T,) values over each sentence; returns (S,)."""
        return np.add.reduceat(values, np.cumsum(self.lengths) - self.lengths)


def score_tokens(
    models: Mapping[str, LanguageModel],
    sentences: Sequence[Words],
    progress: str = "",
    *,
    in_order: bool = False,
) -> TokenScores:
    """Score every token of a text with every model.

    Args:
        progress: description under which progress is reported; empty for no report.
        in_order: score the sentences in text order: networks that were trained that way carry their state
            across them, and those with topics read the topics of all sentences before. All other models, and
            all models without this, score each sentence on its own.

    Raises:
        FormatError: there are no sentences.
        ScoringError: a score is not finite.
    """
    if not sentences:
        raise FormatError("no words in the text to score")
    lengths = np.array([len(words) + 1 for words in sentences])
    index = {word: i for i, word in enumerate(dict.fromkeys(word for words in sentences for word in words))}
    tokens = np.array(
        [i for words in sentences for i in (*map(index.__getitem__, words), len(index))]
    )  # (T,)
    log_probs, unknown, log_shares = {}, {}, {}
    with track(progress, "words", len(tokens) * len(models)) as task:
        for name, model in models.items():
            known = model.vocabulary()
            unknown[name] = np.array([word not in known for word in index] + [False])[tokens]
            log_shares[name] = np.array([*map(model.log_share, index), 0.0])[tokens]
            log_probs[name] = _score_with_model(model, sentences, lengths, log_shares[name], in_order, task)
            if not np.isfinite(log_probs[name]).all():
                raise ScoringError(f"model {name!r} gave a score that is not finite")
    backward = frozenset(name for name, model in models.items() if model.backward)
    return TokenScores(lengths, log_probs, unknown, log_shares, backward)


def _score_with_model(
    model: LanguageModel,
    sentences: Sequence[Words],
    lengths: np.ndarray,
    log_shares: np.ndarray,
    in_order: bool,
    task: ProgressTask,
) -> np.ndarray:
    """Return ln P of every token under one model, (T,)."""
    histories: Sequence[Words] = [()] * len(sentences)
    if in_order:
        from rescorer_training.evaluation.carried_state import (  # torch takes seconds to import
            carries_state,
            score_with_carried_state,
        )
        from rescorer_training.evaluation.text_before import find_topical_histories

        if carries_state(model):
            task.advance(len(log_shares))
            return score_with_carried_state(model, sentences) + log_shares
        histories = find_topical_histories(model, sentences)
    ends = np.cumsum(lengths)
    log_probs = np.empty(len(log_shares))
    for plan in plan_batches(sentences, [()] * len(sentences), MAX_BATCH_WORDS):
        trie = build_trie([sentences[i] for i in plan.indices], [histories[i] for i in plan.indices])
        scores = model.score(trie)
        for hypothesis, i in enumerate(plan.indices):
            log_probs[ends[i] - lengths[i] : ends[i]] = scores.log_probs[scores.path_edges(trie, hypothesis)]
        task.advance(plan.cost)
    return log_probs

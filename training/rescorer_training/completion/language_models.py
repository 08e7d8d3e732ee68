"""Score candidates by language models: the candidate that makes the sentence most probable is best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer.score_combination import MIXTURE
from rescorer_training.completion.questions import LETTERS, CandidateScores, Question
from rescorer_training.evaluation.model_set import ModelSet
from rescorer_training.evaluation.perplexity import BOTH_DIRECTIONS
from rescorer_training.evaluation.token_scores import score_tokens


def score_sentences(models: ModelSet, questions: Sequence[Question]) -> dict[str, CandidateScores]:
    """Score every candidate by the log-probability of its sentence with ``</s>``, in nats.

    Returns:
        Scores by model, then those of the mixture, or of both directions, if there are several models.
    """
    normalise = models.normaliser.normalise
    sentences = [normalise(text) for question in questions for text in question.sentences()]
    scores = score_tokens(models.models, sentences, "answering")

    def sum_tokens(log_probs: np.ndarray, unknown: np.ndarray) -> CandidateScores:
        sums = scores.sum_by_sentence(log_probs).reshape(-1, len(LETTERS))
        n_unknown = int((scores.sum_by_sentence(unknown.astype(np.int64)) > 0).sum())
        return CandidateScores(sums, n_unknown)

    found = {name: sum_tokens(scores.log_probs[name], scores.unknown[name]) for name in models.models}
    if models.shares:
        unknown_to_all = np.logical_and.reduce([scores.unknown[name] for name in models.shares])
        found[MIXTURE] = sum_tokens(scores.mix(models.shares), unknown_to_all)
    if scores.has_both_directions:
        unknown = np.logical_or.reduce(list(scores.unknown.values()))
        found[BOTH_DIRECTIONS] = sum_tokens(scores.average_directions(scores.log_probs), unknown)
    return found

"""Score candidates by word vectors: how well they go with the words around the blank.

Skip-gram: the candidate predicts the words near it, and the log-probabilities are summed (Mikolov et al.
2013, arXiv 1301.3781). CBOW: the words near the blank predict the candidate; what counts is by how much they
raise its probability, since frequent candidates are not better ones. Any vectors, as those of latent semantic
analysis: the mean cosine of the candidate and each word of the sentence (Zweig et al. 2012, "Computational
approaches to sentence completion").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rescorer.text import Normaliser
from rescorer_training.completion.questions import CandidateScores, Question
from rescorer_training.vectors.word2vec.prediction import NeighbourModel
from rescorer_training.vectors.word_vectors import WordVectors

ScoreRows = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""From rows of candidates (n,), and rows (C,) and distances (C,) of context words, to scores (n,)."""


def score_neighbours(
    model: NeighbourModel, questions: Sequence[Question], normaliser: Normaliser
) -> CandidateScores:
    """Score candidates by the log-probabilities of a skip-gram or CBOW model, in nats.

    A word counts as training expects it to: one at a distance d is in the window of a word, of which the
    largest is W, with the probability (W + 1 - d) / W. Only words that have vectors count as neighbours.
    """
    window = model.options.window
    log_shares = np.log(model.counts / model.counts.sum())

    def predict_neighbours(candidates: np.ndarray, context: np.ndarray, distances: np.ndarray) -> np.ndarray:
        weights = np.maximum(window + 1 - distances, 0) / window
        return np.asarray(model.log_probs(model.inputs[candidates])[:, context] @ weights)

    def predict_candidate(candidates: np.ndarray, context: np.ndarray, distances: np.ndarray) -> np.ndarray:
        weights = np.maximum(window + 1 - distances, 0) / window
        query = weights @ model.inputs[context] / weights.sum()
        return np.asarray((model.log_probs(query[None])[0] - log_shares)[candidates])

    by_model = predict_candidate if model.options.model == "cbow" else predict_neighbours
    return _score(model.index, questions, normaliser, by_model)


def score_similarity(
    vectors: WordVectors, questions: Sequence[Question], normaliser: Normaliser
) -> CandidateScores:
    """Score candidates by their mean cosine with the words of the sentence."""
    unit = vectors.normalised().astype(np.float64)

    def compare(candidates: np.ndarray, context: np.ndarray, distances: np.ndarray) -> np.ndarray:
        return np.asarray(unit[candidates] @ unit[context].mean(axis=0))

    return _score(vectors.index, questions, normaliser, compare)


def _score(
    index: Mapping[str, int], questions: Sequence[Question], normaliser: Normaliser, score_rows: ScoreRows
) -> CandidateScores:
    """Score the candidates of every question.

    A candidate of several words has their mean score. One without a vector has the mean of the others, which
    says nothing for or against it.
    """
    values = [_score_question(index, question, normaliser, score_rows) for question in questions]
    known = np.isfinite(values)
    means = np.where(known, values, 0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1), 1)[:, None]
    return CandidateScores(np.where(known, values, means), int((~known).sum()))


def _score_question(
    index: Mapping[str, int], question: Question, normaliser: Normaliser, score_rows: ScoreRows
) -> np.ndarray:
    """Scores of the candidates of a question, (5,) float64; NaN for candidates without a vector."""
    before, after = (
        [index[word] for word in words if word in index] for words in question.context(normaliser)
    )
    context = np.array(before + after, dtype=np.int64)
    distances = np.concatenate([np.arange(len(before), 0, -1), np.arange(1, len(after) + 1)])
    owners, rows = [], []
    for number, candidate in enumerate(question.candidates):
        found = [index[word] for word in normaliser.normalise(candidate) if word in index]
        owners += [number] * len(found)
        rows += found
    n_words = np.bincount(np.array(owners, dtype=np.int64), minlength=len(question.candidates))
    scores = score_rows(np.array(rows), context, distances) if rows and len(context) else np.zeros(len(rows))
    sums = np.bincount(np.array(owners, dtype=np.int64), scores, len(question.candidates))
    return np.where(n_words > 0, sums / np.maximum(n_words, 1), np.nan)

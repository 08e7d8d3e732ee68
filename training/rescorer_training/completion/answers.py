"""Answers of models and of their combination, with intervals and paired tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError
from rescorer.evaluation.statistics.proportions import PairedTest, mcnemar
from rescorer.score_combination import MIXTURE
from rescorer.text import Normaliser
from rescorer_training.completion.combination import cross_validate
from rescorer_training.completion.questions import CandidateScores, Question
from rescorer_training.completion.word_vectors import score_neighbours, score_similarity
from rescorer_training.evaluation.perplexity import BOTH_DIRECTIONS
from rescorer_training.vectors.evaluation.intervals import accuracy_interval
from rescorer_training.vectors.files import read_vectors
from rescorer_training.vectors.word2vec.prediction import load_neighbour_model
from rescorer_training.vectors.word_vectors import WordVectors

COMBINATION = "combination"
COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class Answers:
    """What one model, or the combination, answered."""

    n_questions: int
    n_correct: int
    n_unknown: int
    """See ``CandidateScores``; 0 for the combination."""
    test: PairedTest | None = None
    """Comparison with the combination, which is the second system."""

    @property
    def accuracy(self) -> float:
        """Percentage of correct answers."""
        return 100 * self.n_correct / self.n_questions

    @property
    def interval(self) -> tuple[float, float]:
        """Bootstrap interval of 95 % of the percentage; see ``accuracy_interval``."""
        low, high = accuracy_interval(self.n_correct, self.n_questions)
        return 100 * low, 100 * high


@dataclass(frozen=True, eq=False)
class Combined:
    """Scores of the learned combination, and the models that it combines."""

    names: tuple[str, ...]
    mean_weights: tuple[float, ...]
    """Weight of each model's standardised scores, averaged over the folds."""
    scores: CandidateScores


def score_vectors(
    options: Sequence[str], questions: Sequence[Question], normaliser: Normaliser, taken: Collection[str] = ()
) -> dict[str, CandidateScores]:
    """Score candidates with the word vectors that ``[NAME=]PATH`` options name.

    A folder is a run of CBOW or skip-gram, whose log-probabilities and cosines are taken; a file has cosines.

    Args:
        taken: names of other models.

    Raises:
        ConfigError: a name occurs twice, or a folder has no run.
        BundleError: a run is damaged.
        FormatError: a file cannot be read or is damaged.
    """
    scores: dict[str, CandidateScores] = {}
    for option in options:
        name, has_name, rest = option.partition("=")
        path = Path(rest if has_name else option)
        name = name if has_name else path.stem
        if not name or name in {*taken, *scores, MIXTURE, COMBINATION}:
            raise ConfigError(
                f"vectors {option!r}: there is a model called {name!r} already; choose another name: "
                "--vectors NAME=PATH"
            )
        if path.is_dir():
            model = load_neighbour_model(path)
            scores[name] = score_neighbours(model, questions, normaliser)
            vectors = WordVectors(model.words, model.inputs)
            scores[f"{name} {COSINE}"] = score_similarity(vectors, questions, normaliser)
        else:
            scores[name] = score_similarity(read_vectors(path), questions, normaliser)
    return scores


def combine(scores: Mapping[str, CandidateScores], questions: Sequence[Question], seed: int = 1) -> Combined:
    """Learn to combine all models by nested cross-validation; what is made of other models is left out.

    Raises:
        ConfigError: there are fewer than two models, or too few questions.
    """
    names = tuple(name for name in scores if name not in (MIXTURE, BOTH_DIRECTIONS))
    if len(names) < 2:
        raise ConfigError(f"{len(names)} model cannot be combined; expected at least 2: add --vectors")
    answers = np.array([question.answer for question in questions])
    found = cross_validate(np.stack([scores[name].values for name in names], axis=2), answers, seed)
    weights = tuple(found.weights.mean(axis=0).tolist())
    return Combined(names, weights, CandidateScores(found.values, 0))


def answer(
    scores: Mapping[str, CandidateScores], questions: Sequence[Question], combined: Combined | None = None
) -> dict[str, Answers]:
    """Answer every question by every model, and by the combination, with which the others are compared."""
    correct = {name: row.is_correct(questions) for name, row in scores.items()}
    best = combined.scores.is_correct(questions) if combined else None
    rows = {
        name: Answers(
            len(questions), int(right.sum()), scores[name].n_unknown,
            None if best is None else mcnemar(right, best),
        )
        for name, right in correct.items()
    }  # fmt: skip
    if best is not None:
        rows[COMBINATION] = Answers(len(questions), int(best.sum()), 0)
    return rows

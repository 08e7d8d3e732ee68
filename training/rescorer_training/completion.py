"""Sentence completion: choose the word that is missing in a sentence, by language models and word vectors.

The task is that of Zweig & Burges (2011), "The Microsoft Research sentence completion challenge". Word
vectors score how well a candidate fits the words around the blank:

- Skip-gram: the candidate predicts the words near it, and the log-probabilities are summed (Mikolov et al.
  2013, arXiv 1301.3781).
- CBOW: the words near the blank predict the candidate. The score is by how much they raise its
  log-probability, since a candidate is not better because it is frequent.
- Any vectors, such as those of latent semantic analysis: the mean cosine of the candidate and each word of
  the sentence (Zweig et al. 2012, "Computational approaches to sentence completion").

A combination of models gives P(candidate) ∝ exp Σ_m w_m s_m to the candidates of a question. The score s_m of
model m is centred within the question and divided by its standard deviation over the training questions. The
weights w_m maximise the mean log-probability of the answers, less a penalty of strength/2 · Σ w² (McFadden
1974). They are judged by nested cross-validation.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError, FormatError
from rescorer.evaluation.statistics import PairedTest, mcnemar
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.weights import MIXTURE
from rescorer_training.corpus import read_lines
from rescorer_training.evaluation.perplexity import BOTH_DIRECTIONS, ModelSet, score_tokens
from rescorer_training.vectors.files import WordVectors, read_vectors
from rescorer_training.vectors.judgement import accuracy_interval
from rescorer_training.vectors.word2vec import NeighbourModel, load_neighbour_model

BLANK = "_____"
LETTERS = ("a", "b", "c", "d", "e")
COLUMNS = ("question", *LETTERS, "answer")


@dataclass(frozen=True, slots=True)
class Question:
    """A sentence with one blank and the candidate words for it."""

    text: str
    candidates: tuple[str, ...]
    answer: int
    """0-based index of the correct candidate."""

    def sentences(self) -> list[str]:
        """Return the sentence once per candidate, with the blank replaced."""
        return [self.text.replace(BLANK, candidate) for candidate in self.candidates]

    def context(self, normaliser: Normaliser) -> tuple[Words, Words]:
        """Return the words before the blank and those after it."""
        before, after = self.text.split(BLANK)
        return normaliser.normalise(before), normaliser.normalise(after)


@dataclass(frozen=True)
class CandidateScores:
    """Scores that one model gives to the candidates of Q questions."""

    values: np.ndarray
    """(Q, 5) float64 scores; higher is better."""
    n_unknown: int
    """Number of candidates that the model does not know, or whose sentences have words unknown to it."""

    def is_correct(self, questions: Sequence[Question]) -> np.ndarray:
        """Return whether the best candidate of each question (the first if equal) is right, (Q,) bool."""
        answers = np.array([question.answer for question in questions])
        return np.asarray(self.values.argmax(axis=1) == answers)


def read_questions(path: Path) -> list[Question]:
    """Read questions from a CSV file with a header and the columns question, a, b, c, d, e, answer.

    Raises:
        FormatError: a column or a value is missing, a question does not have exactly one blank, an answer is
            not a letter from a to e, or there are no questions. The error names the line and the column.
    """
    reader = csv.DictReader(read_lines(path))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise FormatError(
            f"missing column {', '.join(missing)}; expected {', '.join(COLUMNS)}", file=str(path), line=1
        )
    questions = [_parse_question(row, str(path), reader.line_num) for row in reader]
    if not questions:
        raise FormatError("the file has no questions", file=str(path))
    return questions


def _parse_question(row: Mapping[str, str | None], file: str, line: int) -> Question:
    empty = [name for name in COLUMNS if not row[name]]
    if empty:
        raise FormatError("empty; every column needs a value", file=file, line=line, field=empty[0])
    text, answer = str(row["question"]), str(row["answer"]).strip().lower()
    if text.count(BLANK) != 1:
        raise FormatError(
            f"expected one {BLANK}, got {text.count(BLANK)}", file=file, line=line, field="question"
        )
    if answer not in LETTERS:
        raise FormatError(
            f"expected one of {', '.join(LETTERS)}, got {answer!r}", file=file, line=line, field="answer"
        )
    return Question(text, tuple(str(row[letter]) for letter in LETTERS), LETTERS.index(answer))


def score_sentences(models: ModelSet, questions: Sequence[Question]) -> dict[str, CandidateScores]:
    """Score every candidate by the log-probability of its sentence with ``</s>``, in nats.

    Returns:
        Scores by model. With several models, also those of the mixture or of both directions.
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


ScoreRows = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""A function that scores n candidates by C context words. It returns (n,) scores.

Its arguments are the rows of the candidates in the matrix of vectors, (n,), the rows of the context words,
(C,), and their distances from the blank, (C,)."""


def score_neighbours(
    model: NeighbourModel, questions: Sequence[Question], normaliser: Normaliser
) -> CandidateScores:
    """Score candidates by the log-probabilities of a skip-gram or CBOW model, in nats.

    A neighbour at distance d has the weight (W + 1 - d) / W, where W is the largest window. In training, it
    is in the window of the word with this probability. Words without vectors do not count as neighbours.
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

    A candidate of several words gets the mean of their scores. A candidate without a vector gets the mean
    score of the other candidates.
    """
    values = [_score_question(index, question, normaliser, score_rows) for question in questions]
    known = np.isfinite(values)
    means = np.where(known, values, 0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1), 1)[:, None]
    return CandidateScores(np.where(known, values, means), int((~known).sum()))


def _score_question(
    index: Mapping[str, int], question: Question, normaliser: Normaliser, score_rows: ScoreRows
) -> np.ndarray:
    """Score the candidates of a question, (5,) float64; NaN for candidates without a vector."""
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


STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""Strengths of the penalty, from which cross-validation chooses."""
OUTER_FOLDS, INNER_FOLDS = 10, 5
MAX_STEPS = 100
TOLERANCE = 1e-10
"""Fitting ends when a step gains less than this, in nats per question."""


@dataclass(frozen=True, eq=False)
class Combination:
    """Combined scores of candidates. The weights for a question were learned without this question."""

    values: np.ndarray
    """(Q, C) float64 combined scores."""
    weights: np.ndarray
    """(folds, M) For each fold, the weights of the models' standardised scores that its questions got."""
    strengths: tuple[float, ...]
    """Strength of the penalty for each fold."""


def cross_validate(scores: np.ndarray, answers: np.ndarray, seed: int = 1) -> Combination:
    """Hold out each of ten folds in turn, learn weights on the others, and score the fold.

    Five inner folds choose the strength of the penalty.

    Args:
        scores: (Q, C, M) scores of the candidates by each model.
        answers: (Q,) index of the answer of each question.
        seed: random seed of the division into folds.

    Raises:
        ConfigError: there are fewer questions than folds.
    """
    if len(scores) < OUTER_FOLDS:
        raise ConfigError(
            f"{len(scores)} questions are too few to learn a combination; expected at least {OUTER_FOLDS}"
        )
    generator = np.random.default_rng(seed)
    values, weights, strengths = np.zeros(scores.shape[:2]), [], []
    for held_out, training in _split(generator.permutation(len(scores)), OUTER_FOLDS):
        strength = _choose_strength(scores[training], answers[training], generator)
        fitted = fit(scores[training], answers[training], strength)
        values[held_out] = fitted.score(scores[held_out])
        weights.append(fitted.weights)
        strengths.append(strength)
    return Combination(values, np.array(weights), tuple(strengths))


def _choose_strength(scores: np.ndarray, answers: np.ndarray, generator: np.random.Generator) -> float:
    """Choose the strength of the penalty under which held-out answers are most probable."""
    folds = _split(generator.permutation(len(scores)), INNER_FOLDS)

    def loss(strength: float) -> float:
        return sum(
            -log_probs(fit(scores[training], answers[training], strength).score(scores[held_out]))[
                np.arange(len(held_out)), answers[held_out]
            ].sum()
            for held_out, training in folds
        )

    return min(STRENGTHS, key=loss)


def _split(order: np.ndarray, n_folds: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Divide questions into folds; return, for each fold, its questions and all others."""
    folds = np.array_split(order, n_folds)
    return [(fold, np.concatenate(folds[:i] + folds[i + 1 :])) for i, fold in enumerate(folds)]


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of standardised scores."""

    weights: np.ndarray
    """(M,)."""
    deviations: np.ndarray
    """(M,) standard deviation of the scores of each model within the training questions."""

    def score(self, scores: np.ndarray) -> np.ndarray:
        """Combine scores, (Q, C, M) → (Q, C)."""
        return np.asarray(scores @ (self.weights / self.deviations))


def fit(scores: np.ndarray, answers: np.ndarray, strength: float) -> Weights:
    """Learn weights by Newton's method. A step is halved until it lowers the loss.

    Args:
        scores: (Q, C, M) scores of the candidates by each model.
        answers: (Q,) index of the answer of each question.
        strength: strength of the penalty, above 0.
    """
    centred = scores - scores.mean(axis=1, keepdims=True)
    deviations = np.sqrt((centred**2).mean(axis=(0, 1)))
    deviations[deviations == 0] = 1  # the scores of such a model say nothing
    inputs = centred / deviations
    weights = np.zeros(inputs.shape[2])
    loss = penalised_loss(inputs, answers, weights, strength)
    for _ in range(MAX_STEPS):
        step = _newton_step(inputs, answers, weights, strength)
        while (new_loss := penalised_loss(inputs, answers, weights - step, strength)) > loss:
            step = step / 2
        weights, gain, loss = weights - step, loss - new_loss, new_loss
        if gain < TOLERANCE:
            break
    return Weights(weights, deviations)


def penalised_loss(inputs: np.ndarray, answers: np.ndarray, weights: np.ndarray, strength: float) -> float:
    """Return the mean of -ln P(answer) plus the penalty."""
    chosen = log_probs(inputs @ weights)[np.arange(len(answers)), answers]
    return float(-chosen.mean() + strength / 2 * (weights @ weights))


def log_probs(values: np.ndarray) -> np.ndarray:
    """Normalise scores to log-probabilities of the candidates, (Q, C)."""
    values = values - values.max(axis=1, keepdims=True)
    return np.asarray(values - np.log(np.exp(values).sum(axis=1, keepdims=True)))


def _newton_step(inputs: np.ndarray, answers: np.ndarray, weights: np.ndarray, strength: float) -> np.ndarray:
    n, _, n_models = inputs.shape
    probs = np.exp(log_probs(inputs @ weights))
    expected = np.einsum("qc,qcm->qm", probs, inputs)
    gradient = (expected - inputs[np.arange(n), answers]).mean(axis=0) + strength * weights
    spread = inputs - expected[:, None]
    hessian = np.einsum("qc,qcm,qck->mk", probs, spread, spread) / n + strength * np.eye(n_models)
    return np.asarray(np.linalg.solve(hessian, gradient))


COMBINATION = "combination"
COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of one model, or of the combination."""

    n_questions: int
    n_correct: int
    n_unknown: int
    """Number of unknown candidates, see ``CandidateScores``; 0 for the combination."""
    test: PairedTest | None = None
    """Test of these answers, as the first system, against the combination; None without a combination."""

    @property
    def accuracy(self) -> float:
        """Percentage of correct answers."""
        return 100 * self.n_correct / self.n_questions

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the percentage; see ``accuracy_interval``."""
        low, high = accuracy_interval(self.n_correct, self.n_questions)
        return 100 * low, 100 * high


@dataclass(frozen=True, eq=False)
class Combined:
    """The learned combination: its scores, its models and their weights."""

    names: tuple[str, ...]
    mean_weights: tuple[float, ...]
    """Weight of each model's standardised scores, averaged over the folds."""
    scores: CandidateScores


def score_vectors(
    options: Sequence[str], questions: Sequence[Question], normaliser: Normaliser, taken: Collection[str] = ()
) -> dict[str, CandidateScores]:
    """Score candidates with the word vectors that ``[NAME=]PATH`` options name.

    A folder is a run of CBOW or skip-gram, which scores by log-probabilities and by cosines. A file of
    vectors scores by cosines.

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
    """Learn to combine models by nested cross-validation. Mixtures of the models are left out.

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
    """Answer every question by each model and by the combination, and compare each model with the latter."""
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

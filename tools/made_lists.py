"""Measure what made lists are worth where real lists are few: error rates of held-out real lists.

    python -m tools.made_lists REAL.jsonl.gz --map … --stream … --groups … --ngram MODEL --text TEXT
        [--speech MADE.jsonl.gz] -o curves.json

For each number of real lists, a subset of the lists outside a fold is drawn by each of three seeds, and two
linear models of the total are trained on it, alone and together with made lists: weights of the streams, of
the n-gram model and of the number of words; and these with four more features (characters, and the expected
distance to the list at three temperatures). Lists made from text imitate that subset only. Training minimises
expected errors, from the weights of the recogniser.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rapidfuzz.distance import Levenshtein
from tqdm import tqdm

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import ListInputOptions
from rescorer.evaluation.tuning.folds import make_folds
from rescorer.evaluation.tuning.parameters import TuningList
from rescorer.evaluation.weight_search.fitting import Fitter, Method
from rescorer.evaluation.weight_search.problem import make_problem
from rescorer.formats.nbest.jsonlines import read_lists
from rescorer.reranking.features import ListView, feature_matrix
from rescorer.text import Normaliser
from rescorer.types import NBestList
from rescorer_training.data.corpus import count_words
from rescorer_training.lists.context_model import NGramContext
from rescorer_training.lists.pocketsphinx import dictionary_path
from rescorer_training.lists.pronunciations import Pronunciations
from rescorer_training.lists.text import ListImitator
from rescorer_training.lists.texts import Choice, Sentence, choose_sentences, reference_words

SIZES = (20, 50, 1_000_000)
"""Numbers of real lists; the last stands for all."""
SEEDS = (1, 2, 3)
N_FOLDS = 5
METHOD = Method("expected errors", 0.3)
WEIGHTS = {"acoustic": 1.0, "lm": 4.75, "ngram": 4.75, "words": -0.63}
"""Where training begins: PocketSphinx' own weights, with half of the LM's given to the n-gram model."""
FEATURES = ("characters", "distance:10", "distance:30", "distance:100")
BASE, MORE = "weights", "weights and features"


class Scorer:
    """Computes the components of lists."""

    def __init__(self, model: NGramContext, normaliser: Normaliser) -> None:
        self._model, self._normalise = model, normaliser.normalise

    def score(self, nbest: NBestList) -> TuningList:
        words = [self._normalise(hypothesis.text) for hypothesis in nbest.hypotheses]
        reference = self._normalise(nbest.reference or "")
        components = {name: np.array(values) for name, values in nbest.streams.items()}
        components["ngram"] = np.array([self._model.score(sentence) for sentence in words])
        components["words"] = np.array([float(len(sentence)) for sentence in words])
        totals = sum(weight * components[name] for name, weight in WEIGHTS.items())
        features = feature_matrix(FEATURES, ListView(components, words, (), np.asarray(totals)))
        components |= dict(zip(FEATURES, features.T, strict=True))
        errors = np.array([Levenshtein.distance(reference, sentence) for sentence in words])
        return TuningList(components, errors)


def fit(lists: Sequence[TuningList], names: Sequence[str]) -> np.ndarray:
    """Train weights (K,); those that training begins with if there are no lists."""
    start = np.array([WEIGHTS.get(name, 0.0) for name in names])
    if not lists:
        return start
    components = np.stack([np.concatenate([item.components[name] for item in lists]) for name in names])
    errors = np.concatenate([item.errors for item in lists])
    bounds = [(1.0, 1.0) if name == "acoustic" else (-np.inf, np.inf) for name in names]
    problem = make_problem(names, components, errors, [len(item.errors) for item in lists], start, bounds)
    return Fitter(problem).fit(METHOD).weights


def count_errors(weights: np.ndarray, lists: Sequence[TuningList], names: Sequence[str]) -> int:
    """Errors of the hypotheses with the highest totals."""
    total = 0
    for item in lists:
        scores = sum(weight * item.components[name] for weight, name in zip(weights, names, strict=True))
        total += int(item.errors[int(np.argmax(np.round(scores, 4)))])
    return total


def draw(seed: int, fold: int, n: int, size: int) -> np.ndarray:
    return np.random.default_rng((seed, fold)).permutation(n)[:size]


@expand_options
def main(
    real: Annotated[str, typer.Argument(help="Real lists with references.")],
    output: Annotated[Path, typer.Option("-o", help="JSON file of error rates.")],
    ngram: Annotated[Path, typer.Option(help="N-gram model.")],
    text: Annotated[Path, typer.Option(help="Text for lists that imitate.")],
    *,
    speech: Annotated[Path | None, typer.Option(help="Lists made by speech.")] = None,
    made: Annotated[int, typer.Option(help="Number of lists made from text; 0 for none.")] = 200,
    list_options: ListInputOptions,
) -> None:
    """Measure error rates of held-out lists with and without made lists."""
    normaliser, model = Normaliser(), NGramContext(ngram)
    scorer = Scorer(model, normaliser)
    lists = [item for item in list_options.read(real) if isinstance(item, NBestList)]
    scored = [scorer.score(nbest) for nbest in lists]
    references = [normaliser.normalise(nbest.reference or "") for nbest in lists]
    folds = make_folds(
        [nbest.id for nbest in lists],
        [nbest.group for nbest in lists],
        list(map(" ".join, references)),
        N_FOLDS,
    )
    excluded = reference_words(lists, normaliser)
    spoken = [item for item in read_lists(speech) if isinstance(item, NBestList)] if speech else []
    spoken = [nbest for nbest in spoken if normaliser.normalise(nbest.reference or "") not in excluded]
    by_speech = [scorer.score(nbest) for nbest in tqdm(spoken, desc="scoring")]
    counts = count_words([text], normaliser)
    pronunciations = Pronunciations.read(dictionary_path())
    choice = Choice(max(len(SEEDS) * made, 1), 1, 3, 25)
    sentences = choose_sentences([text], normaliser, choice, excluded)

    def imitate(subset: np.ndarray, chosen: Sequence[Sentence]) -> list[TuningList]:
        imitator = ListImitator([lists[i] for i in subset], normaliser, pronunciations, counts, model)
        return [scorer.score(nbest) for nbest in imitator.make_all(chosen)]

    names = {BASE: list(WEIGHTS), MORE: [*WEIGHTS, *FEATURES]}
    n_words = sum(map(len, references))
    errors: dict[str, dict[str, np.ndarray]] = {}

    def add(size: int, system: str, training: list[TuningList], held_out: list[TuningList], row: int) -> None:
        for kind, parts in names.items():
            found = count_errors(fit(training, parts), held_out, parts)
            errors.setdefault(f"{kind}, {system}", {}).setdefault(str(size), np.zeros(len(SEEDS), int))[
                row
            ] += found

    for fold in tqdm(range(folds.n_folds), desc="folds"):
        others, held = folds.split(fold)
        held_out = [scored[i] for i in held]
        for row, seed in enumerate(SEEDS):
            add(0, "real", [], held_out, row)
            if by_speech:
                add(0, "real and speech", by_speech, held_out, row)
            for size in SIZES:
                subset = others[draw(seed, fold, len(others), size)]
                own = [scored[i] for i in subset]
                shown = min(size, len(lists))
                add(shown, "real", own, held_out, row)
                if made:
                    imitations = imitate(subset, sentences[row * made : (row + 1) * made])
                    add(shown, "real and text", own + imitations, held_out, row)
                if by_speech:
                    add(shown, "real and speech", own + by_speech, held_out, row)
        partial = {"folds": fold + 1, "speech_lists": len(by_speech), "words": n_words}
        rates = {
            system: {size: (100 * counts_ / n_words).round(2).tolist() for size, counts_ in rows.items()}
            for system, rows in errors.items()
        }
        output.write_text(json.dumps({**partial, "wer": rates}, indent=1))


if __name__ == "__main__":
    typer.run(main)

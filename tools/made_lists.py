"""Measure what made lists are worth where real lists are few: error rates of held-out real lists.

    python -m tools.made_lists REAL.jsonl.gz --map … --stream … --groups … --bundle B --weights W
        [--speech MADE.jsonl.gz] [--text TEXT --made 100] -o curves.json

For each number of real lists, each of three seeds draws that many of those outside a fold. Rerankers are then
trained on them alone, together with made lists, and with a prior that made lists taught; without real lists,
on made lists alone. One candidate is trained throughout; another is chosen by cross-validation inside the
drawn lists. Lists made from text imitate the drawn lists only. Gains and their intervals are those of
the mean over the seeds, from a bootstrap over the groups of the real lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from tqdm import tqdm

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.models import BundleOption
from rescorer.cli.options.weights import WeightOptions
from rescorer.evaluation.comparison.scored_lists import ScoredList, score_lists
from rescorer.evaluation.statistics.bootstrap import bootstrap
from rescorer.evaluation.tuning.folds import Folds
from rescorer.evaluation.tuning.nested import choose_cautious
from rescorer.formats.nbest.jsonlines import read_lists
from rescorer.pipeline import Rescorer
from rescorer.types import NBestList, Weights
from rescorer_training.data.corpus import count_words
from rescorer_training.lists.context_model import NGramContext
from rescorer_training.lists.pocketsphinx import dictionary_path
from rescorer_training.lists.pronunciations import Pronunciations
from rescorer_training.lists.text import ListImitator
from rescorer_training.lists.texts import Choice, Sentence, choose_sentences, reference_words
from rescorer_training.reranker.arrays import TrainingArrays
from rescorer_training.reranker.candidates import START, STRENGTHS, Candidate
from rescorer_training.reranker.fitting import Fitter
from rescorer_training.reranker.training import (
    TrainingLists,
    compute_arrays,
    compute_features,
    compute_prior_features,
)

SIZES = (20, 50, 1_000_000)
"""Numbers of real lists; the last stands for all outside a fold."""
SEEDS = (1, 2, 3)
FIXED = Candidate("all features", "expected errors", 3.0)
"""The candidate that is trained throughout."""
KINDS = ("fixed", "chosen")
MAX_IMITATED_WORDS = 25


@dataclass(frozen=True)
class MadeLists:
    """Made lists beside the real ones."""

    arrays: TrainingArrays
    """Features of the real lists, and after them of the made ones, with common scales."""
    folds: Folds
    own: np.ndarray
    """Indices of the made lists."""
    prior: Fitter
    """Fits candidates on the made lists alone."""


class Experiment:
    """Trains rerankers on some real lists, with or without made ones, and counts errors of others."""

    def __init__(self, real: TrainingLists) -> None:
        self.real, self.folds = real, real.make_folds()
        self.sets, self.arrays = compute_features(real)

    def add_lists(self, made: Sequence[ScoredList]) -> MadeLists:
        """Compute the features of made lists as those of the real ones."""
        pooled = replace(self.real, scored=[*self.real.scored, *made])
        arrays, folds = compute_arrays(pooled, self.sets), pooled.make_folds()
        own = np.arange(len(self.real.scored), arrays.n_lists)
        prior = compute_prior_features(self.real, replace(self.real, scored=made), self.sets, False)
        return MadeLists(
            arrays, folds, own, Fitter(prior.arrays, folds.subdivide(own), prior.feature_sets, 0)
        )

    def judge(
        self, lists: np.ndarray, held_out: np.ndarray, made: MadeLists | None = None
    ) -> dict[str, np.ndarray]:
        """Errors per held-out list of rerankers trained on real lists, perhaps with a prior of made ones; of
        the fixed candidate, and of the one that is chosen."""
        judged = self.arrays.select(held_out)
        fitter = self._fitter(lists, made)
        chosen = self._choose(lists, made)
        pairs = zip(KINDS, (replace(FIXED, from_prior_lists=made is not None), chosen), strict=True)
        return {kind: judged.list_errors(fitter.fit(one).score(judged)) for kind, one in pairs}

    def judge_pooled(self, lists: np.ndarray, held_out: np.ndarray, made: MadeLists) -> dict[str, np.ndarray]:
        """Errors per held-out list of the fixed candidate, trained on real and made lists alike."""
        training, judged = np.concatenate([lists, made.own]), made.arrays.select(held_out)
        fitter = Fitter(made.arrays.select(training), made.folds.subdivide(training), self.sets, 0)
        return {KINDS[0]: judged.list_errors(fitter.fit(FIXED).score(judged))}

    def _fitter(self, lists: np.ndarray, made: MadeLists | None) -> Fitter:
        prior = made.prior if made else None
        return Fitter(self.arrays.select(lists), self.folds.subdivide(lists), self.sets, 0, prior)

    def _choose(self, lists: np.ndarray, made: MadeLists | None) -> Candidate:
        """Choose the most cautious candidate within one standard error of the best one, by folds of the lists
        to train on."""
        candidates = [
            Candidate(name, "expected errors", strength, from_prior_lists=from_prior_lists)
            for strength in STRENGTHS
            for name in ("scores", "all features")
            for from_prior_lists in ((False, True) if made else (False,))
        ]
        candidates.insert(0, Candidate(START))
        folds = self.folds.subdivide(lists)
        errors = np.zeros((len(candidates), len(lists)), dtype=np.int64)
        for fold in range(folds.n_folds):
            training, held_out = folds.split(fold)
            fitter, judged = self._fitter(lists[training], made), self.arrays.select(lists[held_out])
            errors[:, held_out] = [judged.list_errors(fitter.fit(one).score(judged)) for one in candidates]
        return candidates[choose_cautious(errors, folds.unit)]


class Imitation:
    """Makes lists from text in imitation of some of the real lists, and scores them."""

    def __init__(self, text: Path, made: int, rescorer: Rescorer, bundle: Path, base: Weights) -> None:
        self._rescorer, self._base, self._made, self._text = rescorer, base, made, text
        self._normaliser = rescorer.bundle.normaliser
        self._model = NGramContext(bundle / "ngram" / "model.arpa.gz")
        self._counts = count_words([text], self._normaliser)
        self._pronunciations = Pronunciations.read(dictionary_path())

    def choose_sentences(self, lists: Sequence[NBestList]) -> list[Sentence]:
        """Choose sentences for all seeds, without the references of any real list."""
        choice = Choice(len(SEEDS) * self._made, 1, 3, MAX_IMITATED_WORDS)
        excluded = reference_words(lists, self._normaliser)
        return choose_sentences([self._text], self._normaliser, choice, excluded)

    def make(self, lists: Sequence[NBestList], sentences: Sequence[Sentence]) -> list[ScoredList]:
        """Make and score the lists of sentences."""
        imitator = ListImitator(lists, self._normaliser, self._pronunciations, self._counts, self._model)
        return score(self._rescorer, list(imitator.make_all(sentences)), self._base)


def score(rescorer: Rescorer, lists: Sequence[NBestList], base: Weights) -> list[ScoredList]:
    """Score lists; raise the error of the first one that cannot be scored."""
    scored, errors = score_lists(rescorer, lists, base)
    if errors:
        raise errors[0]
    return scored


def run(
    experiment: Experiment, speech: Sequence[ScoredList], imitation: Imitation | None
) -> Iterator[dict[str, dict[str, np.ndarray]]]:
    """After each fold, yield the errors per list, (3, L), by system and number of real lists."""
    real = [item.nbest for item in experiment.real.scored]
    spoken = experiment.add_lists(speech) if speech else None
    sentences = imitation.choose_sentences(real) if imitation else []
    errors: dict[str, dict[str, np.ndarray]] = {}
    share = len(sentences) // len(SEEDS)

    for fold in range(experiment.folds.n_folds):
        others, held_out = experiment.folds.split(fold)

        def add(system: str, size: int, row: int, found: dict[str, np.ndarray], held: np.ndarray) -> None:
            for kind, counts in found.items():
                sizes = errors.setdefault(f"{system}, {kind}", {})
                sizes.setdefault(str(size), np.zeros((len(SEEDS), len(real)), dtype=int))[row, held] = counts

        for row, seed in enumerate(tqdm(SEEDS, desc=f"fold {fold + 1}")):
            nobody = np.zeros(0, dtype=np.int64)
            base = experiment.arrays.keep_features(["total"]).x[:, 0]
            add("real", 0, row, {"base": experiment.arrays.list_errors(base)[held_out]}, held_out)
            if spoken:
                add("speech pooled", 0, row, experiment.judge_pooled(nobody, held_out, spoken), held_out)
            for size in SIZES:
                lists = np.random.default_rng((seed, fold)).permutation(others)[:size]
                shown = min(size, len(real))
                add("real", shown, row, experiment.judge(lists, held_out), held_out)
                made = {"speech": spoken}
                if imitation:
                    part = sentences[row * share : (row + 1) * share]
                    texts = imitation.make([real[index] for index in lists], part)
                    made["text"] = experiment.add_lists(texts)
                for name, item in made.items():
                    if item:
                        pooled = experiment.judge_pooled(lists, held_out, item)
                        add(f"{name} pooled", shown, row, pooled, held_out)
                        prior = experiment.judge(lists, held_out, item)
                        add(f"{name} prior", shown, row, prior, held_out)
        yield errors


def summarise(experiment: Experiment, errors: dict[str, dict[str, np.ndarray]]) -> dict[str, object]:
    """Word error rates by seed, and the gain of each system over real lists alone of the same kind."""
    lists = experiment.real.scored
    words = np.array([item.evaluated.first_pass.reference_words for item in lists])
    groups = [item.evaluated.group for item in lists]
    rates = {
        system: {
            size: (100 * found.sum(axis=1) / words.sum()).round(2).tolist() for size, found in sizes.items()
        }
        for system, sizes in errors.items()
    }
    gains: dict[str, dict[str, str]] = {}
    for system, sizes in errors.items():
        kind = system.rpartition(", ")[2]
        for size, found in sizes.items():
            baseline = errors["real, base"]["0"] if size == "0" else errors[f"real, {kind}"][size]
            gain = bootstrap([baseline.mean(axis=0), found.mean(axis=0)], words, groups).gain(0, 1)
            low, high = 100 * gain.interval.low, 100 * gain.interval.high
            line = f"{100 * gain.gain:+.2f} ({low:+.2f} to {high:+.2f}), p = {gain.p_value:.3f}"
            gains.setdefault(system, {})[size] = line
    return {"wer": rates, "gain": gains}


@expand_options
def main(
    real: Annotated[str, typer.Argument(help="Real lists with references.")],
    output: Annotated[Path, typer.Option("-o", help="JSON file of error rates.")],
    bundle: BundleOption,
    *,
    speech: Annotated[Path | None, typer.Option(help="Lists made by speech.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text for lists that imitate.")] = None,
    made: Annotated[int, typer.Option(help="Number of lists to make from text.")] = 100,
    list_options: ListInputOptions,
    weight_options: WeightOptions,
) -> None:
    """Measure error rates of held-out lists with and without made lists."""
    rescorer = Rescorer.load(bundle)
    base = rescorer.ranker.effective_weights(weight_options.resolve(rescorer.bundle.weights))
    lists = [item for item in list_options.read(real) if isinstance(item, NBestList)]
    experiment = Experiment(TrainingLists(score(rescorer, lists, base), base, list(rescorer.models)))
    excluded = reference_words(lists, rescorer.bundle.normaliser)
    spoken = [item for item in read_lists(speech) if isinstance(item, NBestList)] if speech else []
    normalise = rescorer.bundle.normaliser.normalise
    spoken = [nbest for nbest in spoken if normalise(nbest.reference or "") not in excluded]
    imitation = Imitation(text, made, rescorer, bundle, base) if text else None
    for done, errors in enumerate(run(experiment, score(rescorer, spoken, base), imitation), 1):
        facts = {"folds": done, "speech_lists": len(spoken), **summarise(experiment, errors)}
        output.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    typer.run(main)

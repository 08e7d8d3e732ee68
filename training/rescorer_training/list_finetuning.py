"""Train a model in pieces of words further on n-best lists, so that ranking by it makes fewer word errors.

This is minimum word error rate training (Prabhavalkar et al. 2018, "Minimum word error rate training for
attention-based sequence-to-sequence models"), as it is done for language models that rescore (Xu et al. 2022,
"RescoreBERT"). The posterior of hypothesis i of a list is the softmax of its total score,

    P_i = softmax(S_i / T),    S_i = R_i + w · ln P(text_i),

where w is the weight of the model, and R_i is everything else in the total, which stays as it is. The loss of
a list is the expected number of errors, less their mean ē, and a pull towards a language model of what was
said: the likelihood per unit of the hypothesis b with the fewest errors,

    Σ_i P_i · (e_i − ē) − κ / n_b · ln P(text_b).

Only P(text) depends on the network. A list is therefore read twice, a few hypotheses at a time: once for the
numbers ln P(text_i), from which the loss and its derivatives by them follow, and once for their gradients.

Lists come in with scores and references. A report goes out, and a bundle if held-out lists have fewer errors:
each fold is ranked by a model that was trained on other folds, a part of which said when to stop.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from rescorer.errors import ConfigError, did_you_mean, pluralise, quote
from rescorer.evaluation.folds import count_tuning_lists, fingerprint_list, make_folds
from rescorer.evaluation.list_errors import gain_to_dict, interval_to_list, to_percent
from rescorer.evaluation.scored_lists import MeasuredList, order_by_decision, score_lists
from rescorer.evaluation.statistics import Bootstrap, bootstrap, choose_units
from rescorer.evaluation.systems import FIRST_PASS
from rescorer.evaluation.tuning import Judgement, judge
from rescorer.models.bundle import PHRASES, RERANKERS, TEXT, WEIGHTS, Bundle, publish
from rescorer.pipeline import Rescorer
from rescorer.ranking import log_posteriors, posteriors
from rescorer.scoring.options import RescoreOptions
from rescorer.trie import Words
from rescorer.types import MAXIMUM, Weights
from rescorer.weights import MIXTURE, totals, uses_model
from rescorer_training.adaptation import AFTER, BEFORE, write_settings
from rescorer_training.finetuning import (
    Finetuned,
    Run,
    RunOptions,
    SourceModel,
    Trainable,
    UnitSentence,
    UnitWriter,
    add_gradients,
    check_range,
    choose_rank,
    plan_parts,
    sum_losses,
)

LISTS_PER_STEP = 8
MIN_LISTS = 20
"""Smallest number of lists to train on. Fewer lists cannot show any gain."""
MIN_UNITS = 6
"""Smallest number of groups, or of lists without groups. Fewer give no interval."""
MAX_LIKELIHOOD = 1e6
TEMPERATURE_STEPS = np.geomspace(0.01, 1.0, 41)
"""Temperatures that are tried, as multiples of the spread of totals within lists."""


@dataclass(frozen=True, slots=True)
class ListOptions(RunOptions):
    """Options of a run on lists.

    Raises:
        ConfigError: a value is out of range.
    """

    epochs: int = 4
    hypotheses: int = 10
    """Largest number of hypotheses of a list that training reads: those with the highest totals before, and
    the one with the fewest errors."""
    likelihood: float = 0.01
    """κ; 0: only errors count."""

    def __post_init__(self) -> None:
        RunOptions.__post_init__(self)  # super() does not work in a dataclass with slots
        check_range(self, {"hypotheses": (2, None)})
        if not 0 <= self.likelihood <= MAX_LIKELIHOOD:
            raise ConfigError(f"likelihood is {self.likelihood}; expected 0 to {MAX_LIKELIHOOD:,.0f}")


@dataclass(frozen=True, slots=True)
class TrainingList:
    """Those hypotheses of a list that training reads."""

    sentences: Sequence[UnitSentence]
    errors: np.ndarray
    """(H,) float64."""
    rest: np.ndarray
    """(H,) float64, R: the totals without the model."""
    log_probs: np.ndarray
    """(H,) float64, ln P of the texts by the model as it was."""

    def update(self, digest: Any) -> None:
        """Add everything that training depends on to a hash."""
        digest.update(repr([(one.units, one.first_scored) for one in self.sentences]).encode())
        for values in (self.errors, self.rest):
            digest.update(values.tobytes())


@dataclass(frozen=True, slots=True)
class ErrorLoss:
    """The loss of a list."""

    weight: float
    """w."""
    temperature: float
    """T."""
    likelihood: float = 0.0
    """κ."""

    @classmethod
    def fit(cls, lists: Sequence[TrainingList], weight: float, likelihood: float) -> ErrorLoss:
        """Choose T so that hypotheses with the fewest errors are as probable as possible before training.

        Totals are no calibrated log-probabilities: acoustic scores alone would give almost all of the
        probability to one hypothesis of a list, and nothing could be learnt from the others. T is at most the
        standard deviation of the totals within lists, so that posteriors depend on the model even if totals
        say nothing about errors before training.
        """
        by_list = [item.rest + weight * item.log_probs for item in lists]
        spread = float(np.sqrt(np.mean([values.var() for values in by_list]))) or 1.0
        temperatures = spread * TEMPERATURE_STEPS
        likelihoods = np.zeros(len(temperatures))
        for item, values in zip(lists, by_list, strict=True):
            is_best = item.errors == item.errors.min()
            for place, temperature in enumerate(temperatures):
                likelihoods[place] += np.logaddexp.reduce(log_posteriors(values, temperature)[is_best])
        return cls(weight, float(temperatures[likelihoods.argmax()]), likelihood)

    def expect(self, item: TrainingList, log_probs: np.ndarray) -> float:
        """Expected number of errors, Σ_i P_i · e_i, given ln P of the texts, (H,)."""
        return float(posteriors(item.rest + self.weight * log_probs, self.temperature) @ item.errors)

    def differentiate(self, item: TrainingList, log_probs: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its derivatives by ln P of the texts, (H,).

        The derivative of the first part is w / T · P_i · (e_i − Σ_j P_j · e_j), whatever ē is.
        """
        beliefs = posteriors(item.rest + self.weight * log_probs, self.temperature)
        centred = item.errors - item.errors.mean()
        loss = float(beliefs @ centred)
        derivatives = self.weight / self.temperature * beliefs * (centred - loss)
        best = int(item.errors.argmin())
        sentence = item.sentences[best]
        pull = self.likelihood / max(len(sentence.units) - sentence.first_scored, 1)
        derivatives[best] -= pull
        return loss - pull * float(log_probs[best]), derivatives


class ListRun(Run[list[TrainingList]]):
    """A run on lists. A step is a few lists.

    Args:
        train, fitting: lists to train on, and lists by which training stops.
        state: see ``Run``.
    """

    unit = "lists"
    figure = "expected errors per list"

    def __init__(
        self,
        trainable: Trainable,
        writer: UnitWriter,
        lists: tuple[Sequence[TrainingList], Sequence[TrainingList]],
        loss: ErrorLoss,
        options: ListOptions,
        state: Path | None = None,
    ) -> None:
        (self.train, self.fitting), self.loss = lists, loss
        digest = hashlib.sha256()
        for part in lists:
            for item in part:
                item.update(digest)
            digest.update(b"\0")
        identity = {**asdict(loss), "lists": digest.hexdigest()}
        super().__init__(trainable, writer, options, options.epochs * len(self.train), identity, state)

    def make_steps(self) -> Iterator[list[TrainingList]]:
        random = np.random.default_rng(self.run_options.seed)
        step: list[TrainingList] = []
        while True:
            for number in random.permutation(len(self.train)).tolist():
                step.append(self.train[number])
                if len(step) == min(LISTS_PER_STEP, len(self.train)):
                    yield step
                    step = []

    def validate(self, check: Callable[[], object]) -> float:
        expected = 0.0
        for first in range(0, len(self.fitting), LISTS_PER_STEP):
            items = self.fitting[first : first + LISTS_PER_STEP]
            expected += sum(map(self.loss.expect, items, self.score(items)))
            check()
        return expected / len(self.fitting)

    def add_step(self, step: Sequence[TrainingList]) -> tuple[float, int]:
        losses, derivatives = zip(*map(self.loss.differentiate, step, self.score(step)), strict=True)
        factors = -np.concatenate(derivatives) / len(step)
        sentences = [sentence for item in step for sentence in item.sentences]
        for part in self._plan_parts(sentences):
            add_gradients(self.network, *self._pad(sentences, part), factors[part])
        return sum(losses), len(step)

    def score(self, items: Sequence[TrainingList]) -> list[np.ndarray]:
        """ln P of the texts of lists by the network as it is now, (H,) float64 each."""
        sentences = [sentence for item in items for sentence in item.sentences]
        log_probs = np.zeros(len(sentences))
        for part in self._plan_parts(sentences):
            log_probs[part] = -sum_losses(self.network, *self._pad(sentences, part))
        return np.split(log_probs, np.cumsum([len(item.sentences) for item in items])[:-1])

    def _plan_parts(self, sentences: Sequence[UnitSentence]) -> list[list[int]]:
        """Indices of the sentences that are read together; those without a scored unit are in none."""
        scored = [index for index, sentence in enumerate(sentences) if sentence.is_scored]
        return [[scored[i] for i in part] for part in plan_parts([sentences[i] for i in scored])]

    def _pad(self, sentences: Sequence[UnitSentence], part: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.writer.pad([sentences[index] for index in part], self.network.device)


def choose_model(bundle: Bundle, name: str | None, weights: Weights) -> str:
    """Choose the model to train.

    Args:
        name: its name; None: the only model in pieces of words.
        weights: the weights that rank.

    Raises:
        ConfigError: there is no such model, or the weights do not give its sentences a weight by itself.
    """
    known = sorted(bundle.open_vocabulary)
    if not known:
        raise ConfigError(
            f"{bundle.label} has no model in pieces of words to train; add one with `rescorer-train bundle "
            "--units`, or train a reranker on the lists: `rescorer-train reranker`"
        )
    if name is None and len(known) > 1:
        raise ConfigError(f"{bundle.label} has the models {', '.join(known)}; choose one with --model")
    name = name or known[0]
    if name not in known:
        expected = f"expected one in pieces of words: {', '.join(known)}{did_you_mean(name, known)}"
        raise ConfigError(f"--model {quote(name)}: {expected}")
    if any(weights.rerankers.values()):
        raise ConfigError(
            f"weights {quote(weights.name)} use a reranker, which was trained with the model as it is; "
            "choose others with --weights"
        )
    if weights.lm.get(MIXTURE) and weights.mixture.get(name):
        raise ConfigError(
            f"{quote(name)} is mixed word by word with other models under the weights {quote(weights.name)}, "
            "and only a model whose sentences have a weight can be trained on lists; choose weights without "
            f"a share of {quote(name)} in the mixture"
        )
    if not weights.lm.get(name):
        raise ConfigError(
            f"{quote(name)} has no weight under the weights {quote(weights.name)}; find one with `rescorer "
            f"tune --free lm:{name},word`, and give it with --weights, or with -w lm:{name}=0.5"
        )
    return name


class PreparedLists(NamedTuple):
    """Lists, and what training reads of them."""

    scored: Sequence[MeasuredList]
    """All lists that have references, with scores of the models as they are."""
    usable: Sequence[TrainingList | None]
    """For each list, what training reads; None if nothing can be learnt from it."""
    skipped: Counter[str]
    """Number of lists from which nothing can be learnt, by the reason."""


ONE, EQUAL = "one hypothesis", "equal numbers of errors"
LONG, PARTIAL = "too long for the model", "unfinished hypotheses"
"""These four are the reasons to skip a list."""


class ListPreparer:
    """Prepares lists for training.

    Args:
        weights: complete weights that rank.
    """

    def __init__(
        self, rescorer: Rescorer, writer: UnitWriter, name: str, weights: Weights, options: ListOptions
    ) -> None:
        self.ranker, self.writer, self.name = rescorer.ranker, writer, name
        self.weights, self.options = weights, options
        self.bound = self.ranker.bind(RescoreOptions(weights, MAXIMUM))
        self.reads_surface = name in rescorer.bundle.surface

    def prepare(self, scored: Sequence[MeasuredList]) -> PreparedLists:
        """Prepare lists that have been scored.

        Raises:
            ConfigError: there are too few lists or groups, or nothing can be learnt from any list.
        """
        groups = {item.evaluated.group or item.evaluated.id for item in scored}
        for what, n_found, least in (("list", len(scored), MIN_LISTS), ("group", len(groups), MIN_UNITS)):
            if n_found < least:
                raise ConfigError(
                    f"{pluralise(n_found, what)} with references; a model is trained and judged on at least "
                    f"{least}, and some hundred lists show a gain"
                )
        found = [self._prepare(item) for item in scored]
        usable = [None if isinstance(one, str) else one for one in found]
        skipped = Counter(one for one in found if isinstance(one, str))
        if not any(usable):
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in skipped.items())
            raise ConfigError(f"nothing can be learnt from any of the lists ({reasons})")
        return PreparedLists(scored, usable, skipped)

    def _prepare(self, item: MeasuredList) -> TrainingList | str:
        total = totals(item.components, self.weights)
        order = item.selection.order(item.words, total)[0]
        errors = np.array([counts.errors for counts in item.evaluated.hypotheses], dtype=np.float64)
        best = min(order, key=lambda index: errors[index])
        order = order[: self.options.hypotheses]
        chosen = sorted({*order, best})
        if len(chosen) < 2:
            return ONE
        if len(set(errors[chosen])) < 2:
            return EQUAL
        if any(item.nbest.hypotheses[index].partial for index in chosen):
            return PARTIAL
        prepared = self.ranker.prepare(item.nbest, self.bound)
        words, history = prepared.words, prepared.history
        if self.reads_surface:
            words, history = prepared.surfaces, prepared.surface_history
        sentences = [self.writer.write(words[index], history) for index in chosen]
        longest = max(len(sentence.units) for sentence in sentences)
        if self.name in prepared.unread or longest > self.writer.limit:
            return LONG
        log_probs = item.components[self.name]
        rest = total - self.weights.lm[self.name] * log_probs
        return TrainingList(sentences, errors[chosen], rest[chosen], log_probs[chosen])


SYSTEMS = (FIRST_PASS, BEFORE, AFTER)
"""The systems whose errors are compared."""


@dataclass(frozen=True)
class ListReport:
    """Figures about a model that was trained on lists, and the model as it was, under the same weights."""

    model: str
    weights: Weights
    bootstrap: Bootstrap
    """Bootstrap of the first pass, the model before and the model after, each list held out."""
    judgement: Judgement
    """Result of comparing the model after with ``baseline``."""
    baseline: str
    """The first pass or the model before, whichever has fewer errors, which training must beat."""
    expected: tuple[float, float]
    """Mean expected number of errors per list before and after, held out, at the temperature of each fold."""
    folds: str
    """Description of how the lists were divided into folds."""
    in_folds: Sequence[Finetuned]
    """Training of each fold's model."""
    skipped: Mapping[str, int]
    """Number of lists from which nothing could be learnt, by the reason."""
    n_seen: int
    """Number of lists on which the weights were tuned: for these weights, they are not held out."""

    @property
    def is_better(self) -> bool:
        """Whether the trained model makes fewer errors than the baseline by more than chance."""
        return self.judgement.is_better

    def explain(self) -> str:
        """Say in one sentence what training gains, or why nothing is written."""
        gain, low = 100 * self.judgement.gain.gain, 100 * self.judgement.gain.lower_bound
        baseline = "the first pass" if self.baseline == FIRST_PASS else "the model before"
        if self.is_better:
            return (
                f"held out, the trained model gains {gain:.2f} points over {baseline}, at least {low:.2f} "
                "with 97.5 % confidence"
            )
        if not gain:
            return f"held out, the trained model makes as many errors as {baseline}"
        if gain < 0:
            return f"held out, the trained model loses {-gain:.2f} points against {baseline}"
        unit = self.judgement.unit
        reason = f"the lower bound is {low:.2f}" if np.isfinite(low) else f"too few {unit}s differ"
        return f"the held-out gain of {gain:.2f} points over {baseline} may be chance, because {reason}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent."""
        return {
            "model": self.model,
            "weights": self.weights.name,
            "better": self.is_better,
            "reason": self.explain(),
            "systems": [
                {
                    "name": name,
                    "wer": to_percent(float(self.bootstrap.rates[index])),
                    "interval": interval_to_list(self.bootstrap.interval(index)),
                }
                for index, name in enumerate(SYSTEMS)
            ],
            "baseline": self.baseline,
            "gain_over_baseline": gain_to_dict(self.judgement.gain),
            "after_over_before": gain_to_dict(self.bootstrap.gain(1, 2)),
            "expected_errors": [round(value, 4) for value in self.expected],
            "lists": self.judgement.n_lists,
            "lists_needed": self.judgement.n_lists_needed,
            "units": self.judgement.n_units,
            "warning": self.judgement.warning,
            "folds": self.folds,
            "in_folds": [describe_run(one) for one in self.in_folds],
            "skipped": dict(self.skipped),
            "weights_tuned_on": self.n_seen,
        }


def describe_run(found: Finetuned) -> dict[str, Any]:
    """Facts about a run on lists as JSON data, without its duration, so that the same run gives the same."""
    return {
        "improved": found.is_improved,
        "fitting_expected_errors": [round(value, 4) for value in found.figures],
        "lists_read": found.n_read,
        "rank": found.rank,
        "trained_parameters": found.trained,
    }


class ListFinetuning:
    """Trains a model on lists, and judges it on lists that took no part in it.

    Args:
        prepared: result of ``ListPreparer.prepare``.
        weights: complete weights that rank. They stay the same.
        states: folder for the states of the runs; None: they are not saved.
    """

    def __init__(
        self,
        rescorer: Rescorer,
        source: SourceModel,
        prepared: PreparedLists,
        weights: Weights,
        options: ListOptions,
        states: Path | None = None,
    ) -> None:
        self.rescorer, self.source, self.prepared = rescorer, source, prepared
        self.weights, self.options, self.states = weights, options, states
        self.name = source.model.name
        self.rank = choose_rank(source.model, options)
        evaluated = [item.evaluated for item in prepared.scored]
        self.folds = make_folds(
            [one.id for one in evaluated],
            [one.group for one in evaluated],
            [item.reference for item in prepared.scored],
        )

    def train(self, chosen: np.ndarray, name: str) -> tuple[Trainable, Finetuned, ErrorLoss]:
        """Train on some lists, of which a part says when to stop.

        Args:
            chosen: indices of the lists.
            name: name of the run.

        Raises:
            ConfigError: nothing can be learnt from these lists.
        """
        inner = self.folds.subdivide(chosen)
        train, fitting = (
            [one for i in part if (one := self.prepared.usable[chosen[i]]) is not None]
            for part in inner.split(0)
        )
        if not train or not fitting:
            raise ConfigError(
                "too few lists have hypotheses with different numbers of errors: a fold has none to train "
                "on, or none by which training stops; give more lists"
            )
        loss = ErrorLoss.fit(train, self.weights.lm[self.name], self.options.likelihood)
        trainable = self.source.make_trainable(self.options, self.rank)
        state = self.states / f"{name}.safetensors" if self.states else None
        run = ListRun(trainable, self.source.writer, (train, fitting), loss, self.options, state)
        progress = run.run(f"{self.name}, {name}")
        n_trained = sum(parameter.numel() for parameter in run.parameters)
        found = Finetuned(
            self.source.folder, progress.figures, progress.n_read, progress.seconds, self.rank, n_trained
        )
        return trainable, found, loss

    def cross_validate(self) -> ListReport:
        """Train a model for each fold on the other folds, and rank the lists of the fold before and after."""
        scored = self.prepared.scored
        after, runs, expected = list(scored), list[Finetuned](), np.zeros((2, len(scored)))
        for fold in range(self.folds.n_folds):
            others, held_out = self.folds.split(fold)
            trainable, found, loss = self.train(others, f"fold-{fold + 1}")
            runs.append(found)
            if found.is_improved:
                for index, item in zip(held_out, self._score_after(trainable, held_out), strict=True):
                    after[index] = item
            for row, items in enumerate((scored, after)):
                for index in held_out:
                    expected[row, index] = self._expect(items[index], loss.temperature)
        counts = [
            [item.evaluated.first_pass for item in scored],
            *(
                [item.evaluated.hypotheses[order_by_decision(item, self.weights)[0]] for item in items]
                for items in (scored, after)
            ),
        ]
        errors = np.array([[one.errors for one in system] for system in counts])
        words = np.array([[one.reference_words for one in system] for system in counts])
        groups = [item.evaluated.group for item in scored]
        best = int(errors[:2].sum(axis=1).argmin())
        return ListReport(
            self.name, self.weights, bootstrap(errors, words, choose_units(groups)),
            judge(errors[best], errors[2], words[[best, 2]], groups), SYSTEMS[best],
            tuple(expected.mean(axis=1).tolist()),
            self.folds.describe(), runs, self.prepared.skipped,
            count_tuning_lists(self.weights, (item.nbest for item in scored)),
        )  # fmt: skip

    def _score_after(self, trainable: Trainable, held_out: np.ndarray) -> list[MeasuredList]:
        """Score lists as they are served, with the trained model in place of the model as it was."""
        rescorer = Rescorer(
            self.rescorer.bundle, {**self.rescorer.models, self.name: self.source.merge(trainable)}
        )
        rescorer.ranker = self.rescorer.ranker  # with its text rules
        before = [self.prepared.scored[index] for index in held_out]
        lists, counting = [item.nbest for item in before], before[0].counting
        scored, errors = score_lists(rescorer, lists, self.weights, counting=counting)
        if errors:
            raise errors[0]
        # only the components are new
        return [replace(item, components=new.components) for item, new in zip(before, scored, strict=True)]

    def _expect(self, item: MeasuredList, temperature: float) -> float:
        """Expected number of errors of a list, of all hypotheses that take part in its ranking."""
        order = item.selection.order(item.words, total := totals(item.components, self.weights))[0]
        errors = np.array([item.evaluated.hypotheses[index].errors for index in order])
        return float(posteriors(total[order], temperature) @ errors)

    def publish(self, report: ListReport, output: Path) -> Finetuned:
        """Train on all lists, and publish a copy of the bundle with the trained model, unless training does
        not improve the expected errors of the lists by which it stops.

        Rerankers, confidences and held-out error rates belong to the model as it was, and are left out.

        Args:
            report: result of ``cross_validate``.
            output: folder of the new bundle, NAME/VERSION.
        """
        everything = np.arange(len(self.prepared.scored))
        trainable, found, loss = self.train(everything, "all")
        if not found.is_improved:
            return found
        bundle, scored = self.rescorer.bundle, self.prepared.scored
        used = tuple(fingerprint_list(item.nbest) for item in scored)
        facts = {**asdict(self.options), **asdict(loss), **describe_run(found), **report.to_dict()}
        texts = [text for item in scored for text in self._read(item)]
        prefix = bundle.manifest["models"][self.name]["path"].rstrip("/") + "/"

        def change(weights: Weights) -> Weights:
            """Name the lists, so that figures measured on them are known not to be held out."""
            if not uses_model(weights, self.name):
                return weights
            return replace(weights, tuned_on=tuple(dict.fromkeys((*weights.tuned_on, *used))))

        def fill(partial: Path) -> dict[str, Any]:
            for file in bundle.manifest["files"]:
                if file != TEXT and not file.startswith((f"{WEIGHTS}/", f"{PHRASES}/", f"{RERANKERS}/")):
                    source = folder / file.removeprefix(prefix) if file.startswith(prefix) else None
                    (partial / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source or bundle.files.path / file, partial / file)
            write_settings(bundle, partial, change)
            stale = ("schema", "files", "measured")
            kept = {key: value for key, value in bundle.manifest.items() if key not in stale}
            training = {**kept.get("training", {}), "list_finetuning": {"source": bundle.label, **facts}}
            name, version = output.absolute().parent.name, int(output.name)
            return {**kept, "name": name, "version": version, "training": training}

        with tempfile.TemporaryDirectory(prefix="rescorer-finetune-") as temporary:
            folder = Path(temporary) / "model"
            self.source.write(trainable, texts, folder, facts)
            publish(output, fill)
        return found

    def _read(self, item: MeasuredList) -> Sequence[Words]:
        """The words of a list's hypotheses in the form in which the model reads texts."""
        if self.name in self.rescorer.bundle.surface:
            return [tuple(hypothesis.text.split()) for hypothesis in item.nbest.hypotheses[:1]]
        return item.read[:1]

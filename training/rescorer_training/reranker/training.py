"""Train a reranker on scored lists, judge it on lists that took no part in it, and publish it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rescorer.errors import BundleError, ConfigError, quote
from rescorer.evaluation.calibration import expected_calibration_error
from rescorer.evaluation.folds import Folds, count_tuning_lists, fingerprint_list, make_folds
from rescorer.evaluation.list_errors import gain_to_dict, interval_to_list, to_percent
from rescorer.evaluation.scored_lists import MeasuredList
from rescorer.evaluation.statistics import Bootstrap, bootstrap, choose_units
from rescorer.evaluation.systems import (
    ORACLE,
    Comparison,
    compare_systems,
    count_by_list,
    drop_models,
    find_streams,
)
from rescorer.evaluation.tuning import Judgement, judge
from rescorer.models.bundle import RERANKERS, WEIGHTS, Bundle, check_label, hash_used_models, publish
from rescorer.pipeline import Rescorer
from rescorer.reranking.features import (
    FEATURE_KINDS,
    MAX_TEMPERATURE,
    ListView,
    feature_matrix,
    needed_components,
)
from rescorer.reranking.reranker import Reranker, write_reranker
from rescorer.text import Normaliser
from rescorer.types import MAXIMUM, Weights
from rescorer.weights import MIXTURE, totals, weights_to_dict
from rescorer_training.reranker import fitting
from rescorer_training.reranker.arrays import (
    EMPTY,
    TEMPERATURE_STEPS,
    TOTAL,
    WITH_ENCODING,
    Choice,
    EncodedLists,
    TrainingArrays,
    compress_encoding,
    is_encoding,
    make_arrays,
    make_candidates,
    make_feature_sets,
)

RERANKER = "reranker"
"""Name of the reranker's row in reports."""


@dataclass(frozen=True, slots=True)
class System:
    """The errors of one way to choose the hypothesis of each list, such as a rule or a reranker."""

    name: str
    errors: np.ndarray
    """(L,) int64 errors of the chosen hypotheses."""
    words: np.ndarray
    """(L,) int64 number of reference words."""
    held_out: bool
    """Whether each list was decided by a system that was tuned without this list."""
    is_rule: bool = True
    """Whether this is one of the rules that a reranker must beat."""


@dataclass(frozen=True, slots=True)
class FeatureWeight:
    """The weight of a feature in the linear part. Features are scaled to a spread of 1 within lists."""

    name: str
    weight: float
    """Mean over the networks."""
    fold_mean: float
    fold_spread: float
    """Standard deviation over the folds."""


@dataclass(frozen=True, slots=True)
class FeatureWorth:
    """Worth of some features: by how much the held-out error rate grows if training leaves them out."""

    name: str
    """Kind of the features; or the stream or the model from whose scores they are computed."""
    features: tuple[str, ...]
    loss: float
    """Error rate without the features minus error rate with them."""


@dataclass(frozen=True, slots=True)
class RerankerReport:
    """Figures about a reranker and the rules that it must beat."""

    systems: tuple[System, ...]
    """The first pass, the simple rules, the oracle and, last, the reranker."""
    bootstrap: Bootstrap
    """Bootstrap of all systems with the same draws."""
    best_rule: str
    """Name of the simple rule with the fewest errors."""
    judgement: Judgement
    """Result of comparing the reranker with the best simple rule."""
    candidate: Choice
    """Candidate of the reranker, chosen by cross-validation on all lists."""
    fold_candidates: tuple[Choice, ...]
    """For each fold, the candidate that was chosen without the lists of the fold."""
    folds: str
    """Description of how the lists were divided into folds."""
    weights: tuple[FeatureWeight, ...]
    worth: tuple[FeatureWorth, ...]
    calibration_error: float
    """Expected calibration error of held-out posteriors of first-ranked hypotheses.

    A posterior claims to be the probability that no other hypothesis of the list has fewer errors."""
    mean_posterior: float
    share_right: float
    """Share of the held-out lists whose first-ranked hypothesis has as few errors as any other."""
    n_seen: int = 0
    """Number of lists on which the base weights were tuned: for these weights, they are not held out."""
    prior_lists: str = ""
    """Description of the prior lists; empty without any."""

    @property
    def is_better(self) -> bool:
        """Whether the reranker beats the best simple rule by more than chance."""
        return self.judgement.is_better

    def explain(self) -> str:
        """Say in one sentence what the reranker gains, or why it is not written."""
        gain, low = 100 * self.judgement.gain.gain, 100 * self.judgement.gain.lower_bound
        rule = f"the best simple rule ({self.best_rule!r})"
        if self.is_better:
            return (
                f"held out, the reranker gains {gain:.2f} points over {rule}, at least {low:.2f} with 97.5 % "
                "confidence"
            )
        if not self.judgement.gain.gain:
            return f"held out, the reranker makes as many errors as {rule}"
        if gain < 0:
            return f"held out, the reranker loses {-gain:.2f} points against {rule}"
        bound = (
            f"the lower bound is {low:.2f}"
            if np.isfinite(low)
            else f"the two differ in too few {self.judgement.unit}s"
        )
        return f"the held-out gain of {gain:.2f} points over {rule} may be chance, because {bound}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent."""
        judgement = self.judgement
        return {
            "better": self.is_better,
            "reason": self.explain(),
            "lists": judgement.n_lists,
            "lists_needed": judgement.n_lists_needed,
            "units": judgement.n_units,
            "folds": self.folds,
            "warning": judgement.warning,
            "base_tuned_on": self.n_seen,
            "prior_lists": self.prior_lists,
            "best_rule": self.best_rule,
            "gain_over_best_rule": gain_to_dict(judgement.gain),
            "systems": [
                {
                    "name": system.name,
                    "wer": to_percent(float(self.bootstrap.rates[index])),
                    "interval": interval_to_list(self.bootstrap.interval(index)),
                    "errors": int(system.errors.sum()),
                    "reference_words": int(system.words.sum()),
                    "held_out": system.held_out,
                    **gain_to_dict(self.bootstrap.gain(0, index)),
                }
                for index, system in enumerate(self.systems)
            ],
            "candidate": str(self.candidate),
            "fold_candidates": list(map(str, self.fold_candidates)),
            "weights": {
                weight.name: {name: value for name, value in asdict(weight).items() if name != "name"}
                for weight in self.weights
            },
            "worth": {
                worth.name: {"features": list(worth.features), "loss": to_percent(worth.loss)}
                for worth in self.worth
            },
            "calibration": {
                "expected_calibration_error": self.calibration_error,
                "mean_posterior": self.mean_posterior,
                "share_right": self.share_right,
            },
        }


def build_report(
    scored: Sequence[MeasuredList],
    training: fitting.NestedTraining,
    held_out: fitting.CrossValidation,
    candidate: Choice,
    fitted: fitting.Fitted,
    systems: Sequence[System],
) -> RerankerReport:
    """Judge a reranker by cross-validation, and describe the reranker that was fitted on all lists.

    Args:
        held_out: result of the cross-validation.
        candidate: candidate of the reranker that was fitted on all lists.
        fitted: that reranker.
        systems: the first pass, then simple rules and the oracle, on the same lists.
    """
    arrays, folds = training.arrays, training.folds
    chosen = arrays.choose(held_out.scores) - arrays.offsets[:-1]
    counts = [item.evaluated.hypotheses[i] for item, i in zip(scored, chosen.tolist(), strict=True)]
    words = np.array([count.reference_words for count in counts], dtype=np.int64)
    own = System(RERANKER, held_out.errors, words, held_out=True, is_rule=False)
    best = min((system for system in systems if system.is_rule), key=lambda system: system.errors.sum())
    everything = (*systems, own)
    groups = [item.evaluated.group for item in scored]
    claims, right = arrays.claims(held_out.scores)
    return RerankerReport(
        systems=everything,
        bootstrap=bootstrap(
            np.stack([system.errors for system in everything]),
            np.stack([system.words for system in everything]),
            choose_units(groups),
        ),
        best_rule=best.name,
        judgement=judge(best.errors, own.errors, np.stack([best.words, own.words]), groups),
        candidate=candidate,
        fold_candidates=held_out.chosen,
        folds=folds.describe(),
        weights=_describe_weights(training, candidate, fitted),
        worth=_measure_worth(training, candidate, fitted, words),
        calibration_error=expected_calibration_error(claims, right),
        mean_posterior=float(claims.mean()),
        share_right=float(right.mean()),
    )


def _describe_weights(
    training: fitting.NestedTraining, candidate: Choice, fitted: fitting.Fitted
) -> tuple[FeatureWeight, ...]:
    weights = summarise_weights(fitted, training.arrays)
    folds = [summarise_weights(fold, training.arrays) for fold in training.fit_folds(candidate)]
    in_folds = {name: np.array([fold[name] for fold in folds]) for name in weights}
    return tuple(
        FeatureWeight(name, weight, float(in_folds[name].mean()), float(in_folds[name].std()))
        for name, weight in weights.items()
    )


def summarise_weights(fitted: fitting.Fitted, arrays: TrainingArrays) -> dict[str, float]:
    """Return the linear weight of each feature.

    An encoding of the words has one entry: the standard deviation within lists of its part of the scores.
    """
    linear, columns = fitted.linear, [is_encoding(feature) for feature in fitted.features]
    weights = {
        feature: float(weight)
        for feature, weight in zip(fitted.features, linear, strict=True)
        if not is_encoding(feature)
    }
    if any(columns):
        encoded = arrays.keep_features([name for name in fitted.features if is_encoding(name)])
        name = encoded.features[0].rpartition(":")[0]
        weights[name] = encoded.spread(encoded.x @ linear[columns])
    return weights


def _measure_worth(
    training: fitting.NestedTraining, candidate: Choice, fitted: fitting.Fitted, words: np.ndarray
) -> tuple[FeatureWorth, ...]:
    """Measure the worth of each group that ``group_features`` finds, by training without the group."""
    if len(fitted.features) < 2:
        return ()
    groups = group_features(fitted.features)
    with_all = training.cross_validate_candidate(candidate).errors.sum()
    worth = []
    for name, features in groups.items():
        errors = training.cross_validate_candidate(candidate, features).errors.sum()
        worth.append(FeatureWorth(name, features, float(errors - with_all) / max(int(words.sum()), 1)))
    return tuple(sorted(worth, key=lambda part: -part.loss))


def group_features(features: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Group features. Those of a group are left out together to measure their worth.

    Features of the same stream or model form a group, as do the components of an encoding. Other features are
    grouped by kind. The base total and the penalty of empty hypotheses, from which training starts, are never
    left out.
    """
    groups: dict[str, list[str]] = {}
    for feature in features:
        kind, _, argument = feature.partition(":")
        is_score = not is_encoding(feature) and FEATURE_KINDS[kind].argument == "component"
        if feature not in (TOTAL, EMPTY):
            groups.setdefault(argument if is_score else kind, []).append(feature)
    return {name: tuple(names) for name, names in groups.items()}


PAGE = "README.md"
"""Name of the page with figures in the folder of the reranker."""
MAX_NAME_BYTES = 200
"""Maximum length of a name in UTF-8. File systems allow 255 bytes including a suffix."""


def check_output(output: Path, bundle: Bundle, name: str) -> None:
    """Raise ConfigError, before any work is done, if the bundle cannot be written as the user asks."""
    if not (output.name.isascii() and output.name.isdecimal()):
        raise ConfigError(
            f"-o {output}: the last part of the path must be a version number, such as {output}/1"
        )
    _check_name("-o", output.absolute().parent.name)
    if output.exists():
        raise ConfigError(f"-o {output} exists, and bundles are immutable; choose another version")
    if name in bundle.weights or name in bundle.rerankers:
        taken = ", ".join({**bundle.weights, **bundle.rerankers})
        raise ConfigError(f"--name {quote(name)}: the bundle already has {taken}; choose another name")
    _check_name("--name", name)


def _check_name(option: str, name: str) -> None:
    """Raise ConfigError unless a folder and a weights set can have this name."""
    try:
        check_label(option, "the name", name)
    except BundleError as error:
        raise ConfigError(str(error)) from None
    if name != name.strip() or name.startswith(".") or "\\" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(f"{option} {quote(name)}: expected a name for a folder, such as reranker")


def publish_with_reranker(bundle: Bundle, reranker: Reranker, page: str, output: Path) -> None:
    """Publish a copy of a bundle with a reranker added to it.

    Args:
        page: Markdown page about the reranker, for its folder.
        output: folder of the new bundle, NAME/VERSION.
    """
    weights = Weights(
        reranker.name,
        lm={},
        rerankers={reranker.name: 1.0},
        mixture=reranker.base.mixture,
        cache=reranker.base.cache,
        tuned_on=reranker.tuned_on,
        held_out=reranker.held_out,
    )

    models = hash_used_models(reranker, bundle.manifest)

    def fill(partial: Path) -> dict[str, Any]:
        for file in bundle.manifest["files"]:
            copy = partial / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.folder / file, copy)
        write_reranker(replace(reranker, models=models), partial / RERANKERS / reranker.name)
        (partial / RERANKERS / reranker.name / PAGE).write_text(page, encoding="utf-8")
        file = partial / WEIGHTS / f"{reranker.name}.json"
        file.write_text(json.dumps(weights_to_dict(weights), indent=2) + "\n", encoding="utf-8")
        kept = {key: value for key, value in bundle.manifest.items() if key not in ("schema", "files")}
        return {**kept, "name": output.absolute().parent.name, "version": int(output.name)}

    publish(output, fill)


BASE = "base weights"
"""Name of the row of the base weights in reports."""
MIN_LISTS = 20
"""Smallest number of lists to train on. Fewer lists cannot show any gain."""
MAX_SPREAD = MAX_TEMPERATURE / max(TEMPERATURE_STEPS)
"""Largest standard deviation of the base totals within lists, in nats. Temperatures are multiples of it."""
MIN_UNITS = 6
"""Smallest number of groups, or of lists without groups. Fewer give no interval."""


@dataclass(frozen=True, slots=True)
class TrainingLists:
    """Lists with references, all scored with the same models and base weights."""

    scored: Sequence[MeasuredList]
    base: Weights
    """Complete base weights, including the λ of the mixture. Base totals are totals under these weights."""
    models: Sequence[str]
    """Names of the language models."""

    @property
    def streams(self) -> list[str]:
        """Streams that all lists have."""
        names = set(find_streams(self.scored[0].components, self.base)).difference(self.models)
        by_list = [item.components for item in self.scored]
        return [name for name in by_list[0] if name in names and all(name in part for part in by_list)]

    @property
    def totals(self) -> list[np.ndarray]:
        """Totals of each list under the base weights, (H,) each."""
        return [totals(item.components, self.base) for item in self.scored]

    @property
    def spread(self) -> float:
        """Standard deviation of the base totals within lists, in nats; not finite if totals are too large."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sqrt(np.mean([values.var() for values in self.totals])))

    def make_folds(self, *, share_references: bool = False) -> Folds:
        """Divide the lists into folds; see ``rescorer.evaluation.folds.make_folds``.

        Args:
            share_references: divide by groups alone, so that lists in different folds may have the same
                reference.
        """
        ids = [item.evaluated.id for item in self.scored]
        groups = [item.evaluated.group for item in self.scored]
        references = [item.reference for item in self.scored]
        return make_folds(ids, groups, ids if share_references else references)

    def check(self) -> None:
        """Raise ConfigError if the lists are unfit for training a reranker, or for judging it."""
        self.check_scores()
        groups = {item.evaluated.group or item.evaluated.id for item in self.scored}
        if len(groups) < MIN_UNITS:
            raise ConfigError(
                f"groups of lists: {len(groups)}; a reranker is judged on at least {MIN_UNITS}: add lists of "
                "other speakers, or leave out --groups if it is wrong"
            )

    def check_scores(self) -> None:
        """Raise ConfigError if the scores of the lists are unfit for training a reranker."""
        if any(self.base.rerankers.values()):
            raise ConfigError(
                f"weights {quote(self.base.name)} use a reranker; training starts from weights of scores: "
                "give others with --weights"
            )
        if len(self.scored) < MIN_LISTS:
            raise ConfigError(
                f"{len(self.scored)} lists with references; a reranker needs at least {MIN_LISTS}, and some "
                "hundred to show a gain"
            )
        if all(len({h.errors for h in item.evaluated.hypotheses}) == 1 for item in self.scored):
            raise ConfigError(
                "in no list do hypotheses differ in their errors, so there is nothing to learn: give lists "
                "of several different hypotheses"
            )
        if not self.spread <= MAX_SPREAD:
            raise ConfigError(
                f"the base totals of a list have a standard deviation of {self.spread:g} nats; expected "
                f"at most {MAX_SPREAD:,.0f}: give the streams their log base, or smaller weights"
            )
        by_list = [set(item.components) for item in self.scored]
        everywhere = by_list[0].intersection(*by_list)
        if missing := sorted(set().union(*by_list) - everywhere):
            item = next(item for item in self.scored if missing[0] not in item.components)
            raise ConfigError(
                f"list {quote(item.evaluated.id)} has no stream {quote(missing[0])}, which other lists have: "
                "train on lists with the same streams, one reranker for each kind"
            )


def compare_rules(
    lists: TrainingLists,
    rescorer: Rescorer,
    first_pass: Weights | None = None,
    *,
    share_references: bool = False,
) -> Comparison:
    """Judge the simple rules that a reranker must beat, on the folds of ``TrainingLists.make_folds``.

    Args:
        first_pass: weights by which the recogniser ranked; None if the lists are in the recogniser's order.
    """
    scored = lists.scored
    if share_references:  # folds then take the lists for different ones
        scored = [replace(item, reference=item.evaluated.id) for item in scored]
    word_only = drop_models(lists.base, first_pass)
    return compare_systems(
        scored, {BASE: lists.base}, with_tuning=True, word_only=word_only, rescorer=rescorer
    )


def train_reranker(
    lists: TrainingLists,
    rules: Comparison,
    name: str,
    *,
    seed: int = 0,
    share_references: bool = False,
    prior: TrainingLists | None = None,
    encoded: EncodedLists | None = None,
) -> tuple[Reranker, RerankerReport]:
    """Choose, train and judge a reranker.

    Args:
        rules: result of ``compare_rules`` for the same lists.
        prior: lists of another kind, on which a first reranker is trained as a prior.
        encoded: encodings of the words of the same lists; None to use features alone.

    Raises:
        ConfigError: nothing can be learnt from the lists.
    """
    lists.check()
    sets, arrays = compute_features(lists)
    folds = lists.make_folds(share_references=share_references)
    prior_lists = compute_prior_features(lists, prior, sets, share_references) if prior else None
    if encoded:
        arrays = encoded.append_to(arrays)
        sets = {**sets, WITH_ENCODING: (*list(sets.values())[-1], *encoded.names)}
    candidates = make_candidates(sets, arrays.n_lists, has_prior_lists=prior is not None)
    training = fitting.NestedTraining(arrays, folds, sets, candidates, seed, prior_lists)
    held_out = training.cross_validate()
    candidate = training.choose(np.arange(arrays.n_lists))
    fitted = training.fit_all(candidate)
    report = replace(
        build_report(lists.scored, training, held_out, candidate, fitted, list_systems(rules, lists.scored)),
        n_seen=count_tuning_lists(lists.base, (item.nbest for item in lists.scored)),
        prior_lists=prior_lists.describe() if prior_lists else "",
    )
    features, ensemble, encoder = fitted.features, fitted.ensemble, None
    if encoded and any(map(is_encoding, features)):
        features = tuple(feature for feature in features if not is_encoding(feature))
        ensemble, encoder = compress_encoding(ensemble, encoded.encoder)
    used = [*lists.scored, *(prior.scored if prior and candidate.from_prior_lists else ())]
    reranker = Reranker(
        name,
        features,
        np.array([arrays.scales[arrays.features.index(feature)] for feature in features]),
        replace(
            lists.base, name=name, tuned_on=(), held_out={}, tuned_with={}, calibration=None, decision=MAXIMUM
        ),
        ensemble,
        tuned_on=tuple(fingerprint_list(item.nbest) for item in used),
        held_out=report.judgement.figures(),
        encoder=encoder,
    )
    return reranker, report


def compute_features(lists: TrainingLists) -> tuple[Mapping[str, tuple[str, ...]], TrainingArrays]:
    """Compute all features of all lists; also return the feature sets to choose from.

    Scales and temperatures depend on the features of all lists, even of those that are held out later. They
    do not depend on references.

    Raises:
        ConfigError: the base weights give all hypotheses of each list the same total.
    """
    models = [*lists.models, MIXTURE] if len(lists.models) > 1 else list(lists.models)
    sets = make_feature_sets(
        lists.streams, models, lists.spread or 1.0, has_context=any(item.context for item in lists.scored)
    )
    arrays = compute_arrays(lists, sets)
    if TOTAL not in arrays.features:
        raise ConfigError(
            "the base weights give all hypotheses of a list the same total; give one of the scores a weight, "
            "such as -w acoustic=1"
        )
    return sets, arrays


def compute_arrays(lists: TrainingLists, feature_sets: Mapping[str, Sequence[str]]) -> TrainingArrays:
    """Compute, for all lists, the features that any of the sets has."""
    features = tuple(dict.fromkeys(feature for names in feature_sets.values() for feature in names))
    matrices = [
        feature_matrix(features, ListView(item.components, item.words, item.context, total))
        for item, total in zip(lists.scored, lists.totals, strict=True)
    ]
    errors = [
        np.array([hypothesis.errors for hypothesis in item.evaluated.hypotheses]) for item in lists.scored
    ]
    empty = [np.array([not words for words in item.words]) for item in lists.scored]
    return make_arrays(features, matrices, errors, empty)


def compute_prior_features(
    lists: TrainingLists,
    prior: TrainingLists,
    feature_sets: Mapping[str, Sequence[str]],
    share_references: bool,
) -> fitting.PriorLists:
    """Compute the features of prior lists, and the keys that relate them to the lists to train on.

    Features of streams that the prior lists lack cannot be computed. Features of the order of the hypotheses
    (``ORDER_FEATURES``) replace them.
    """
    known = prior.scored[0].components
    lacks_stream = not set(lists.streams) <= set(known)
    order = fitting.ORDER_FEATURES if lacks_stream else ()
    sets = {
        name: (*(part for part in features if all(x in known for x in needed_components([part]))), *order)
        for name, features in feature_sets.items()
    }
    normalise = Normaliser().normalise

    def find_keys(scored: Sequence[MeasuredList]) -> fitting.ListKeys:
        return fitting.ListKeys(
            [item.evaluated.id for item in scored],
            [item.evaluated.group for item in scored],
            ["" if share_references else " ".join(normalise(item.reference)) for item in scored],
        )

    arrays = compute_arrays(prior, sets)
    return fitting.PriorLists(arrays, sets, find_keys(prior.scored), find_keys(lists.scored))


def list_systems(rules: Comparison, scored: Sequence[MeasuredList]) -> list[System]:
    """Return the errors of all rows of a comparison, list by list. The first pass comes first."""
    rows = [rules.first_pass, *(row for row in rules.rows if row is not rules.first_pass)]
    return [
        System(row.name, *count_by_list(row, scored), row.held_out, is_rule=row.name != ORACLE)
        for row in rows
    ]

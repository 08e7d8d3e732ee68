"""Train a reranker on scored lists, and judge it on lists that took no part in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.errors import ConfigError, quote
from rescorer.evaluation.comparison.baselines import drop_models
from rescorer.evaluation.comparison.row import count_by_list
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.systems import ORACLE, Comparison, compare_systems
from rescorer.evaluation.comparison.tuned import find_streams
from rescorer.evaluation.tuning.fingerprint import count_tuning_lists, fingerprint_list
from rescorer.evaluation.tuning.folds import Folds, make_folds
from rescorer.pipeline import Rescorer
from rescorer.reranking.features import MAX_TEMPERATURE, ListView, feature_matrix, needed_components
from rescorer.reranking.reranker import Reranker
from rescorer.score_combination import MIXTURE, totals
from rescorer.text import Normaliser
from rescorer.types import MAXIMUM, Weights
from rescorer_training.reranker.arrays import TrainingArrays, make_arrays
from rescorer_training.reranker.candidates import (
    TEMPERATURE_STEPS,
    TOTAL,
    WITH_ENCODING,
    make_candidates,
    make_feature_sets,
)
from rescorer_training.reranker.cross_validation import NestedTraining
from rescorer_training.reranker.encoding import (
    EncodedLists,
    compress_encoding,
    is_encoding,
)
from rescorer_training.reranker.prior_lists import ORDER_FEATURES, ListKeys, PriorLists
from rescorer_training.reranker.report import RerankerReport, System, build_report

BASE = "base weights"
"""Name of the row of the base weights in reports."""
MIN_LISTS = 20
"""Smallest number of lists to train on; fewer cannot show any gain."""
MAX_SPREAD = MAX_TEMPERATURE / max(TEMPERATURE_STEPS)
"""Largest standard deviation of the base totals within lists, in nats; temperatures are multiples of it."""
MIN_UNITS = 6
"""Smallest number of groups, or of ids without groups: fewer give no interval."""


@dataclass(frozen=True, slots=True)
class TrainingLists:
    """Lists with references, all scored with the same models and base weights."""

    scored: Sequence[ScoredList]
    base: Weights
    """Complete weights of the totals, with the λ of the mixture."""
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
        """Standard deviation of the base totals within lists, in nats; not finite if they are too large."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sqrt(np.mean([values.var() for values in self.totals])))

    def make_folds(self, *, share_references: bool = False) -> Folds:
        """Divide the lists into folds; see ``tuning.folds.make_folds``.

        Args:
            share_references: divide by groups alone, and train on lists whose reference the held-out lists
                have too.
        """
        ids = [item.evaluated.id for item in self.scored]
        groups = [item.evaluated.group for item in self.scored]
        references = [item.reference for item in self.scored]
        return make_folds(ids, groups, ids if share_references else references)

    def check(self) -> None:
        """Raise ConfigError if nothing can be learnt from the lists, or a reranker cannot be judged on
        them."""
        self.check_scores()
        groups = {item.evaluated.group or item.evaluated.id for item in self.scored}
        if len(groups) < MIN_UNITS:
            raise ConfigError(
                f"groups of lists: {len(groups)}; a reranker is judged on at least {MIN_UNITS}: add lists of "
                "other speakers, or leave out --groups if it is wrong"
            )

    def check_scores(self) -> None:
        """Raise ConfigError if nothing can be learnt from the lists, a list lacks a stream, totals are too
        large, or the base weights use a reranker."""
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


@dataclass(frozen=True, slots=True)
class Training:
    """A reranker and what is known about it."""

    reranker: Reranker
    report: RerankerReport


def compare_rules(
    lists: TrainingLists,
    rescorer: Rescorer,
    first_pass: Weights | None = None,
    *,
    share_references: bool = False,
) -> Comparison:
    """Judge the simple rules that a reranker must beat, on the folds of ``TrainingLists.make_folds``.

    Args:
        first_pass: weights that the recogniser ranked by; None for the order of the lists.
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
) -> Training:
    """Choose, train and judge a reranker.

    Args:
        rules: result of ``compare_rules`` for the same lists.
        prior: lists of another kind, on which a first reranker is trained as a prior.
        encoded: encodings of the words of the same lists; None to train on features alone.

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
    training = NestedTraining(arrays, folds, sets, candidates, seed, prior_lists)
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
    return Training(reranker, report)


def compute_features(lists: TrainingLists) -> tuple[Mapping[str, tuple[str, ...]], TrainingArrays]:
    """Compute all features of all lists; also return the sets to choose from.

    Scales and temperatures follow from the features of all lists, also of those that are held out later; they
    know nothing of references.

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
    """Compute all features of some sets, of all lists."""
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
) -> PriorLists:
    """Compute those features that lists of another kind have too, and what they share with the lists.

    Where they lack a stream, their order stands in for it.
    """
    known = prior.scored[0].components
    lacks_stream = not set(lists.streams) <= set(known)
    order = ORDER_FEATURES if lacks_stream else ()
    sets = {
        name: (*(part for part in features if all(x in known for x in needed_components([part]))), *order)
        for name, features in feature_sets.items()
    }
    normalise = Normaliser().normalise

    def find_keys(scored: Sequence[ScoredList]) -> ListKeys:
        return ListKeys(
            [item.evaluated.id for item in scored],
            [item.evaluated.group for item in scored],
            ["" if share_references else " ".join(normalise(item.reference)) for item in scored],
        )

    return PriorLists.match(
        compute_arrays(prior, sets), sets, find_keys(prior.scored), find_keys(lists.scored)
    )


def list_systems(rules: Comparison, scored: Sequence[ScoredList]) -> list[System]:
    """The errors of all rows of a comparison, list by list; the first pass comes first."""
    rows = [rules.first_pass, *(row for row in rules.rows if row is not rules.first_pass)]
    return [
        System(row.name, *count_by_list(row, scored), row.held_out, is_rule=row.name != ORACLE)
        for row in rows
    ]

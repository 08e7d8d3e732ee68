"""Compare lists with a bundle: how streams correlate with its n-gram, and what its weights would do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from rescorer.errors import InvalidList
from rescorer.evaluation.components import collect_components
from rescorer.evaluation.inspection.bundle_models import BundleModel, describe_models
from rescorer.evaluation.inspection.streams import mean_and_t
from rescorer.pipeline import Rescorer
from rescorer.preparation.untuned_weights import find_untuned_weights
from rescorer.types import NBestList, RescoredList, Weights

N_JUDGED_LISTS = 100
"""Number of lists from which the kind of scores is judged."""
LISTS_PER_BATCH = 64
"""Number of lists scored together: enough to share prefixes and batches, few enough to keep in memory."""


@dataclass(frozen=True, slots=True)
class NGramCorrelation:
    """How a stream correlates with the n-gram's ln P within lists.

    The mean of each list is subtracted from both sides, which removes what all its hypotheses have in common.
    """

    lists: int
    """Number of lists in which both the stream and the n-gram's scores vary."""
    r: float
    """Pearson's r."""
    ratio: float
    """Spread of the stream divided by the spread of the n-gram."""

    @property
    def units_per_nat(self) -> tuple[float, float]:
        """Smallest and largest number of units of the stream that one nat may correspond to.

        Both sides are noisy measurements of the same quantity. A regression of either on the other attributes
        all noise to one of them; the truth lies between the two regressions (Frisch, 1934). For the same
        model in another base, r is 1 and both numbers are equal.
        """
        r = abs(self.r)
        return self.ratio * r, self.ratio / r if r else math.inf

    @classmethod
    def from_moments(cls, moments: np.ndarray) -> NGramCorrelation | None:
        """Compute the correlation from the sums in ``ModelTally``; None if they are too small or large."""
        lists, stream, ngram, both = moments.tolist()
        if not (0.0 < stream < math.inf and 0.0 < ngram < math.inf and math.isfinite(both)):
            return None
        ratio = math.sqrt(stream) / math.sqrt(ngram)
        r = both / math.sqrt(ngram) / math.sqrt(stream)
        return cls(int(lists), max(-1.0, min(1.0, r)), ratio)


@dataclass(frozen=True, slots=True)
class WeightStats:
    """The lists re-ranked with one set of weights; the field names are keys of the JSON report."""

    name: str
    others: tuple[str, ...]
    """Names of the other sets of weights in the bundle."""
    lists: int = 0
    """Re-ranked lists."""
    refused: int = 0
    """Lists that could not be re-ranked."""
    reason: str = ""
    """Reason why the first of these lists could not be re-ranked."""
    referenced: int = 0
    """Re-ranked lists with references; the next three fields are about these."""
    first_errors: int = 0
    """Errors of the first pass."""
    errors: int = 0
    """Errors after re-ranking."""
    added_t: float | None = None
    """Mean number of errors that re-ranking adds per list, divided by its standard error."""
    model_spread: float = 0.0
    """Standard deviation within a list of the weighted scores of all models, mean over lists, in nats."""
    stream_spread: float = 0.0
    """The same for the weighted streams."""
    untuned: str = ""
    """What is wrong if the weights were never tuned for scores like an end-to-end model's; else empty."""


@dataclass(frozen=True, slots=True)
class ModelStats:
    """The lists compared with a bundle."""

    bundle: str
    models: tuple[BundleModel, ...]
    """The bundle's language models."""
    correlations: Mapping[str, NGramCorrelation]
    """Correlation with the n-gram, by stream."""
    weights: WeightStats

    def to_dict(self) -> dict[str, Any]:
        correlations = {
            name: {
                "r": round(correlation.r, 4),
                "units_a_nat": [round(units, 4) for units in correlation.units_per_nat],
            }
            for name, correlation in self.correlations.items()
        }
        return {
            "bundle": self.bundle,
            "models": [asdict(model) for model in self.models],
            "like_the_ngram": correlations,
            "weights": asdict(self.weights),
        }


class ModelTally:
    """Scores lists in small batches and adds up the comparison."""

    def __init__(self, rescorer: Rescorer, weights: Weights) -> None:
        self._rescorer, self._weights = rescorer, weights
        self._pending: list[tuple[NBestList, np.ndarray | None, int]] = []
        self._moments: dict[str, np.ndarray] = {}
        """By stream, (4,): number of lists; sums of stream², n-gram² and stream * n-gram after subtracting
        means."""
        self._spreads = np.zeros(2)
        """Sums over lists of the spread of the weighted language models and of the weighted streams."""
        self._added_errors: list[float] = []
        self._lists = self._refused = self._first_errors = self._errors = 0
        self._reason = ""
        self.normaliser = rescorer.bundle.normaliser
        """Gives the words that the models read."""
        self._first: list[NBestList] = []
        """The first lists, from which the kind of scores is judged."""

    @property
    def vocabulary(self) -> frozenset[str]:
        """The words that the bundle's n-gram knows."""
        bundle = self._rescorer.bundle
        return frozenset(self._rescorer.models[bundle.ngram].vocabulary())

    def add(self, nbest: NBestList, errors: np.ndarray | None, first: int) -> None:
        """Add a list.

        Args:
            errors: (H,) errors of each hypothesis; None without a reference.
            first: index of the hypothesis that the first pass ranks first.
        """
        self._pending.append((nbest, errors, first))
        if len(self._first) < N_JUDGED_LISTS:
            self._first.append(nbest)
        if len(self._pending) >= LISTS_PER_BATCH:
            self._score_pending()

    def stats(self) -> ModelStats:
        self._score_pending()
        bundle = self._rescorer.bundle
        untuned = find_untuned_weights(self._first, self._weights)
        spreads = (self._spreads / max(1, self._lists)).tolist()
        weights = WeightStats(
            name=self._weights.name,
            others=tuple(sorted(set(bundle.weights) - {self._weights.name})),
            lists=self._lists,
            refused=self._refused,
            reason=self._reason,
            referenced=len(self._added_errors),
            first_errors=self._first_errors,
            errors=self._errors,
            added_t=mean_and_t(self._added_errors)[1],
            model_spread=spreads[0],
            stream_spread=spreads[1],
            untuned=untuned.describe() if untuned else "",
        )
        correlations = {
            name: correlation
            for name, moments in self._moments.items()
            if (correlation := NGramCorrelation.from_moments(moments)) is not None
        }
        return ModelStats(bundle.label, describe_models(bundle), correlations, weights)

    def _score_pending(self) -> None:
        lists = [nbest for nbest, *_ in self._pending]
        results = self._rescorer.rescore_each(lists, self._weights)
        refused = [i for i, result in enumerate(results) if isinstance(result, InvalidList)]
        without_streams = dict(
            zip(refused, self._score_without_streams([lists[i] for i in refused]), strict=True)
        )
        ngram = self._rescorer.bundle.ngram
        for i, (nbest, errors, first) in enumerate(self._pending):
            result = results[i]
            if isinstance(result, InvalidList):
                self._refused += 1
                self._reason = self._reason or f"{result.field}: {result.message}"
                models_alone = without_streams[i]
                if isinstance(models_alone, RescoredList):
                    self._add_correlations(nbest, collect_components(models_alone)[ngram])
                continue
            self._add_correlations(nbest, collect_components(result)[ngram])
            self._add_spreads(nbest, result)
            if errors is not None:
                chosen = errors[result.best.original_rank]
                self._errors += int(chosen)
                self._first_errors += int(errors[first])
                self._added_errors.append(float(chosen - errors[first]))
        self._pending.clear()

    def _score_without_streams(self, lists: Sequence[NBestList]) -> list[RescoredList | InvalidList]:
        """Score lists with the language models alone, which need no streams."""
        bare = [replace(nbest, streams={}) for nbest in lists]
        return self._rescorer.rescore_each(bare, replace(self._weights, streams={}, rerankers={}))

    def _add_correlations(self, nbest: NBestList, ngram: np.ndarray) -> None:
        """Add a list to the correlations; ``ngram`` is (H,) ln P."""
        y = ngram - ngram.mean()
        for name, values in nbest.streams.items():
            with np.errstate(over="ignore", invalid="ignore"):  # huge scores overflow: no correlation
                x = np.array(values) - np.mean(values)
                sums = np.array([1.0, x @ x, y @ y, x @ y])
                if np.ptp(values) > 0 and np.ptp(ngram) > 0:
                    self._moments[name] = self._moments.get(name, np.zeros(4)) + sums

    def _add_spreads(self, nbest: NBestList, result: RescoredList) -> None:
        total = np.empty(len(nbest.hypotheses))
        for hypothesis in result.hypotheses:
            total[hypothesis.original_rank] = hypothesis.total
        streams = np.zeros(len(total))
        for name, weight in self._weights.streams.items():
            if weight:
                streams += weight * np.array(nbest.streams[name])
        self._lists += 1
        self._spreads += (total - streams).std(), streams.std()

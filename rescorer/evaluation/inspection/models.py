"""Owns what a bundle tells an audit: how each stream goes with its n-gram, and what its weights would do to
the lists; judges nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from rescorer.errors import InvalidList
from rescorer.evaluation.inspection.streams import mean_and_t
from rescorer.evaluation.tuning.comparison import components_of
from rescorer.pipeline import Rescorer
from rescorer.types import NBestList, RescoredList, Weights

LISTS_AT_ONCE = 64
"""Scored together: enough to share prefixes and batches, few enough to hold."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """How a stream goes with the n-gram's ln P within the lists: what is common to a whole list, such as its
    sound, is taken off both."""

    lists: int
    """Lists in which both vary."""
    r: float
    """Pearson's."""
    ratio: float
    """The stream's spread over the n-gram's."""

    @property
    def units(self) -> tuple[float, float]:
        """Least and most units of the stream that one nat is worth.

        Both numbers are noisy views of one thing. A regression of either on the other blames one of them for
        all of the noise, and the truth is between the two (Frisch 1934). The same model in another base has
        r 1, and one value twice.
        """
        r = abs(self.r)
        return self.ratio * r, self.ratio / r if r else math.inf


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """The lists under one set of weights."""

    name: str
    others: tuple[str, ...]
    """Names of the bundle's other sets."""
    lists: int = 0
    """That were re-ranked."""
    refused: int = 0
    reason: str = ""
    """Why the first of these was."""
    referenced: int = 0
    """Re-ranked lists that have references; the next three are of these."""
    first_errors: int = 0
    """Of the first pass."""
    errors: int = 0
    added_t: float | None = None
    """Mean of the errors added a list, over its standard error."""
    model_spread: float = 0.0
    """Standard deviation within a list of what the bundle's models put in, mean over lists, in nats."""
    stream_spread: float = 0.0
    """The same of the weighted streams."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What one bundle says of one file of lists."""

    bundle: str
    likeness: Mapping[str, Likeness]
    """By stream."""
    weights: WeightFacts

    def to_dict(self) -> dict[str, Any]:
        alike = {
            name: {"r": round(each.r, 4), "units_a_nat": [round(unit, 4) for unit in each.units]}
            for name, each in self.likeness.items()
        }
        return {"bundle": self.bundle, "like_the_ngram": alike, "weights": asdict(self.weights)}


def likeness_of(moments: np.ndarray) -> Likeness | None:
    """Of the sums that ``ModelTally`` keeps; None where they are too small or too large to compare."""
    lists, stream, ngram, both = moments.tolist()
    if not (0.0 < stream < math.inf and 0.0 < ngram < math.inf and math.isfinite(both)):
        return None
    ratio = math.sqrt(stream) / math.sqrt(ngram)
    r = both / math.sqrt(ngram) / math.sqrt(stream)
    return Likeness(int(lists), max(-1.0, min(1.0, r)), ratio)


class ModelTally:
    """Scores lists, a few at once, and adds up what the scores tell."""

    def __init__(self, rescorer: Rescorer, weights: Weights) -> None:
        self._rescorer, self._weights = rescorer, weights
        self._waiting: list[tuple[NBestList, np.ndarray | None, int]] = []
        self._moments: dict[str, np.ndarray] = {}
        """Sums over lists of (1, ss of stream, ss of n-gram, sum of products), means taken off: (4,)."""
        self._spreads = np.zeros(2)
        """Summed over lists: of the models' part, of the streams'."""
        self._added: list[float] = []
        self._lists = self._refused = self._first_errors = self._errors = 0
        self._reason = ""

    @property
    def known(self) -> frozenset[str]:
        """The words of the bundle's n-gram."""
        bundle = self._rescorer.bundle
        return self._rescorer.models[bundle.ngram].vocabulary()

    def add(self, nbest: NBestList, errors: np.ndarray | None, first: int) -> None:
        """One more list.

        Args:
            errors: (H,) of each hypothesis; None without a reference.
            first: which hypothesis the first pass puts first.
        """
        self._waiting.append((nbest, errors, first))
        if len(self._waiting) >= LISTS_AT_ONCE:
            self._score()

    def facts(self) -> ModelFacts:
        self._score()
        bundle = self._rescorer.bundle
        spreads = (self._spreads / max(1, self._lists)).tolist()
        weights = WeightFacts(
            name=self._weights.name,
            others=tuple(sorted(set(bundle.weights) - {self._weights.name})),
            lists=self._lists,
            refused=self._refused,
            reason=self._reason,
            referenced=len(self._added),
            first_errors=self._first_errors,
            errors=self._errors,
            added_t=mean_and_t(self._added)[1],
            model_spread=spreads[0],
            stream_spread=spreads[1],
        )
        found = {name: likeness_of(moments) for name, moments in self._moments.items()}
        likeness = {name: each for name, each in found.items() if each is not None}
        return ModelFacts(bundle.label, likeness, weights)

    def _score(self) -> None:
        lists = [nbest for nbest, *_ in self._waiting]
        answers = self._rescorer.rescore_each(lists, self._weights)
        refused = [i for i, answer in enumerate(answers) if isinstance(answer, InvalidList)]
        bare = dict(zip(refused, self._models_alone([lists[i] for i in refused]), strict=True))
        for i, (nbest, errors, first) in enumerate(self._waiting):
            answer = answers[i]
            if isinstance(answer, InvalidList):
                self._refused += 1
                self._reason = self._reason or f"{answer.field}: {answer.message}"
                alone = bare[i]
                if isinstance(alone, RescoredList):
                    self._compare(nbest, components_of(alone)[self._rescorer.bundle.ngram])
                continue
            self._compare(nbest, components_of(answer)[self._rescorer.bundle.ngram])
            self._weigh(nbest, answer)
            if errors is not None:
                chosen = errors[answer.best.original_rank]
                self._errors += int(chosen)
                self._first_errors += int(errors[first])
                self._added.append(float(chosen - errors[first]))
        self._waiting.clear()

    def _models_alone(self, lists: Sequence[NBestList]) -> list[RescoredList | InvalidList]:
        """The lists by the language models only, which need no stream."""
        bare = [replace(nbest, streams={}) for nbest in lists]
        return self._rescorer.rescore_each(bare, replace(self._weights, streams={}))

    def _compare(self, nbest: NBestList, ngram: np.ndarray) -> None:
        """``ngram``: (H,) ln P."""
        y = ngram - ngram.mean()
        for name, values in nbest.streams.items():
            with np.errstate(over="ignore", invalid="ignore"):  # absurd scores are like nothing
                x = np.array(values) - np.mean(values)
                sums = np.array([1.0, x @ x, y @ y, x @ y])
                if np.ptp(values) > 0 and np.ptp(ngram) > 0:
                    self._moments[name] = self._moments.get(name, np.zeros(4)) + sums

    def _weigh(self, nbest: NBestList, answer: RescoredList) -> None:
        total = np.empty(len(nbest.hypotheses))
        for hypothesis in answer.hypotheses:
            total[hypothesis.original_rank] = hypothesis.total
        streams = np.zeros(len(total))
        for name, weight in self._weights.streams.items():
            if weight:
                streams += weight * np.array(nbest.streams[name])
        self._lists += 1
        self._spreads += (total - streams).std(), streams.std()

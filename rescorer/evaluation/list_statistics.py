"""Statistics of lists, their errors and score streams, and of how the lists agree with a bundle.

``ListTally`` adds up statistics list by list. If there is a bundle, ``ModelTally`` scores the lists with the
bundle's models, and adds up how the two compare. The dataclasses whose names end in ``Stats`` are the
results.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from rescorer.errors import InvalidList
from rescorer.evaluation.error_rate import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.list_errors import EvaluatedList, Totals, find_first_pass_totals, to_percent
from rescorer.evaluation.scored_lists import collect_components
from rescorer.evaluation.word_statistics import (
    EqualTexts,
    WordStats,
    WordTally,
    make_bundle_twin,
    make_mild_normaliser,
)
from rescorer.formats.common import NATS_PER_UNIT
from rescorer.list_checks import check_list
from rescorer.models.bundle import Bundle, ModelKind
from rescorer.models.network_files import CONFIG_FILE, read_config
from rescorer.pipeline import Rescorer
from rescorer.ranking import best_first
from rescorer.text import Normaliser, SpacingTally
from rescorer.trie import Words, build_trie
from rescorer.types import Hypothesis, NBestList, RescoredList, Weights
from rescorer.unread_scores import (
    find_partial_scores,
    find_unread_fields,
    find_unread_lists,
    find_untuned_weights,
)


@dataclass(frozen=True, slots=True)
class ListStats:
    """Counts over all lists of a file; the field names are keys of the JSON report."""

    lists: int = 0
    hypotheses: int = 0
    words: int = 0
    """Canonical words of all hypotheses."""
    longest_list: int = 0
    """Largest number of hypotheses per list."""
    single: int = 0
    """Lists with one hypothesis."""
    rejected: int = 0
    same_id: int = 0
    """Lists with the id of an earlier list."""
    id_in_text: int = 0
    """Lists in which every hypothesis starts with the id of the list."""
    tab_in_text: int = 0
    """Lists in which every text has a tab: another column of a table was probably read as words."""
    duplicates: int = 0
    """Hypotheses with the same text as an earlier hypothesis of their list."""
    duplicates_normalised: int = 0
    """Hypotheses with the same canonical words as an earlier hypothesis of their list."""
    empty: int = 0
    """Hypotheses without canonical words."""
    with_empty: int = 0
    """Lists with an empty hypothesis."""
    only_empty: int = 0
    """Lists in which every hypothesis is empty."""
    empty_near_best: int = 0
    """Lists in which the best empty hypothesis scores higher than all others, or at most ``NEAR_NATS`` lower
    than the best other one."""
    ranked: int = 0
    """Lists in which every hypothesis has a field with its rank."""
    without_first: int = 0
    """Ranked lists that lack the first rank."""
    with_gaps: int = 0
    """Ranked lists with gaps between ranks."""
    prefixes: int = 0
    """Number of distinct prefixes in a list, summed over lists; ``</s>`` counts as a word."""

    unread: tuple[tuple[str, int], ...] = ()
    """Fields of hypotheses that look like scores, in lists without streams: each name, with the number of
    such lists."""
    unread_option: str = ""
    """The most likely field of ``unread`` with its base and sign, in the form of the option
    ``--stream NAME=``."""
    partial_scores: tuple[tuple[str, int], ...] = ()
    """Fields with the name of a score that only some hypotheses of a list have, in lists without streams:
    each name, with the number of such lists."""
    unread_lists: tuple[tuple[str, int], ...] = ()
    """Descriptions of arrays that look like hypotheses but were not read, each with the number of lists."""

    @property
    def prefix_sharing(self) -> float:
        """Number of words and ``</s>`` per distinct prefix: the factor by which a trie reduces the work."""
        return (self.words + self.hypotheses) / self.prefixes if self.prefixes else 1.0


@dataclass(frozen=True, slots=True)
class ErrorStats:
    """Errors of the lists against their references."""

    totals: Totals
    random_errors: float
    """Expected number of errors if one hypothesis per list is drawn at random."""
    random_deviation: float
    """Standard deviation of this number."""
    errors_at_depth: tuple[int, ...]
    """Errors of oracles that choose among the first 1, 2, … hypotheses of each list."""
    without_first_word: int
    """Lists without a correct hypothesis, but with one that would be correct with the reference's first word
    before it."""
    unit: str

    @property
    def worse_than_random_t(self) -> float:
        """Errors that first hypotheses have beyond the expected number at random, in standard deviations.

        If lists had no order at all, this would be about normally distributed; it is 0 if the hypotheses of
        each list all have the same number of errors.
        """
        more = self.totals.system.errors - self.random_errors
        return more / self.random_deviation if self.random_deviation else 0.0

    @property
    def random_rate(self) -> float:
        words = self.totals.system.reference_words
        return self.random_errors / words if words else 0.0

    def depth_for(self, share: float) -> int:
        """Return how many hypotheses per list are enough to reach ``share`` of the oracle's gain."""
        first, last = self.errors_at_depth[0], self.errors_at_depth[-1]
        enough = first - share * (first - last)
        return next(i for i, errors in enumerate(self.errors_at_depth, start=1) if errors <= enough)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data; figures that ``rescorer evaluate`` also reports have the same keys there."""
        totals = self.totals
        return {
            "with_reference": totals.lists,
            "unit": self.unit,
            "reference_words": totals.system.reference_words,
            "wer": to_percent(totals.system.rate),
            "oracle_wer": to_percent(totals.oracle.rate),
            "random_wer": to_percent(self.random_rate),
            "worst_wer": to_percent(totals.worst.rate),
            "depth_for_90_percent_of_oracle": self.depth_for(0.9),
            "without_first_word": self.without_first_word,
        }


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Statistics of one stream over all lists, in nats; the field names are keys of the JSON report."""

    name: str
    lists: int
    minimum: float
    maximum: float
    per_word: float
    """Sum of all scores divided by the number of words; ``</s>`` counts as a word."""
    spread: float
    """Difference between the best and the worst score of a list, mean over lists."""
    whole_numbers: bool
    """Whether no score has decimals."""
    compared: int
    """Lists whose scores are not all equal. The fields ``first_is_best``, ``descending`` and ``ascending``
    count only such lists."""
    first_is_best: int
    """Lists whose first hypothesis has the best score."""
    descending: int
    """Lists in which no score is higher than the score before it."""
    ascending: int
    """Lists in which no score is lower than the score before it: they are sorted the wrong way round."""
    length_correlation: float | None
    """Pearson's r between score and number of words over all hypotheses."""
    error_correlation: float | None
    """Mean over lists of Pearson's r between score and errors; below 0 if good scores mean few errors."""
    error_t: float | None
    """``error_correlation`` divided by its standard error."""

    def per_word_as(self, base: str, sign: float = 1.0) -> float:
        """Return ``per_word`` as it would be in nats if the scores had another base or, with sign -1, were
        costs."""
        return self.per_word * NATS_PER_UNIT[base] * sign

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "per_word_if_log10": self.per_word_as("10"),
            "per_word_if_log2": self.per_word_as("2"),
            "per_word_if_cost": self.per_word_as("e", -1.0),
        }


class StreamTally:
    """Adds up the statistics of one stream, list by list."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._counts: Counter[str] = Counter(lists=0, compared=0, first_is_best=0, descending=0, ascending=0)
        self._minimum, self._maximum = math.inf, -math.inf
        self._words = 0
        self._spread = 0.0
        self._whole = True
        self._moments = np.zeros((3, 3))
        """Sums of products of (1, score, words)."""
        self._correlations: list[float] = []

    def add(self, scores: np.ndarray, n_words: np.ndarray, errors: np.ndarray | None) -> None:
        """Add a list: (H,) scores, words without ``</s>``, and errors if there is a reference."""
        low, high = float(scores.min()), float(scores.max())
        self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)
        self._words += int(n_words.sum()) + len(n_words)
        self._spread += high - low
        self._whole = self._whole and bool((scores == np.rint(scores)).all())
        self._counts["lists"] += 1
        if low < high:
            self._counts.update(
                compared=1,
                first_is_best=bool(scores[0] == high),
                descending=bool((scores[1:] <= scores[:-1]).all()),
                ascending=bool((scores[1:] >= scores[:-1]).all()),
            )
        rows = np.stack([np.ones(len(scores)), scores, n_words])  # (3, H)
        with np.errstate(over="ignore", invalid="ignore"):  # huge scores overflow: no correlation
            self._moments += rows @ rows.T
        if errors is not None and (r := correlate(scores, errors)) is not None:
            self._correlations.append(r)

    def stats(self) -> StreamStats:
        mean, t = mean_and_t(self._correlations)
        return StreamStats(
            name=self.name,
            minimum=self._minimum,
            maximum=self._maximum,
            per_word=float(self._moments[0, 1]) / self._words,
            spread=self._spread / self._counts["lists"],
            whole_numbers=self._whole,
            length_correlation=_correlate_moments(self._moments),
            error_correlation=mean,
            error_t=t,
            **self._counts,
        )


def correlate(left: np.ndarray, right: np.ndarray) -> float | None:
    """Compute Pearson's r; None if one side does not vary, or has values so large that sums overflow."""
    if not (np.ptp(left) > 0 and np.ptp(right) > 0):
        return None  # checked first: subtracting means leaves rounding errors, which look like variation
    with np.errstate(over="ignore", invalid="ignore"):
        x, y = left - left.mean(), right - right.mean()
        x, y = (side / peak if (peak := np.abs(side).max()) > 0 else side for side in (x, y))
        scale = math.sqrt(float(x @ x) * float(y @ y))
        r = float(x @ y) / scale if scale > 0 else math.nan
    return max(-1.0, min(1.0, r)) if math.isfinite(r) else None


def _correlate_moments(moments: np.ndarray) -> float | None:
    n = moments[0, 0]
    with np.errstate(over="ignore", invalid="ignore"):
        covariance = moments / n - np.outer(moments[0], moments[0]) / n**2
        scale = math.sqrt(max(0.0, float(covariance[1, 1])) * max(0.0, float(covariance[2, 2])))
        r = float(covariance[1, 2]) / scale if scale > 0 and math.isfinite(scale) else math.nan
    return max(-1.0, min(1.0, r)) if math.isfinite(r) else None


def mean_and_t(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Compute the mean, and the mean divided by its standard error; each is None if undefined."""
    if len(values) < 2:
        return (values[0] if values else None), None
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    return mean, mean / (deviation / math.sqrt(len(values))) if deviation > 0 else None


Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class BundleModel:
    """One language model of a bundle; the field names are keys of the JSON report."""

    name: str
    kind: ModelKind
    network: str
    """Kind of the network, such as ``lstm`` or ``llama``; empty for an n-gram model."""
    direction: Direction
    """Whether the model reads a sentence from its beginning or from its end."""
    topics: int = 0
    """Number of topics, found in the preceding text, that the network also reads; 0 for none."""
    licence: str = ""
    """Licence of a model of another toolkit, if its files name one."""


def describe_models(bundle: Bundle) -> tuple[BundleModel, ...]:
    """Describe each language model of a bundle from its manifest and the configurations of its networks.

    Raises:
        BundleError: the configuration of a network cannot be read.
    """
    described = []
    for name, kind in bundle.model_kinds.items():
        direction: Direction = "backward" if name in bundle.backward else "forward"
        network, topics, licence = "", 0, ""
        folder = bundle.manifest["models"][name]["path"].rstrip("/")
        if kind == "neural":
            config = read_config(bundle.files.subfolder(folder))
            network, topics = config.kind, config.topics
        if kind == "units":
            source = bundle.files.read_json(f"{folder}/{CONFIG_FILE}").get("source") or {}
            network, licence = str(source.get("architecture", "network")), str(source.get("licence", ""))
        described.append(BundleModel(name, kind, network, direction, topics, licence))
    return tuple(described)


N_JUDGED_LISTS = 100
"""Number of lists by which ``untuned`` is judged."""
LISTS_PER_BATCH = 64
"""Number of lists that are scored together: enough to share batches, few enough to keep in memory."""


@dataclass(frozen=True, slots=True)
class NGramCorrelation:
    """Correlation of a stream with the n-gram model's ln P within lists.

    From both quantities, their mean over the list is subtracted, since it does not tell hypotheses apart.
    """

    lists: int
    """Number of lists in which neither the stream nor the n-gram model's scores are constant."""
    r: float
    """Pearson's r."""
    ratio: float
    """Spread of the stream within lists, divided by that of the n-gram model's ln P."""

    @property
    def units_per_nat(self) -> tuple[float, float]:
        """Smallest and largest number of units of the stream that may correspond to one nat.

        Stream and n-gram model are noisy measurements of the same quantity. A regression of one on the other
        assumes that all noise is in one of them; the truth lies between the two possible regressions (Frisch,
        1934). If the stream is the same model in another base, r is 1 and both numbers are equal.
        """
        r = abs(self.r)
        return self.ratio * r, self.ratio / r if r else math.inf

    @classmethod
    def from_moments(cls, moments: np.ndarray) -> NGramCorrelation | None:
        """Compute the correlation from the sums of ``ModelTally``; None if a sum is too small or too
        large."""
        lists, stream, ngram, both = moments.tolist()
        if not (0.0 < stream < math.inf and 0.0 < ngram < math.inf and math.isfinite(both)):
            return None
        ratio = math.sqrt(stream) / math.sqrt(ngram)
        r = both / math.sqrt(ngram) / math.sqrt(stream)
        return cls(int(lists), max(-1.0, min(1.0, r)), ratio)


@dataclass(slots=True)
class WeightStats:
    """Results of re-ranking lists with one set of weights; the field names are keys of the JSON report."""

    name: str
    others: tuple[str, ...]
    """Names of the other sets of weights in the bundle."""
    lists: int = 0
    """Re-ranked lists."""
    refused: int = 0
    """Lists that could not be re-ranked."""
    reason: str = ""
    """The reason why the first of the lists that were refused could not be re-ranked."""
    referenced: int = 0
    """Re-ranked lists with references; only these lists count in ``first_errors``, ``errors`` and
    ``added_t``."""
    first_errors: int = 0
    """Errors of the first pass."""
    errors: int = 0
    """Errors after re-ranking."""
    added_t: float | None = None
    """Mean number of errors that re-ranking adds per list, divided by its standard error."""
    model_spread: float = 0.0
    """Standard deviation within a list of the sum of all models' weighted scores, in nats; mean over
    lists."""
    stream_spread: float = 0.0
    """The same quantity for the sum of the weighted streams."""
    untuned: str = ""
    """A warning, if the scores look like those of an end-to-end model, for which the weights were never
    tuned; otherwise empty."""


@dataclass(frozen=True, slots=True)
class ModelStats:
    """Results of comparing the lists with a bundle."""

    bundle: str
    models: tuple[BundleModel, ...]
    """The bundle's language models."""
    correlations: Mapping[str, NGramCorrelation]
    """Correlation with the n-gram, by stream."""
    weights: WeightStats

    def to_dict(self) -> dict[str, Any]:
        return {
            "bundle": self.bundle,
            "models": [asdict(model) for model in self.models],
            "like_the_ngram": {
                name: {"r": round(found.r, 4), "units_a_nat": [round(n, 4) for n in found.units_per_nat]}
                for name, found in self.correlations.items()
            },
            "weights": asdict(self.weights),
        }


class ModelTally:
    """Scores lists with a bundle in small batches, and adds up how the lists compare with the bundle."""

    def __init__(self, rescorer: Rescorer, weights: Weights) -> None:
        self._rescorer, self._weights = rescorer, weights
        self._pending: list[tuple[NBestList, np.ndarray | None, int]] = []
        self._moments: dict[str, np.ndarray] = {}
        """By stream, (4,): number of lists; and sums of stream², n-gram² and stream * n-gram, where the mean
        over the list was subtracted from stream and n-gram first."""
        self._spreads = np.zeros(2)
        """Sums over lists of ``model_spread`` and ``stream_spread``."""
        self._added_errors: list[float] = []
        others = tuple(sorted(set(rescorer.bundle.weights) - {weights.name}))
        self._stats = WeightStats(weights.name, others)
        self.normaliser = rescorer.bundle.normaliser
        """Gives the words that the models read."""
        self._first: list[NBestList] = []
        """The first ``N_JUDGED_LISTS`` lists."""

    @property
    def vocabulary(self) -> frozenset[str] | None:
        """The words that the bundle's n-gram knows; None if all models know all words."""
        bundle = self._rescorer.bundle
        if bundle.ngram in bundle.open_vocabulary:
            return None
        return frozenset(self._rescorer.models[bundle.ngram].vocabulary())

    def add(self, nbest: NBestList, errors: np.ndarray | None, first: int) -> None:
        """Add a list.

        Args:
            nbest: the list.
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
        model_spread, stream_spread = (self._spreads / max(1, self._stats.lists)).tolist()
        weights = replace(
            self._stats,
            referenced=len(self._added_errors),
            added_t=mean_and_t(self._added_errors)[1],
            model_spread=model_spread,
            stream_spread=stream_spread,
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
        bare = [replace(lists[i], streams={}) for i in refused]  # models need no streams
        models_alone = replace(self._weights, streams={}, rerankers={})
        without_streams = dict(zip(refused, self._rescorer.rescore_each(bare, models_alone), strict=True))
        ngram = self._rescorer.bundle.ngram
        for i, (nbest, errors, first) in enumerate(self._pending):
            result = results[i]
            if isinstance(result, InvalidList):
                self._stats.refused += 1
                self._stats.reason = self._stats.reason or f"{result.field}: {result.message}"
                scored = without_streams[i]
                if isinstance(scored, RescoredList):
                    self._add_correlations(nbest, collect_components(scored)[ngram])
                continue
            self._add_correlations(nbest, collect_components(result)[ngram])
            self._add_spreads(nbest, result)
            if errors is not None:
                chosen = errors[result.best.original_rank]
                self._stats.errors += int(chosen)
                self._stats.first_errors += int(errors[first])
                self._added_errors.append(float(chosen - errors[first]))
        self._pending.clear()

    def _add_correlations(self, nbest: NBestList, ngram: np.ndarray) -> None:
        """Add a list to the correlations; ``ngram`` is ln P under the n-gram model, (H,)."""
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
        self._stats.lists += 1
        self._spreads += (total - streams).std(), streams.std()


SAMPLE_LISTS = 100
"""Number of lists from which the base and sign of an unread field are guessed."""
NEAR_NATS = 3.0
"""If an empty hypothesis scores at most this much lower than the best other hypothesis, a small change of
the weights may let the empty one win."""
RANK_FIELDS = ("original_rank", "rank")
FIRST_PASS = "first pass"
"""Name of an additional stream: the weighted sum of streams that defines the first pass."""


class ListTally:
    """Adds up statistics list by list; the ``…_stats`` methods return the results."""

    def __init__(
        self,
        normaliser: Normaliser,
        first_pass: Weights | None = None,
        counting: CountingSettings = DEFAULT_COUNTING,
        models: ModelTally | None = None,
    ) -> None:
        self.normaliser, self.first_pass, self.counting = normaliser, first_pass, counting
        self._models = models
        self._read = models.normaliser if models else normaliser
        mild = make_mild_normaliser(normaliser.settings)
        self.equal_texts = {"normaliser": EqualTexts(normaliser, mild)}
        """Counts of texts that the normaliser makes equal, and that the bundle's normaliser makes equal, if
        it differs."""
        if self._read.settings != normaliser.settings:
            self.equal_texts["bundle"] = EqualTexts(self._read, make_bundle_twin(self._read, normaliser))
        self._counts: Counter[str] = Counter()
        self._longest = 0
        self._ids: set[str] = set()
        self._unread = UnreadTally()
        self._lowest_ranks: Counter[int] = Counter()
        self._streams: dict[str, StreamTally] = {}
        self._words = WordTally(drops=lambda token: not normaliser.normalise_token(token))
        self._spacing = SpacingTally()
        self._totals = Totals.zero()
        self._random_errors = self._random_variance = 0.0
        self._errors_at_depth = np.zeros(0, dtype=np.int64)
        self._oracle_errors = 0
        self._without_first_word = 0

    def reject(self) -> None:
        """Count a list that could not be read."""
        self._counts["rejected"] += 1

    def check(self, nbest: NBestList) -> None:
        """Raise InvalidList if a list is invalid, or lacks a stream of the first pass."""
        check_list(nbest, self.first_pass or Weights("first pass"))

    def add(self, nbest: NBestList) -> None:
        """Count a list.

        Raises:
            InvalidList: the list is invalid; nothing of it has been counted.
        """
        self.check(nbest)
        words = [self.normaliser.normalise(hypothesis.text) for hypothesis in nbest.hypotheses]
        total = find_first_pass_totals(nbest, words, self.first_pass)
        order = range(len(words)) if not self.first_pass or total is None else best_first(total).tolist()
        evaluated = None
        if nbest.reference is not None:  # in the order of the first pass
            count = self.counting.counter_for(nbest.reference, self.normaliser.normalise, nbest.id)
            counts = tuple(count(nbest.hypotheses[i].text) for i in order)
            evaluated = EvaluatedList(nbest.id, nbest.group, counts, counts[0], self.counting.unit)
        self._add_texts(nbest, words)
        self._add_empty(words, total)
        if ranks := read_ranks(nbest.hypotheses):
            self._lowest_ranks[min(ranks)] += 1
            self._counts.update(ranked=1, with_gaps=max(ranks) - min(ranks) >= len(ranks))
        self._unread.add(nbest)
        errors = None
        if evaluated is not None:
            ordered_errors = np.array([counts.errors for counts in evaluated.hypotheses])
            self._add_errors(evaluated, ordered_errors)
            self._add_first_words(nbest, words)
            errors = np.empty(len(words))
            errors[list(order)] = ordered_errors
        n_words = np.array([len(hypothesis) for hypothesis in words], dtype=np.float64)
        streams = {name: np.array(values, dtype=np.float64) for name, values in nbest.streams.items()}
        if self.first_pass and total is not None:
            streams[FIRST_PASS] = total
        for name, scores in streams.items():
            self._streams.setdefault(name, StreamTally(name)).add(scores, n_words, errors)
        if self._models is not None:
            self._models.add(nbest, errors, order[0])

    def list_stats(self) -> ListStats:
        lowest = min(self._lowest_ranks, default=0)
        without_first = sum(lists for rank, lists in self._lowest_ranks.items() if rank > min(lowest, 1))
        return ListStats(
            **self._counts,
            longest_list=self._longest,
            without_first=without_first,
            unread=tuple(self._unread.scores.most_common()),
            unread_option=self._unread.option,
            partial_scores=tuple(self._unread.partial_scores.most_common()),
            unread_lists=tuple(self._unread.lists.most_common()),
        )

    def stream_stats(self) -> tuple[StreamStats, ...]:
        return tuple(tally.stats() for tally in self._streams.values())

    def word_stats(self, vocabulary: frozenset[str] | None = None) -> WordStats:
        """Return the statistics of words; ``vocabulary`` has the words that models know, None without a
        bundle."""
        spacing = self._spacing.describe() if self.counting.unit == "word" else ""
        return replace(self._words.stats(self.normaliser, vocabulary, self._read), spacing=spacing)

    def error_stats(self) -> ErrorStats | None:
        """Return the error statistics; None without references."""
        if not self._totals.lists:
            return None
        return ErrorStats(
            self._totals,
            self._random_errors,
            math.sqrt(self._random_variance),
            tuple(self._errors_at_depth.tolist()),
            self._without_first_word,
            self.counting.unit,
        )

    def _add_texts(self, nbest: NBestList, words: Sequence[Words]) -> None:
        texts = [hypothesis.text for hypothesis in nbest.hypotheses]
        self._longest = max(self._longest, len(texts))
        self._counts.update(
            lists=1,
            hypotheses=len(texts),
            words=sum(map(len, words)),
            single=len(texts) == 1,
            same_id=nbest.id in self._ids,
            id_in_text=all(text.split(maxsplit=1)[:1] == [nbest.id] for text in texts),
            tab_in_text=all("\t" in text for text in texts),
            duplicates=len(texts) - len(set(texts)),
            duplicates_normalised=len(words) - len(set(words)),
            prefixes=build_trie(words).n_edges,
        )
        self._ids.add(nbest.id)
        self._spacing.add(words[0])
        self._words.add(texts)
        for tally in self.equal_texts.values():
            tally.add(texts if nbest.reference is None else [*texts, nbest.reference])

    def _add_empty(self, words: Sequence[Words], total: np.ndarray | None) -> None:
        empty = np.array([not hypothesis for hypothesis in words])
        self._counts.update(
            empty=int(empty.sum()), with_empty=bool(empty.any()), only_empty=bool(empty.all())
        )
        if total is not None and empty.any() and not empty.all():
            self._counts["empty_near_best"] += bool(total[empty].max() > total[~empty].max() - NEAR_NATS)

    def _add_errors(self, evaluated: EvaluatedList, errors: np.ndarray) -> None:
        """Add the errors of a list, (H,) in the order of the first pass."""
        self._totals += Totals.from_list(evaluated)
        self._random_errors += float(errors.mean())
        self._random_variance += float(errors.var())
        best = np.minimum.accumulate(errors)
        n_new_depths = len(best) - len(self._errors_at_depth)
        if n_new_depths > 0:  # all lists so far are shorter, and reach their oracle there
            self._errors_at_depth = np.append(
                self._errors_at_depth, np.full(n_new_depths, self._oracle_errors)
            )
        self._errors_at_depth[: len(best)] += best
        self._errors_at_depth[len(best) :] += best[-1]
        self._oracle_errors += int(best[-1])

    def _add_first_words(self, nbest: NBestList, words: Sequence[Words]) -> None:
        readings = self.counting.expand(nbest.reference or "", nbest.id)
        references = {self.normaliser.normalise(" ".join(reading)) for reading in readings}
        self._spacing.add(self.normaliser.normalise(" ".join(readings[0])))
        self._words.add((), readings[0])
        without_first = {reference[1:] for reference in references} - {()}
        if references.isdisjoint(words) and not without_first.isdisjoint(words):
            self._without_first_word += 1


class UnreadTally:
    """Counts fields that no reader uses, although they look like scores or hypotheses."""

    def __init__(self) -> None:
        self.scores: Counter[str] = Counter()
        """For each field that looks like a score, the number of lists without streams that have it."""
        self.partial_scores: Counter[str] = Counter()
        """For each field that only some hypotheses have, the number of such lists without streams."""
        self.lists: Counter[str] = Counter()
        """Number of lists with an array that looks like hypotheses, by description of the array."""
        self._sample: list[NBestList] = []
        self._descriptions: dict[str, str] = {}

    def add(self, nbest: NBestList) -> None:
        for unread in find_unread_lists([nbest]):
            self.lists[self._descriptions.setdefault(unread.name, unread.description)] += 1
        if nbest.streams:
            return
        if len(self._sample) < SAMPLE_LISTS:
            self._sample.append(nbest)
        self.scores.update(field.label for field in find_unread_fields([nbest]) if field.is_likely)
        self.partial_scores.update(find_partial_scores([nbest]).keys())

    @property
    def option(self) -> str:
        """The most likely field with its base and sign, as in ``--stream``; empty if there is none."""
        likely = [f for f in find_unread_fields(self._sample) if f.is_likely and not f.parent]
        return f"{likely[0].name}{likely[0].units}" if likely else ""


def read_ranks(hypotheses: Sequence[Hypothesis]) -> set[int]:
    """Read the ranks of hypotheses, including the ranks of others that were merged into them.

    The result is empty if a hypothesis has no rank.
    """
    for name in RANK_FIELDS:
        ranks: set[int] = set()
        for hypothesis in hypotheses:
            values: Any = hypothesis.fields.get("merged_ranks") or [hypothesis.fields.get(name)]
            if not isinstance(values, list) or not all(type(rank) is int for rank in values):
                break
            ranks.update(values)
        else:
            return ranks
    return set()

"""Gather statistics from a stream of lists, and compare the lists with a bundle.

Different texts may have the same words once normalised. Some are meant to: they differ in case, punctuation,
events such as ``[NOISE]`` and variants such as ``to(2)``. If texts differ in more than that, then a
normaliser makes two words equal, and errors between them are not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rescorer.errors import InvalidList, pluralise
from rescorer.evaluation.error_rate import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.list_errors import EvaluatedList, Totals, find_first_pass_totals
from rescorer.evaluation.list_statistics import (
    ErrorStats,
    ListStats,
    StreamStats,
    StreamTally,
    WordStats,
    WordTally,
    mean_and_t,
)
from rescorer.evaluation.scored_lists import collect_components
from rescorer.list_checks import (
    check_list,
    find_partial_scores,
    find_unread_fields,
    find_unread_lists,
    find_untuned_weights,
)
from rescorer.models.bundle import Bundle, ModelKind
from rescorer.models.network_files import read_config
from rescorer.pipeline import Rescorer
from rescorer.ranking import best_first
from rescorer.text import EVENT_PATTERNS, Normaliser, NormaliserSettings, SpacingTally
from rescorer.trie import Words, build_trie
from rescorer.types import Hypothesis, NBestList, RescoredList, Weights

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class BundleModel:
    """One language model of a bundle; the field names are keys of the JSON report."""

    name: str
    kind: ModelKind
    network: str
    """Kind of the network, such as ``lstm``; empty for an n-gram model."""
    direction: Direction
    """Which end of a sentence is read first."""
    topics: int = 0
    """Number of topics of the preceding text that the network reads, too; 0 for none."""


def describe_models(bundle: Bundle) -> tuple[BundleModel, ...]:
    """Describe each language model of a bundle from its manifest and the configurations of its networks.

    Raises:
        BundleError: the configuration of a network cannot be read.
    """
    described = []
    for name, kind in bundle.model_kinds.items():
        direction: Direction = "backward" if name in bundle.backward else "forward"
        network, topics = "", 0
        if kind == "neural":
            path = bundle.manifest["models"][name]["path"].rstrip("/")
            config = read_config(bundle.files.subfolder(path))
            network, topics = config.kind, config.topics
        described.append(BundleModel(name, kind, network, direction, topics))
    return tuple(described)


N_JUDGED_LISTS = 100
"""Number of lists from which the kind of scores is judged."""
LISTS_PER_BATCH = 64
"""Number of lists scored together: enough to share prefixes and batches, few enough to keep in memory."""


@dataclass(frozen=True, slots=True)
class NGramCorrelation:
    """Correlation of a stream with the n-gram's ln P within lists.

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
    """A warning if the weights were never tuned for scores like an end-to-end model's; else empty."""


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
        bare = [replace(lists[i], streams={}) for i in refused]  # language models alone need no streams
        models_alone = replace(self._weights, streams={}, rerankers={})
        without_streams = dict(zip(refused, self._rescorer.rescore_each(bare, models_alone), strict=True))
        ngram = self._rescorer.bundle.ngram
        for i, (nbest, errors, first) in enumerate(self._pending):
            result = results[i]
            if isinstance(result, InvalidList):
                self._refused += 1
                self._reason = self._reason or f"{result.field}: {result.message}"
                scored = without_streams[i]
                if isinstance(scored, RescoredList):
                    self._add_correlations(nbest, collect_components(scored)[ngram])
                continue
            self._add_correlations(nbest, collect_components(result)[ngram])
            self._add_spreads(nbest, result)
            if errors is not None:
                chosen = errors[result.best.original_rank]
                self._errors += int(chosen)
                self._first_errors += int(errors[first])
                self._added_errors.append(float(chosen - errors[first]))
        self._pending.clear()

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


MAX_EXAMPLES = 3
MAX_EXAMPLE_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class EqualTexts:
    """Different texts of the same list, or of its reference, that have the same words."""

    texts: int = 0
    """Number of texts that have the words of another text of their list."""
    beyond: int = 0
    """Those of them that differ from it in more than case, punctuation, events and variants."""
    examples: tuple[tuple[str, str], ...] = ()
    """Pairs of texts, those of ``beyond`` first."""
    beyond_examples: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"texts": self.texts, "beyond_case_and_punctuation": self.beyond, "examples": self.examples}

    def quote_beyond(self) -> str:
        """The examples of ``beyond``, in a sentence."""
        return "; ".join(f"{first!r} = {second!r}" for first, second in self.beyond_examples)


@dataclass(slots=True)
class EqualTextTally:
    """Collects, list by list, the texts to which a normaliser gives the same words."""

    normaliser: Normaliser
    mild: Normaliser
    """Gives the same words only to texts that may have them; see ``EqualTexts.beyond``."""
    _texts: int = 0
    _beyond: int = 0
    _examples: list[tuple[str, str]] = field(default_factory=list)
    _beyond_examples: list[tuple[str, str]] = field(default_factory=list)

    def add(self, texts: Iterable[str]) -> None:
        """Add the texts of a list."""
        by_words: dict[tuple[str, ...], str] = {}
        mild_words: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for text in dict.fromkeys(texts):
            words = self.normaliser.normalise(text)
            other = by_words.setdefault(words, text)
            if other is text:
                continue
            self._texts += 1
            example = other[:MAX_EXAMPLE_CHARACTERS], text[:MAX_EXAMPLE_CHARACTERS]
            self._examples += [example] * (len(self._examples) < MAX_EXAMPLES)
            # all texts of these words are compared, so that the count depends on no order
            seen = mild_words.setdefault(words, {self.mild.normalise(other)})
            if (mild := self.mild.normalise(text)) not in seen:
                seen.add(mild)
                self._beyond += 1
                self._beyond_examples += [example] * (len(self._beyond_examples) < MAX_EXAMPLES)

    def stats(self) -> EqualTexts:
        """The equal texts of all lists."""
        examples = list(dict.fromkeys([*self._beyond_examples, *self._examples]))[:MAX_EXAMPLES]
        return EqualTexts(self._texts, self._beyond, tuple(examples), tuple(self._beyond_examples))


def make_mild_normaliser(settings: NormaliserSettings) -> Normaliser:
    """A normaliser that makes only texts equal which differ in case, punctuation, events or variants, or in
    what the settings replace or drop by name."""
    return Normaliser(
        NormaliserSettings(
            language=settings.language,
            drop=tuple(dict.fromkeys((*EVENT_PATTERNS, *settings.drop))),
            fillers=settings.fillers,
            variants=settings.variants,
            letters=settings.letters,
            replace=settings.replace,
        )
    )


def make_bundle_twin(read: Normaliser, compared: Normaliser) -> Normaliser:
    """A normaliser that makes as much equal as that of a bundle should: texts that are compared as equal, or
    that differ in words which it drops by name."""
    drop = tuple(dict.fromkeys((*compared.settings.drop, *read.settings.drop)))
    return Normaliser(replace(compared.settings, drop=drop, replace=read.settings.replace))


def find_equated(lists: Iterable[Iterable[str]], read: Normaliser, compared: Normaliser) -> EqualTexts:
    """Find texts to which the normaliser of a bundle gives the same words, although they are not compared as
    equal: its models cannot tell them apart.

    Args:
        lists: the texts of each list.
    """
    if read.settings == compared.settings:
        return EqualTexts()
    tally = EqualTextTally(read, make_bundle_twin(read, compared))
    for texts in lists:
        tally.add(texts)
    return tally.stats()


def describe_equated(found: EqualTexts) -> str:
    """Say in a sentence which differences the normaliser of a bundle hides from its models."""
    texts = pluralise(found.beyond, "text that differs", "texts that differ")
    return (
        f"the bundle's own normaliser gives its models the same words for {texts} from another of its list: "
        f"{found.quote_beyond()}"
    )


SAMPLE_LISTS = 100
"""Number of lists from which the base and sign of a field that was not read are found."""
NEAR_NATS = 3.0
"""An empty hypothesis at most this far below the best other one may win after a small change of weights."""
RANK_FIELDS = ("original_rank", "rank")
FIRST_PASS = "first pass"
"""Name, among the streams, of the weighted sum that defines the first pass."""


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
        self._equal = {"normaliser": EqualTextTally(normaliser, mild)}
        if self._read.settings != normaliser.settings:
            self._equal["bundle"] = EqualTextTally(self._read, make_bundle_twin(self._read, normaliser))
        self._counts: Counter[str] = Counter()
        self._longest = 0
        self._ids: set[str] = set()
        self._unread = UnreadTally()
        self._lowest_ranks: Counter[int] = Counter()
        self._streams: dict[str, StreamTally] = {}
        self._words = WordTally(drops=lambda token: not normaliser.normalise_token(token))
        self._spacing = SpacingTally()
        self._totals = Totals.zero()
        self._random_errors = 0.0
        self._errors_at_depth = np.zeros(0, dtype=np.int64)
        self._oracle_errors = 0
        self._without_first_word = 0

    def reject(self) -> None:
        """Count a list that could not be read."""
        self._counts["rejected"] += 1

    def add(self, nbest: NBestList) -> None:
        """Count a list.

        Raises:
            InvalidList: the list is invalid; nothing of it has been counted.
        """
        check_list(nbest, self.first_pass or Weights("first pass"))
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
        """Return the statistics of words; ``vocabulary`` contains the words of the bundle's n-gram, if
        any."""
        spacing = self._spacing.describe() if self.counting.unit == "word" else ""
        return replace(self._words.stats(self.normaliser, vocabulary, self._read), spacing=spacing)

    def equal_texts(self) -> dict[str, EqualTexts]:
        """Texts made equal by the normaliser, and by that of the bundle if it is another one."""
        return {name: tally.stats() for name, tally in self._equal.items()}

    def error_stats(self) -> ErrorStats | None:
        """Return the error statistics; None without references."""
        if not self._totals.lists:
            return None
        errors = self._random_errors, tuple(self._errors_at_depth.tolist()), self._without_first_word
        return ErrorStats(self._totals, *errors, self.counting.unit)

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
        for tally in self._equal.values():
            tally.add(texts if nbest.reference is None else [*texts, nbest.reference])

    def _add_empty(self, words: Sequence[Words], total: np.ndarray | None) -> None:
        empty = np.array([not hypothesis for hypothesis in words])
        self._counts.update(
            empty=int(empty.sum()), with_empty=bool(empty.any()), only_empty=bool(empty.all())
        )
        if total is not None and empty.any() and not empty.all():
            self._counts["empty_near_best"] += bool(total[empty].max() > total[~empty].max() - NEAR_NATS)

    def _add_errors(self, evaluated: EvaluatedList, errors: np.ndarray) -> None:
        """``errors``: (H,) in the order of the first pass."""
        self._totals += Totals.from_list(evaluated)
        self._random_errors += float(errors.mean())
        best = np.minimum.accumulate(errors)
        n_new_depths = len(best) - len(self._errors_at_depth)
        if n_new_depths > 0:  # shorter lists so far have reached their oracle there
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
        """Lists without streams, by the field with numbers."""
        self.partial_scores: Counter[str] = Counter()
        """Lists without streams, by the field that only some of their hypotheses have."""
        self.lists: Counter[str] = Counter()
        """Lists, by the description of the array that looks like hypotheses."""
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
        """The most likely field with its units, as ``--stream`` takes it; empty if there is none."""
        likely = [f for f in find_unread_fields(self._sample) if f.is_likely and not f.parent]
        return f"{likely[0].name}{likely[0].units}" if likely else ""


def read_ranks(hypotheses: Sequence[Hypothesis]) -> set[int]:
    """Read the ranks of the hypotheses and of those merged into them; empty if any hypothesis has no rank."""
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

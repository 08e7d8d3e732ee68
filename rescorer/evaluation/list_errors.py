"""Count the errors of lists, sum them in total and per group, and format error rates.

``evaluate_list`` counts the errors of every hypothesis of a list, and ``build_report`` sums those of one
system. Rates, gains, intervals and p-values are formatted here, as text for tables and sentences and as JSON
data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.evaluation.error_rate import DEFAULT_COUNTING, CountingSettings, WordErrors
from rescorer.evaluation.statistics import MIN_UNITS_FOR_INTERVAL, Gain, Interval
from rescorer.formats.nist import (
    Channel,
    Choice,
    DamagedSegment,
    LostRecording,
    Recording,
    Segment,
    TimedWord,
    format_segment_id,
)
from rescorer.ranking import best_first, find_empty, select_and_order
from rescorer.trie import Words
from rescorer.types import ErrorUnit, Hypothesis, NBestList, Weights
from rescorer.weights import WORDS, totals

T = TypeVar("T")
ListKey = tuple[str, tuple[str, ...], int]
"""Key of a list: its id, the canonical words of its reference, and the number of earlier lists in the file
with the same id and reference."""


def index_lists(lists: Iterable[tuple[str, tuple[str, ...], T]]) -> dict[ListKey, T]:
    """Index lists by ``ListKey``, which is the same for a list in the files of all systems.

    Args:
        lists: for each list, its id, the words of its reference, and the value to index.
    """
    seen: Counter[tuple[str, tuple[str, ...]]] = Counter()
    indexed: dict[ListKey, T] = {}
    for list_id, reference, item in lists:
        indexed[list_id, reference, seen[list_id, reference]] = item
        seen[list_id, reference] += 1
    return indexed


def find_shared_lists(systems: Sequence[Mapping[ListKey, Any]]) -> list[ListKey]:
    """Return the keys that all systems have, in the order of the first system."""
    first, *others = systems
    return [key for key in first if all(key in other for other in others)]


@dataclass(frozen=True, slots=True)
class EvaluatedList:
    """The errors of every hypothesis of a list, in the order of the list."""

    id: str
    group: str
    hypotheses: tuple[WordErrors, ...]
    first_pass: WordErrors
    """Errors of the hypothesis that the recogniser ranked first, even if it is no longer in the list."""
    unit: ErrorUnit = "word"
    """The unit that was counted: ``word``, ``character`` or ``mixed``."""

    @property
    def system(self) -> WordErrors:
        """Errors of the first hypothesis of the list."""
        return self.hypotheses[0]

    @property
    def oracle(self) -> WordErrors:
        """Errors of the best hypothesis."""
        return min(self.hypotheses, key=lambda counts: counts.errors)

    @property
    def worst(self) -> WordErrors:
        """Errors of the worst hypothesis."""
        return max(self.hypotheses, key=lambda counts: counts.errors)


@dataclass(frozen=True, slots=True)
class Selection:
    """Choice of the hypotheses of a list that take part in its ranking; see ``select_and_order``."""

    merge: bool = False
    """Whether hypotheses with equal canonical words are merged, so that their probabilities add up."""
    drop_empty: bool = False
    """Whether hypotheses without canonical words are dropped."""

    def __bool__(self) -> bool:
        return self.merge or self.drop_empty

    def order(
        self, words: Sequence[Words], totals: np.ndarray, *, keep_order: bool = False
    ) -> tuple[list[int], np.ndarray]:
        """Return the positions of the selected hypotheses, best first, and the totals (H,) after merging."""
        dropped = find_empty(words) if self.drop_empty else ()
        merge_by = words if self.merge else None
        return select_and_order(totals, merge_by, dropped, keep_order=keep_order)[:2]


ALL = Selection()
"""Selects all hypotheses."""


def evaluate_list(
    nbest: NBestList,
    words: Callable[[str], Words],
    first_pass_weights: Weights | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
    words_read: Callable[[str], Words] | None = None,
) -> EvaluatedList:
    """Count the errors of every hypothesis against the reference of the list.

    If the reference has alternatives, each hypothesis is compared with the reading that matches it best.

    Args:
        words: converts reference and hypotheses to canonical words: ``Normaliser.normalise``.
        first_pass_weights: weights that define the first pass; None for the recogniser's order.
        words_read: converts hypotheses to the words that models read, which the first pass counts; None for
            ``words``.

    Raises:
        InvalidList: there is no reference, its alternatives or the ranks are malformed, or a weighted stream
            is missing.
    """
    if nbest.reference is None:
        raise missing_reference(nbest)
    count = counting.counter_for(nbest.reference, words, nbest.id)
    errors = tuple(count(hypothesis.text) for hypothesis in nbest.hypotheses)
    first = find_first_pass(nbest, words_read or words, first_pass_weights)
    return EvaluatedList(nbest.id, nbest.group, errors, errors[first], counting.unit)


def missing_reference(nbest: NBestList) -> InvalidList:
    """Make the error for a list that needs a reference and has none."""
    message = "no reference; give references with --reference FILE"
    return InvalidList(message, list_id=nbest.id, field="reference")


def score_first_pass(nbest: NBestList, words: Sequence[Words], weights: Weights) -> np.ndarray:
    """Compute the totals of the first pass, (H,), from the streams and the number of words.

    Raises:
        InvalidList: a weighted stream is missing, or a total is not finite.
    """
    missing = sorted(name for name, weight in weights.streams.items() if weight and name not in nbest.streams)
    if missing:
        raise InvalidList("no such stream in this list", list_id=nbest.id, field=f'streams["{missing[0]}"]')
    components = {name: np.array(values, dtype=np.float64) for name, values in nbest.streams.items()}
    n_words = np.array([len(hypothesis) for hypothesis in words], dtype=np.float64)
    total = totals(
        {**components, WORDS: n_words}, replace(weights, lm={}, oov=0.0, rerankers={}, components={})
    )
    if not np.isfinite(total).all():
        message = "the total is not finite; the scores or weights are too large"
        raise InvalidList(message, list_id=nbest.id, field="streams")
    return total


def find_first_pass_totals(
    nbest: NBestList, words: Sequence[Words], weights: Weights | None = None
) -> np.ndarray | None:
    """Find the scores by which the recogniser ranked, (H,).

    With weights, these are the totals under the weights. Without, they are the scores of the only stream, or
    None if the list does not have exactly one stream.
    """
    if weights is None and len(nbest.streams) != 1:
        return None
    return score_first_pass(nbest, words, weights or Weights("first pass", dict.fromkeys(nbest.streams, 1.0)))


def find_first_pass(
    nbest: NBestList, normalise: Callable[[str], Words], weights: Weights | None = None
) -> int:
    """Find the index of the hypothesis that the recogniser ranked first; see ``find_first_pass_order``."""
    return find_first_pass_order(nbest, normalise, weights)[0]


def find_first_pass_order(
    nbest: NBestList, normalise: Callable[[str], Words], weights: Weights | None = None
) -> list[int]:
    """Find the indices of the hypotheses in the order in which the recogniser ranked them.

    With weights, the totals under the weights decide. Without, it is the fields ``original_rank`` of a
    re-ranked list or, if there are none, the order of the list. Generated hypotheses, which the recogniser
    did not rank, come last.

    Raises:
        InvalidList: a weighted stream is missing, or only some hypotheses have a rank.
    """
    order = _order_all(nbest, normalise, weights)
    return sorted(order, key=lambda index: nbest.hypotheses[index].generated is not None)


def _order_all(nbest: NBestList, normalise: Callable[[str], Words], weights: Weights | None) -> list[int]:
    if weights is not None:
        words = [normalise(hypothesis.text) for hypothesis in nbest.hypotheses]
        return list(map(int, best_first(score_first_pass(nbest, words, weights))))
    if not any("original_rank" in hypothesis.fields for hypothesis in nbest.hypotheses):
        return list(range(len(nbest.hypotheses)))
    ranks: list[int] = []
    for index, hypothesis in enumerate(nbest.hypotheses):
        rank = hypothesis.fields.get("original_rank")
        if not isinstance(rank, int) or isinstance(rank, bool):
            message = f"expected an integer in every hypothesis, got {rank!r}"
            raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="original_rank")
        # a hypothesis has the ranks of all that were merged into it
        merged = hypothesis.fields.get("merged_ranks") or (rank,)
        ranks.append(min(merged))
    return sorted(range(len(ranks)), key=ranks.__getitem__)


NO_GROUP = "(none)"
PERCENT_DECIMALS = 2


@dataclass(frozen=True, slots=True)
class Totals:
    """Errors summed over lists. Totals can be added with ``+``."""

    lists: int
    hypotheses: int
    system: WordErrors
    """Errors of the first hypothesis of each list."""
    first_pass: WordErrors
    """Errors of the hypothesis that the recogniser ranked first."""
    oracle: WordErrors
    """Errors of the hypothesis with the fewest errors in each list; no re-ranking can make fewer."""
    worst: WordErrors
    """Errors of the worst hypothesis of each list."""

    @classmethod
    def zero(cls) -> Totals:
        none = WordErrors.zero()
        return cls(0, 0, none, none, none, none)

    @classmethod
    def from_list(cls, evaluated: EvaluatedList) -> Totals:
        errors = evaluated.system, evaluated.first_pass, evaluated.oracle, evaluated.worst
        return cls(1, len(evaluated.hypotheses), *errors)

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    @property
    def recovered_share(self) -> float | None:
        """Share that the system saves of the errors that the oracle saves over the first pass.

        It is negative if the system adds errors, and None if the oracle saves none.
        """
        gap = self.first_pass.errors - self.oracle.errors
        return (self.first_pass.errors - self.system.errors) / gap if gap else None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers; rates are in percent, and None if they are undefined."""
        system = self.system
        return {
            "lists": self.lists,
            "hypotheses": self.hypotheses,
            "wer": to_percent(system.rate),
            "word_accuracy": to_percent(system.accuracy),
            "errors": system.errors,
            "substitutions": system.substitutions,
            "deletions": system.deletions,
            "insertions": system.insertions,
            "reference_words": system.reference_words,
            "sentence_error_rate": to_percent(system.sentence_rate),
            "sentences_wrong": system.sentences_wrong,
            "first_pass_wer": to_percent(self.first_pass.rate),
            "oracle_wer": to_percent(self.oracle.rate),
            "worst_wer": to_percent(self.worst.rate),
            "recovered_percent": to_percent(self.recovered_share),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Errors of one system."""

    total: Totals
    groups: Mapping[str, Totals]
    """Totals per speaker or other group, in input order. Lists without a group are under the empty string."""
    unit: str = "word"
    """The unit that was counted: ``word``, ``character`` or ``mixed``."""

    def to_dict(self) -> dict[str, Any]:
        """Convert the totals to plain numbers. If there are groups, their totals are under ``groups``."""
        named = {group or NO_GROUP: totals.to_dict() for group, totals in self.groups.items()}
        return self.total.to_dict() | ({"groups": named} if any(self.groups) else {})


def build_report(lists: Iterable[EvaluatedList]) -> Report:
    """Sum the errors of one system's lists, all of which must be counted in the same unit."""
    groups: dict[str, Totals] = {}
    unit = "word"
    for evaluated in lists:
        unit = evaluated.unit
        totals = groups.get(evaluated.group, Totals.zero())
        groups[evaluated.group] = totals + Totals.from_list(evaluated)
    return Report(sum(groups.values(), Totals.zero()), groups, unit)


def to_percent(share: float | None) -> float | None:
    """Convert a share to percent and round it; None if it is undefined or infinite."""
    return None if share is None or not math.isfinite(share) else round(100.0 * share, PERCENT_DECIMALS)


Timed = TimedWord | Choice


def align_recordings(
    recordings: Iterable[Recording | FormatError], segments: Iterable[Segment | DamagedSegment]
) -> Iterator[NBestList | InputError]:
    """Yield a list with one hypothesis for each segment to score, or one error for each damaged recording.

    The group of a list is its speaker, and its id is the speaker with a running number, as in sclite.

    A recording is one channel of a file; names of files and channels match regardless of case. Words and
    segments of a recording are matched in file order. A word belongs to the first segment that ends after the
    middle of the word; words after the last segment belong to it. Alternatives stay together: the latest of
    their middles counts.

    A recording is damaged if one of its lines in the ctm or the stm cannot be read. Its words could then be
    assigned to wrong segments.

    Raises:
        InputError: a recording has words but no segments, or no line of the stm can be read.
    """
    segments_by_channel, lost = _group_segments(segments)
    words_by_channel: dict[Channel, list[Timed]] = {}
    for item in recordings:
        if isinstance(item, LostRecording):
            lost.setdefault(_fold(item.channel), item)
        elif isinstance(item, FormatError):
            yield item
        elif (channel := _fold((item.file, item.channel))) in segments_by_channel:
            words_by_channel.setdefault(channel, []).extend(item.words)
        elif channel not in lost:
            raise InputError(
                f"words of file {item.file!r}, channel {item.channel!r}, have no reference segments; add "
                "their lines to the stm, or leave the words out of the ctm"
            )
    numbers: Counter[str] = Counter()
    for channel, found in segments_by_channel.items():
        words = words_by_channel.get(channel, [])
        for segment, text in _assign_words(found, words):
            if not segment.is_ignored:
                number = numbers[segment.speaker]
                numbers[segment.speaker] += 1
                if channel not in lost:
                    hypotheses = (Hypothesis(text),)
                    list_id = format_segment_id(segment.speaker, number)
                    yield NBestList(list_id, hypotheses, reference=segment.text, group=segment.speaker)
    yield from lost.values()


def _group_segments(
    segments: Iterable[Segment | DamagedSegment],
) -> tuple[dict[Channel, list[Segment]], dict[Channel, LostRecording]]:
    """Group segments by channel, and find the channels with damaged segments.

    A damaged line that does not name its channel belongs to the channel of the line before it, or to the
    first channel if no line comes before it.
    """
    grouped: dict[Channel, list[Segment]] = {}
    lost: dict[Channel, LostRecording] = {}
    named: Channel | None = None
    errors: list[DamagedSegment] = []  # errors of lines whose channel is not known yet
    for segment in segments:
        if isinstance(segment, DamagedSegment):
            named = segment.channel or named
            errors.append(segment)
        else:
            named = segment.file, segment.channel
            grouped.setdefault(_fold(named), []).append(segment)
        if named is not None:
            for error in errors:
                lost.setdefault(_fold(named), LostRecording(named, error))
            errors.clear()
    if errors:
        raise errors[0]
    return grouped, lost


def _fold(channel: Channel) -> Channel:
    """Convert the names of a file and a channel to lower case, because sclite ignores their case."""
    return channel[0].lower(), channel[1].lower()


def _assign_words(segments: Sequence[Segment], words: Sequence[Timed]) -> Iterator[tuple[Segment, str]]:
    position = 0
    for number, segment in enumerate(segments, start=1):
        start = position
        if number == len(segments):
            position = len(words)
        end_s = float(np.float32(segment.end_s))  # single precision, as in sclite, decides exact ties
        while position < len(words) and words[position].middle_s < end_s:
            position += 1
        yield segment, " ".join(word.text for word in words[start:position])


UNKNOWN = "-"
MAX_NUMBER_CHARS = 12
"""Largest number of characters of a number in a table or message; longer ones get a power of ten."""
MIN_P = 0.001
"""Smaller p-values are shown as less than this."""


def format_size(value: float, decimals: int = PERCENT_DECIMALS) -> str:
    """Format a number with fixed decimals and commas or, if that is too long, with a power of ten.

    >>> format_size(-1234.5), format_size(-1.8905e40), format_size(1234567890, 0), format_size(math.inf)
    ('-1,234.50', '-1.89e+40', '1234567890', 'inf')
    """
    for text in (f"{value:,.{decimals}f}", f"{value:.{decimals}f}"):
        if len(text) <= MAX_NUMBER_CHARS:
            return text
    return f"{value:.3g}"


def format_number(value: float, decimals: int = PERCENT_DECIMALS) -> str:
    """Format a number with fixed decimals, commas between thousands, and a true minus sign.

    Zero has no sign. A number that is not finite, such as a rate without reference words, becomes a hyphen.

    >>> format_number(-1234.5, 1), format_number(-0.001)
    ('−1,234.5', '0.00')
    """
    if not math.isfinite(value):
        return UNKNOWN
    text = format_size(value, decimals)
    return text.lstrip("-") if _is_zero(text) else text.replace("-", "−")


def format_signed(value: float, decimals: int = PERCENT_DECIMALS) -> str:
    """Format a number like ``format_number``, but with a plus sign if it is positive.

    >>> format_signed(1.234), format_signed(-0.5), format_signed(0.001)
    ('+1.23', '−0.50', '0.00')
    """
    text = format_number(value, decimals)
    return f"+{text}" if value > 0 and not _is_zero(text) else text


def _is_zero(text: str) -> bool:
    return not any(digit in text for digit in "123456789")


def format_percent(share: float) -> str:
    """Format a share in percent, without the sign %.

    >>> format_percent(0.12345)
    '12.35'
    """
    return f"{100 * share:.{PERCENT_DECIMALS}f}" if math.isfinite(share) else UNKNOWN


def format_interval(interval: Interval) -> str:
    """Format the ends of the interval of a rate in percent, or a hyphen if the interval is unknown.

    >>> format_interval(Interval(0.1, 0.2)), format_interval(Interval(0.0, math.inf))
    ('10.00–20.00', '-')
    """
    if not interval.is_finite:
        return UNKNOWN
    return f"{format_percent(interval.low)}–{format_percent(interval.high)}"


def format_gain(gain: Gain) -> str:
    """Format a gain in percentage points, with half the width of its interval if that is known.

    >>> format_gain(Gain(-0.001, Interval(-0.007, 0.005), 0.7, 9))
    '−0.10 ± 0.60'
    """
    points = format_signed(100 * gain.gain)
    return f"{points} ± {format_percent(gain.interval.half_width)}" if gain.interval.is_finite else points


def explain_unknown(gain: Gain, unit: str) -> str:
    """Say in a clause why a gain has neither an interval nor a p-value.

    Args:
        unit: whether the bootstrap drew lists or whole groups: ``list`` or ``group``.

    >>> explain_unknown(Gain(0.25, Interval(-math.inf, math.inf), 1.0, 2), "group")
    'only 2 groups differ, and an interval or a test needs at least 6'
    """
    if math.isnan(gain.gain):
        return "the references have no words"
    if gain.units_changed >= MIN_UNITS_FOR_INTERVAL:
        return f"all {unit}s that differ do so by the same rate, which leaves no interval and no test"
    differ = f"1 {unit} differs" if gain.units_changed == 1 else f"{gain.units_changed} {unit}s differ"
    return f"only {differ}, and an interval or a test needs at least {MIN_UNITS_FOR_INTERVAL}"


def describe_unknown(system: str, baseline: str, gain: Gain, unit: str) -> str:
    """Say in a sentence that nothing can be shown about a gain, and why; see ``explain_unknown``.

    >>> describe_unknown("a", "b", Gain(-0.0017, Interval(-math.inf, math.inf), 1.0, 4), "group")
    'nothing can be shown about a against b (−0.17 points): only 4 groups differ, and an interval or a test \
needs at least 6'
    """
    points = "" if math.isnan(gain.gain) else f" ({format_gain(gain)} points)"
    return f"nothing can be shown about {system} against {baseline}{points}: {explain_unknown(gain, unit)}"


def format_p(p_value: float) -> str:
    """Format a p-value with three decimals, or as less than 0.001.

    >>> format_p(0.0424), format_p(0.0001)
    ('0.042', '<0.001')
    """
    return f"<{MIN_P}" if p_value < MIN_P else f"{p_value:.3f}"


def describe_p(p_value: float) -> str:
    """Format a p-value as an equation, for sentences.

    >>> describe_p(0.0424), describe_p(0.0001)
    ('p = 0.042', 'p < 0.001')
    """
    text = format_p(p_value)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def interval_to_list(interval: Interval) -> list[float | None] | None:
    """Convert an interval of rates to JSON data: both ends in percent; None if they are infinite."""
    return [to_percent(interval.low), to_percent(interval.high)] if interval.is_finite else None


def gain_to_dict(gain: Gain) -> dict[str, Any]:
    """Convert a gain to JSON data; rates are in percent, and an unknown interval and p-value are null."""
    return {
        "gain": to_percent(gain.gain),
        "gain_interval": interval_to_list(gain.interval),
        "p_value": round_p(gain.p_value) if gain.interval.is_finite else None,
    }


def round_p(p_value: float) -> float:
    """Round a p-value to three significant digits."""
    return float(f"{p_value:.3g}")

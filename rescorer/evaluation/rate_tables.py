"""Tables of error rates, for the screen and for papers, and signatures that say how errors were counted.

Totals and results come in; formatted cells go out, which ``rescorer.terminal.tables`` prints and exports.
What is the same in every row of a table stands in one line instead of a column. A signature is one line that
can be cited, such as ``WER|count:levenshtein|text:rules-2|lists:96|refs:8f14e45fceea|version:0.2.0``. Figures
whose signatures agree, apart from the version, were counted in the same way on the same references.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import Any

from rescorer.errors import ConfigError, did_you_mean, pluralise
from rescorer.evaluation.error_rate import CountingSettings
from rescorer.evaluation.list_errors import (
    PERCENT_DECIMALS,
    UNKNOWN,
    ListKey,
    Totals,
    format_gain,
    format_interval,
    format_p,
    format_percent,
    format_signed,
)
from rescorer.evaluation.significance import PairwiseComparison, Result
from rescorer.evaluation.statistics import Gain, Interval
from rescorer.text import NormaliserSettings, rate_name, unit_noun

COUNTS = "sub/del/ins"
"""Heading of the column with the numbers of substitutions, deletions and insertions."""
COLUMNS: Mapping[str, tuple[str, str]] = {
    "accuracy": ("accuracy %", "word_accuracy"),
    "first-pass": ("first pass %", "first_pass_wer"),
    "oracle": ("oracle %", "oracle_wer"),
    "worst": ("worst %", "worst_wer"),
    "recovered": ("recovered %", "recovered_percent"),
    "ser": ("SER %", "sentence_error_rate"),
    "errors": ("errors", "errors"),
    "sub": ("sub", "substitutions"),
    "del": ("del", "deletions"),
    "ins": ("ins", "insertions"),
    "lists": ("lists", "lists"),
    "words": ("{noun}s", "reference_words"),
}
"""Further columns by name: the heading, and the key of ``Totals.to_dict``."""
GAIN_COLUMNS: Mapping[str, tuple[str, Callable[[Result], str]]] = {
    "gain-interval": ("gain interval", lambda result: format_ends(result.gain) if result.gain else UNKNOWN),
    "p-uncorrected": (
        "p uncorrected",
        lambda result: format_p(result.gain.p_value) if result.gain and result.has_p_value else UNKNOWN,
    ),
}
"""Further columns about the gain over the first pass, by name."""
ALL_COLUMNS = "all"
GROUP_COLUMNS = ("first-pass", "oracle", "lists", "words")
"""Further columns of a table with one row per group."""


def parse_columns(text: str) -> tuple[str, ...]:
    """Parse the names of further columns, such as ``ser,oracle``, or ``all``.

    Raises:
        ConfigError: there is no such column.
    """
    known = (*GAIN_COLUMNS, *COLUMNS)
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in (*known, ALL_COLUMNS):
            raise ConfigError(
                f"--columns {name!r}: expected {', '.join(known)} or {ALL_COLUMNS}{did_you_mean(name, known)}"
            )
    return known if ALL_COLUMNS in names else names


@dataclass(frozen=True, slots=True)
class RateTable:
    """A table of error rates with formatted cells, the most important columns first."""

    headings: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    """The cells of each row by its name; there are as many as headings."""
    shared: str
    """What is the same in every row, in one line."""


def tabulate(
    rows: Mapping[str, Totals],
    unit: str,
    results: Mapping[str, Result] | None = None,
    columns: Sequence[str] = (),
) -> RateTable:
    """Make a table with one row per system or group.

    Numbers of lists and words stand in the shared line, unless they differ between the rows.

    Args:
        rows: the errors of each row, by its name.
        unit: the unit of errors: ``word``, ``character`` or ``mixed``.
        results: statistics of each row; None for a table without intervals and gains.
        columns: names of further columns, as ``parse_columns`` returns them.
    """
    values = {name: totals.to_dict() for name, totals in rows.items()}
    results = results or {}
    differing = [
        key for key in ("lists", "words") if len({row[COLUMNS[key][1]] for row in values.values()}) > 1
    ]
    further = [*columns, *(key for key in differing if key not in columns)]
    shows_gain = has_choice(rows.values())

    def format_row(name: str) -> dict[str, str]:
        row, result = values[name], results.get(name)
        cells = {f"{rate_name(unit)} %": format_value(row["wer"])}
        if result:
            cells["interval"] = format_interval(result.interval)
        if result and shows_gain:
            cells["gain"], cells["p"] = _format_gain(result.gain, result.p_corrected, format_gain)
        cells[COUNTS] = "/".join(str(row[COLUMNS[key][1]]) for key in ("sub", "del", "ins"))
        if result and any(other.row.n_generated for other in results.values()):
            cells["generated"] = str(result.row.n_generated)
        for key in further:
            if key in COLUMNS:
                heading, field = COLUMNS[key]
                cells[heading.format(noun=unit_noun(unit))] = format_value(row[field])
            elif result and shows_gain:
                heading, form = GAIN_COLUMNS[key]
                cells[heading] = form(result)
        return cells

    cells = {name: format_row(name) for name in rows}
    headings = tuple(next(iter(cells.values()), {}))
    shared = describe_shared(rows, unit, differing, columns)
    return RateTable(headings, {name: tuple(row.values()) for name, row in cells.items()}, shared)


def has_choice(rows: Iterable[Totals]) -> bool:
    """Whether some list has several hypotheses, so that re-ranking could change anything."""
    return any(totals.hypotheses != totals.lists for totals in rows)


def describe_shared(
    rows: Mapping[str, Totals], unit: str, differing: Sequence[str] = (), columns: Sequence[str] = ()
) -> str:
    """Say in a line what is the same in all rows: numbers of lists and words, and rates that no row shows.

    >>> describe_shared({"a": Totals.zero()}, "word")
    '0 lists, 0 words'
    """
    all_values = [totals.to_dict() for totals in rows.values()]
    if not all_values:
        return ""
    first, noun = all_values[0], unit_noun(unit)
    nouns = {"lists": "list", "words": noun}
    counts = [
        pluralise(first[COLUMNS[key][1]], noun)
        for key, noun in nouns.items()
        if key not in (*differing, *columns)
    ]
    rates = []
    for key, name in (("first-pass", "first pass"), ("oracle", "oracle"), ("worst", "worst")):
        found = {values[COLUMNS[key][1]] for values in all_values}
        if len(found) == 1 and has_choice(rows.values()) and name not in rows and key not in columns:
            rates.append(f"{name} {format_value(found.pop())} %")
    return "; ".join(filter(None, (", ".join(counts), ", ".join(rates))))


def format_value(value: float | None) -> str:
    """Format a rate in percent with decimals, a count without; a hyphen if the value is unknown."""
    if value is None:
        return UNKNOWN
    return f"{value:.{PERCENT_DECIMALS}f}" if isinstance(value, float) else str(value)


def format_ends(gain: Gain) -> str:
    """Format both ends of the interval of a gain, in points.

    >>> format_ends(Gain(0.1, Interval(0.05, 0.15), 0.01, 9))
    '+5.00 to +15.00'
    """
    if not gain.interval.is_finite:
        return UNKNOWN
    return f"{format_signed(100 * gain.interval.low)} to {format_signed(100 * gain.interval.high)}"


def _format_long(gain: Gain) -> str:
    """Format a gain with both ends of its interval."""
    ends = f" ({format_ends(gain)})" if gain.interval.is_finite else ""
    return format_signed(100 * gain.gain) + ends


def _format_gain(gain: Gain | None, p_corrected: float, form: Callable[[Gain], str]) -> tuple[str, str]:
    """Format a gain and its p-value. Errors that are the same everywhere need neither interval nor test."""
    if gain is None:
        return UNKNOWN, UNKNOWN
    if not gain.units_changed:
        return format_signed(0.0), UNKNOWN
    return form(gain), format_p(p_corrected) if gain.interval.is_finite else UNKNOWN


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table that a paper can take: each system with its error rate, and its difference from a baseline."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The cells of each row, the name of the system first."""
    notes: tuple[str, ...]
    """Sentences about the columns, for a caption."""


@dataclass(frozen=True, slots=True)
class _PaperRow:
    """A system with its error rate, its gain over the baseline and the corrected p-value of the gain."""

    name: str
    rate: float
    interval: Interval
    gain: Gain | None
    p_corrected: float


def _make_paper(
    rows: Sequence[_PaperRow], unit: str, baseline: str, drawn: str, corrected: str
) -> PaperTable:
    rate = f"{rate_name(unit)} %"
    with_gain = any(row.gain for row in rows)
    cells = []
    for row in rows:
        interval = f" ({format_interval(row.interval)})" if row.interval.is_finite else ""
        line = [row.name, format_percent(row.rate) + interval]
        if with_gain:
            line += _format_gain(row.gain, row.p_corrected, _format_long)
        cells.append(tuple(line))
    notes = [f"Intervals of 95 %, from a paired bootstrap over {drawn}."]
    if with_gain:
        notes.append(f"gain: points of {rate_name(unit)} below {baseline}; p: two-sided{corrected}.")
    return PaperTable(("system", rate, *(("gain", "p") if with_gain else ())), tuple(cells), tuple(notes))


def tabulate_results(results: Mapping[str, Result], unit: str, drawn: str, corrected: str) -> PaperTable:
    """Make the table of the rows of an evaluation, with gains over the first pass.

    Args:
        drawn: what the bootstrap drew, such as ``8 groups``.
        corrected: a clause that says how p-values were corrected; may be empty.
    """
    totals = [result.row.report.total for result in results.values()]
    rows = [
        _PaperRow(
            name,
            result.row.report.total.system.rate,
            result.interval,
            result.gain if has_choice(totals) else None,
            result.p_corrected,
        )
        for name, result in results.items()
    ]
    return _make_paper(rows, unit, "the first pass", drawn, corrected)


def tabulate_pairs(comparison: PairwiseComparison, unit: str) -> PaperTable:
    """Make the table of compared systems, with gains over the first of them."""
    baseline, *_ = comparison.systems
    pairs = {pair.system: pair for pair in comparison.pairs if pair.baseline == baseline.name}
    rows = [
        _PaperRow(
            system.name,
            system.total.rate,
            system.interval,
            pairs[system.name].gain if system.name in pairs else None,
            pairs[system.name].corrected["bootstrap"] if system.name in pairs else 1.0,
        )
        for system in comparison.systems
    ]
    n_pairs = len(comparison.pairs)
    corrected = f", corrected for {n_pairs} pairs (Holm)" if n_pairs > 1 else ""
    return _make_paper(rows, unit, baseline.name, pluralise(comparison.n_units, comparison.unit), corrected)


HASH_CHARS = 12
"""Number of hexadecimal digits that a signature keeps of the hash of the references."""
MAX_SIGNATURE_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Signature:
    """How errors were counted, and on which references."""

    rate: str
    """Name of the error rate: ``WER``, ``CER`` or ``MER``."""
    count: str
    """Method of counting, with the marks of transcription that it obeys: ``sclite+fragments``."""
    text: str
    """Rules by which words are compared: ``rules-2``, with a hash if settings of the rules were changed."""
    lists: str
    """Number of lists."""
    refs: str
    """Hash of the words of all references, in any order and under any ids."""
    version: str
    """Version of the rescorer."""

    @classmethod
    def make(
        cls, counting: CountingSettings, settings: NormaliserSettings, keys: Iterable[ListKey]
    ) -> Signature:
        """Make the signature of figures.

        Args:
            settings: the rules by which words are compared.
            keys: the lists that were evaluated.
        """
        marks = {
            "optional-words": counting.optional_words,
            "fragments": counting.fragments,
            "braces-are-text": not counting.alternations,
        }
        references = sorted(" ".join(words) for _, words, _ in keys)
        return cls(
            rate_name(counting.unit),
            "+".join([counting.method, *(mark for mark, is_set in marks.items() if is_set)]),
            _name_rules(settings),
            str(len(references)),
            _hash("\n".join(references), HASH_CHARS),
            version("rescorer"),
        )

    def __str__(self) -> str:
        return "|".join([self.rate, *(f"{name}:{getattr(self, name)}" for name in _NAMES)])

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Parse a signature; raise ConfigError if it is malformed."""
        rate, *others = text.strip()[:MAX_SIGNATURE_CHARS].split("|")
        values = dict(part.partition(":")[::2] for part in others)
        if tuple(values) != _NAMES or not rate or not all(values.values()):
            example = "|".join(["WER", *(f"{name}:…" for name in _NAMES)])
            raise ConfigError(f"--signature {text[:MAX_SIGNATURE_CHARS]!r}: expected {example}")
        return cls(rate, **values)

    def check(self, expected: Signature) -> str:
        """Compare with the signature of other figures.

        Returns:
            A remark if only the version differs; otherwise empty.

        Raises:
            ConfigError: the figures cannot be compared; it names what differs.
        """
        differing = [
            f"{name} is {getattr(self, name)} here, {getattr(expected, name)} there"
            for name in ("rate", *_NAMES)
            if getattr(self, name) != getattr(expected, name)
        ]
        remark = "" if self.version == expected.version else differing.pop()
        if differing:
            raise ConfigError(f"--signature: these figures are not comparable: {'; '.join(differing)}")
        return remark


_NAMES = tuple(field.name for field in fields(Signature) if field.name != "rate")


def _name_rules(settings: NormaliserSettings) -> str:
    default = NormaliserSettings() if settings.rules == 2 else NormaliserSettings.first_rules()
    content: dict[str, Any] = settings.to_dict()
    changed = "" if settings == default else f"-{_hash(json.dumps(content, sort_keys=True), 8)}"
    return f"rules-{settings.rules}{changed}"


def _hash(text: str, n_chars: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:n_chars]

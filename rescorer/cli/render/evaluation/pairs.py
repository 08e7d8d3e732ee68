"""Tables and sentences about pairs of systems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from string import ascii_uppercase

from rescorer.cli.output import describe_shared_lists
from rescorer.cli.render.exports import write_export
from rescorer.cli.render.tables import FoldingTable, make_text_grid, print_out
from rescorer.errors import pluralise
from rescorer.evaluation.figures import (
    UNKNOWN,
    describe_p,
    describe_unknown,
    format_gain,
    format_interval,
    format_p,
    format_percent,
)
from rescorer.evaluation.significance.pairwise import ComparedPair, ComparedSystem, PairwiseComparison
from rescorer.text import rate_name, unit_noun

PAIR_COLUMN = "pair"
TEST_HEADINGS = {"bootstrap": "p", "matched_pairs": "MAPSSWE p", "sign": "sign p", "wilcoxon": "Wilcoxon p"}


def print_comparison(
    comparison: PairwiseComparison, unit: str, n_shared: int, others: Mapping[str, int]
) -> None:
    """Print the systems, the pairs, a verdict on each pair, and what the figures rest on."""
    letters = {
        system.name: letter for system, letter in zip(comparison.systems, name_letters(), strict=False)
    }
    systems = FoldingTable(
        "system", f"{rate_name(unit)} %", "interval", "sub", "del", "ins", f"{unit_noun(unit)}s"
    )
    for system in comparison.systems:
        systems.add_row(letters[system.name], *_system_cells(system))
    lettered = [
        replace(pair, baseline=letters[pair.baseline], system=letters[pair.system])
        for pair in comparison.pairs
    ]
    pairs = FoldingTable(PAIR_COLUMN, *pair_cells(comparison, lettered[0]))
    for pair in lettered:
        pairs.add_row(name_pair(pair), *pair_cells(comparison, pair).values())
    legend = make_text_grid((letter, name) for name, letter in letters.items())
    print_out(legend, "", systems, "", pairs, "")
    for pair in lettered:
        print_out(describe_pair(pair, comparison.unit))
    print_out("", f"bootstrap of {pluralise(comparison.n_units, comparison.unit)}; intervals of 95 %")
    if comparison.warning:
        print_out(comparison.warning)
    if any(others.values()):
        print_out(describe_shared_lists(n_shared, others))


def export_pairs(comparison: PairwiseComparison, path: Path) -> None:
    """Write the table of pairs to a file: Markdown, CSV or LaTeX, by the end of its name."""
    cells = {name_pair(pair): pair_cells(comparison, pair) for pair in comparison.pairs}
    headings = [PAIR_COLUMN, *next(iter(cells.values()))]
    rows = [[name, *row.values()] for name, row in cells.items()]
    write_export(path, headings, rows, [_to_record(pair) for pair in comparison.pairs])


def _to_record(pair: ComparedPair) -> dict[str, str | float | None]:
    """The numbers of a pair, as in JSON, each by itself."""
    data = pair.to_dict()
    low, high = data["gain_interval"] or (None, None)
    keys = ("baseline", "system", "gain")
    record = {key: data[key] for key in keys} | {"gain_low": low, "gain_high": high}
    for test, p_value in data["p_values"].items():
        record |= {f"p_{test}": p_value, f"p_{test}_corrected": data["p_values_corrected"][test]}
    return record | {key: data[key] for key in ("units_changed", "units_needed", "verdict")}


def name_letters() -> Iterator[str]:
    """Yield short names of systems: A, B, … Z, AA, AB, …"""
    for length in count(1):
        yield from map("".join, product(ascii_uppercase, repeat=length))


def name_pair(pair: ComparedPair) -> str:
    """The baseline, then the system."""
    return f"{pair.baseline} → {pair.system}"


def pair_cells(comparison: PairwiseComparison, pair: ComparedPair) -> dict[str, str]:
    """The gain with its interval and the p-values, by heading; corrected ones if there are several pairs."""
    cells = {"gain": format_gain(pair.gain)}
    for test, p_value in pair.p_values.items():
        p_values = {TEST_HEADINGS[test]: p_value}
        if len(comparison.pairs) > 1:
            p_values[f"{TEST_HEADINGS[test]} corrected"] = pair.corrected[test]
        is_known = pair.has_p_value(test)
        cells |= {heading: format_p(p) if is_known else UNKNOWN for heading, p in p_values.items()}
    return cells


def describe_pair(pair: ComparedPair, unit: str) -> str:
    """Say in one sentence whether a system is better than another.

    Args:
        unit: what was drawn: ``list`` or ``group``.
    """
    if not pair.gain.units_changed:
        return f"{pair.system} has the same errors as {pair.baseline} in every {unit}"
    if not pair.gain.interval.is_finite:
        instead = "; --by list draws single lists" if unit == "group" else ""
        return describe_unknown(pair.system, pair.baseline, pair.gain, unit) + instead
    points = f"{format_percent(abs(pair.gain.gain))} ± {format_percent(pair.gain.interval.half_width)} points"
    direction = "more" if pair.gain.gain < 0 else "fewer"
    p_text = describe_p(pair.corrected["bootstrap"])
    sentence = f"{pair.system} has {points} {direction} errors than {pair.baseline}: "
    if pair.verdict != "not beyond chance":
        return sentence + f"more than chance ({p_text})"
    needed = f"; about {pair.units_needed:,} {unit}s would show it" if pair.units_needed else ""
    return sentence + f"not more than chance ({p_text}){needed}"


def _system_cells(system: ComparedSystem) -> tuple[str, ...]:
    total = system.total
    counts = (total.substitutions, total.deletions, total.insertions, total.reference_words)
    rate = format_percent(total.rate) if total.reference_words else UNKNOWN
    return (rate, format_interval(system.interval), *map(str, counts))

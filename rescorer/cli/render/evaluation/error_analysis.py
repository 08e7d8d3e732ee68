"""Tables of an error analysis: confusions, words fixed and broken, and error rates of parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rescorer.cli.render.tables import FoldingTable, make_text_grid, print_out
from rescorer.evaluation.comparison.analysis import ErrorAnalysis
from rescorer.evaluation.error_analysis.breakdown import Part
from rescorer.text import rate_name, unit_noun

SHOWN = 10
"""Number of words or pairs of each kind."""


def print_errors(analysis: ErrorAnalysis, unit: str) -> None:
    """Print the analysis of one system's errors.

    Args:
        unit: what was counted.
    """
    confusions, changes, noun = analysis.confusions, analysis.changes, unit_noun(unit)
    pairs = Counter({f"{a} → {b}": n for (a, b), n in confusions.substitutions.items()})
    grid = {
        "confused": pairs,
        "deleted": confusions.deletions,
        "inserted": confusions.insertions,
    }
    print_out("", f"errors of {analysis.system}", make_text_grid(_describe(grid)))
    changed = {
        f"{noun}s fixed": changes.fixed,
        f"{noun}s broken": changes.broken,
        "insertions removed": changes.insertions_removed,
        "insertions added": changes.insertions_added,
    }
    if any(changed.values()):
        print_out("", "changes to the first pass", make_text_grid(_describe(changed)))
    for name, parts in analysis.parts.items():
        print_out("", _render_parts(name, parts, unit))


def _describe(counts: Mapping[str, Counter[str]]) -> list[tuple[str, str]]:
    return [(name, _list_commonest(words)) for name, words in counts.items()]


def _list_commonest(words: Counter[str]) -> str:
    """The total, then the commonest words with their numbers."""
    shown = ", ".join(f"{word} {count}" for word, count in words.most_common(SHOWN))
    more = ", …" if len(words) > SHOWN else ""
    return f"{words.total():,}: {shown}{more}" if words else "0"


PARTS = {
    "frequency": ("frequency of the reference {unit}", "{unit}s", "wrong"),
    "language models": ("to the language models", "{unit}s", "wrong"),
    "reference length": ("reference {unit}s", "lists", "errors"),
    "rank of the winner": ("rank in the first pass", "lists", "errors"),
}
"""Heading of the names, what the parts contain, and what is counted, by key of ``ErrorAnalysis.parts``."""


def _render_parts(name: str, parts: list[Part], unit: str) -> FoldingTable:
    heading, items, wrong = (text.format(unit=unit_noun(unit)) for text in PARTS[name])
    share = "%" if wrong == "wrong" else f"{rate_name(unit)} %"
    first, after = f"first pass {share}", f"rescored {share}"
    table = FoldingTable(heading, items, first, after, f"first pass {wrong}", f"rescored {wrong}")
    for part in parts:
        before_rate, after_rate = part.rate(part.errors_before), part.rate(part.errors_after)
        rates = ("-" if rate is None else f"{100 * rate:.2f}" for rate in (before_rate, after_rate))
        table.add_row(part.name, f"{part.items:,}", *rates, str(part.errors_before), str(part.errors_after))
    return table

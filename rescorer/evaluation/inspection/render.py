"""Owns an audit as people read it: aligned tables, and last the findings with what to do."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rescorer.evaluation.inspection import Audit, errors_to_dict
from rescorer.evaluation.inspection.models import ModelFacts
from rescorer.evaluation.inspection.stream_findings import LIKE_R
from rescorer.evaluation.inspection.words import Tokens

EXAMPLES = 10


def render(audits: Mapping[str, Audit]) -> RenderableType:
    """Args: audits: by the name of the file."""
    parts = [part for name, each in audits.items() for part in (Text(name, style="bold"), *_parts(each))]
    return Group(*parts)


def _parts(audit: Audit) -> list[RenderableType]:
    parts: list[RenderableType] = [_lists(audit)]
    if audit.streams:
        parts += [Text(), _streams(audit)]
    return [Padding(part, (0, 0, 0, 2)) for part in parts] + [Text(), *_findings(audit), Text()]


def _lists(audit: Audit) -> Table:
    facts, unknown = audit.facts, audit.words.unknown
    rows: dict[str, str | Text] = {
        "lists": f"{facts.lists:,}" + (f"; {facts.rejected:,} rejected" if facts.rejected else ""),
        "hypotheses": f"{facts.hypotheses:,}; the longest list has {facts.longest_list:,}",
        "words": f"{facts.words:,}",
        "duplicates": f"{facts.duplicates:,} as they came, {facts.duplicates_normalised:,} once normalised",
        "empty hypotheses": f"{facts.empty:,} in {facts.with_empty:,} lists",
        "prefix sharing": f"{facts.sharing:.2f} words a distinct prefix",
    }
    for kind, tokens in audit.words.uncovered.items():
        rows[f"{kind} tokens"] = _examples(tokens)
    if unknown:
        reference = unknown.reference_rate
        spoken = "" if reference is None else f"; of the references {100 * reference:.2f} %"
        rows["unknown words"] = f"{100 * unknown.rate:.2f} %{spoken}"
        if unknown.unknown.count:
            rows["most frequent"] = _examples(unknown.unknown)
    if audit.errors:
        found = errors_to_dict(audit.errors)
        unit = f"{audit.errors.unit[0].upper()}ER %"
        names = {"1-best": "wer", "oracle": "oracle_wer", "random": "random_wer", "worst": "worst_wer"}
        rates = (
            f"{name} {'-' if found[key] is None else format(found[key], '.2f')}"
            for name, key in names.items()
        )
        rows[unit] = ", ".join(rates) + f" ({found['with_reference']:,} lists with references)"
        depth = found["depth_for_90_percent_of_oracle"]
        rows["depth"] = f"the first {depth:,} hypotheses give 90 % of the oracle's gain"
    if audit.models:
        rows |= _models(audit.models)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _models(models: ModelFacts) -> dict[str, str | Text]:
    """What the bundle says: how streams go with its n-gram, and what the weights do."""
    weights = models.weights
    alike = []
    for name, each in models.likeness.items():
        low, high = each.units
        units = f", {low:.3g} to {high:.3g} units a nat" if each.r >= LIKE_R else ""
        alike.append(f"{name} r {each.r:+.2f}{units}")
    rows: dict[str, str | Text] = {"like the n-gram": Text("; ".join(alike))} if alike else {}
    if weights.lists:
        errors = f"{weights.errors:,} errors, the first pass {weights.first_errors:,}; "
        spreads = (
            f"language model ± {_number(weights.model_spread)}, streams ± {_number(weights.stream_spread)}"
        )
        rows[f"weights {weights.name}"] = (errors if weights.referenced else "") + spreads
    return rows


def _streams(audit: Audit) -> Table:
    """Scores in nats as they were read; a word's size also as it were in other units."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("stream", overflow="fold", vertical="bottom")
    heads = (
        "min",
        "max",
        "spread",
        "a\nword",
        "if\nlog10",
        "if\nlog2",
        "first\nbest",
        "r with\nwords",
        "r with\nerrors",
    )
    for name in heads:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for each in audit.streams:
        sizes = each.minimum, each.maximum, each.spread, each.per_word
        table.add_row(
            Text(each.name),
            *(_number(value) for value in (*sizes, each.per_word_as("10"), each.per_word_as("2"))),
            f"{100 * each.first_is_best / each.compared:.0f} %" if each.compared else "-",
            *("-" if r is None else f"{r:+.2f}" for r in (each.length_correlation, each.error_correlation)),
        )
    return table


def _findings(audit: Audit) -> list[RenderableType]:
    if not audit.findings:
        return [Text("  Nothing looks wrong.")]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in audit.findings:
        warns = finding.severity == "warning"
        mark = Text("WARNING", style="bold red") if warns else Text("note", style="dim")
        table.add_row(mark, Text(finding.message))
        if finding.advice:
            table.add_row("", Text(f"→ {finding.advice}"))
    return [Padding(table, (0, 0, 0, 2))]


def _examples(tokens: Tokens) -> Text:
    shown = ", ".join(f"{token} {count:,}" for token, count in tokens.examples[:EXAMPLES])
    return Text(f"{tokens.count:,} ({tokens.distinct:,} distinct): {shown}")


def _number(value: float) -> str:
    """Two decimals where they matter, so that ten columns fit."""
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.2g}"

"""Tables of an inspection, followed by its findings with advice."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from rescorer.cli.render.tables import FoldingTable, make_text_grid
from rescorer.errors import pluralise
from rescorer.evaluation.inspection.bundle_models import BundleModel
from rescorer.evaluation.inspection.inspect import Inspection
from rescorer.evaluation.inspection.list_stats import ErrorStats
from rescorer.evaluation.inspection.models import ModelStats
from rescorer.evaluation.inspection.stream_findings import MIN_LM_R
from rescorer.evaluation.inspection.words import TokenStats
from rescorer.text import rate_name

MAX_EXAMPLES = 10


def render_inspections(inspections: Mapping[str, Inspection]) -> RenderableType:
    """Render inspections by the name of their file."""
    parts: list[RenderableType] = []
    for name, inspection in inspections.items():
        parts += [Text(name, style="bold"), *_parts(inspection)]
    return Group(*parts)


def _parts(inspection: Inspection) -> list[RenderableType]:
    tables: list[RenderableType] = [_overview(inspection)]
    if inspection.streams:
        tables += [Text(), _streams(inspection)]
    return [Padding(table, (0, 0, 0, 2), expand=False) for table in tables] + [
        Text(),
        *_findings(inspection),
        Text(),
    ]


def _overview(inspection: Inspection) -> RenderableType:
    lists, unknown = inspection.lists, inspection.words.unknown
    rows: dict[str, str | Text] = {
        "lists": f"{lists.lists:,}" + (f"; {lists.rejected:,} rejected" if lists.rejected else ""),
        "hypotheses": f"{lists.hypotheses:,}; the longest list has {lists.longest_list:,}",
        "words": f"{lists.words:,}",
        "duplicates": f"{lists.duplicates:,} as read, {lists.duplicates_normalised:,} once normalised",
        "empty hypotheses": f"{lists.empty:,} in {pluralise(lists.with_empty, 'list')}",
        "prefix sharing": f"{lists.prefix_sharing:.2f} words per distinct prefix",
    }
    for kind, tokens in inspection.words.uncovered.items():
        rows[f"{kind} tokens"] = _format_examples(tokens)
    if unknown:
        rate = unknown.reference_rate
        rows["unknown words"] = f"{100 * unknown.rate:.2f} %" + (
            "" if rate is None else f"; {100 * rate:.2f} % of the references"
        )
        if unknown.unknown.count:
            rows["most frequent"] = _format_examples(unknown.unknown)
    if inspection.errors:
        rows |= _error_rows(inspection.errors)
    if inspection.models:
        rows |= _model_rows(inspection.models)
    return make_text_grid(rows.items())


def _error_rows(errors: ErrorStats) -> dict[str, str]:
    values = errors.to_dict()
    keys = {"1-best": "wer", "oracle": "oracle_wer", "random": "random_wer", "worst": "worst_wer"}
    rates = ", ".join(
        f"{name} {'-' if values[key] is None else format(values[key], '.2f')}" for name, key in keys.items()
    )
    depth = values["depth_for_90_percent_of_oracle"]
    lists = pluralise(values["with_reference"], "list")
    first = pluralise(depth, "hypothesis gives", "hypotheses give")
    return {
        f"{rate_name(errors.unit)} %": f"{rates} ({lists} with references)",
        "depth": f"the first {first} 90 % of the oracle's gain",
    }


def _model_rows(models: ModelStats) -> dict[str, str | Text]:
    """The bundle's models, correlation of the streams with its n-gram, and the effect of the weights."""
    weights = models.weights
    rows: dict[str, str | Text] = {"models": Text(", ".join(map(_format_model, models.models)))}
    correlations = []
    for name, correlation in models.correlations.items():
        low, high = correlation.units_per_nat
        units = f", {low:.3g} to {high:.3g} units per nat" if correlation.r >= MIN_LM_R else ""
        correlations.append(f"{name} r {correlation.r:+.2f}{units}")
    if correlations:
        rows["like the n-gram"] = Text("; ".join(correlations))
    if weights.lists:
        errors = f"{pluralise(weights.errors, 'error')}, the first pass {weights.first_errors:,}; "
        spreads = (
            f"models ± {_format_number(weights.model_spread)}, "
            f"streams ± {_format_number(weights.stream_spread)}"
        )
        rows[f"weights {weights.name}"] = (errors if weights.referenced else "") + spreads
    return rows


def _format_model(model: BundleModel) -> str:
    """Name, kind and direction of a language model, and the topics that it reads."""
    topics = f", {model.topics} topics" if model.topics else ""
    return f"{model.name} ({model.network or 'n-gram'}, {model.direction}{topics})"


def _streams(inspection: Inspection) -> FoldingTable:
    """Scores in nats as read, and their mean per word also as if they were in other units."""
    table = FoldingTable(
        "stream",
        "min",
        "max",
        "spread",
        "per word",
        "if log10",
        "if log2",
        "first best",
        "r with words",
        "r with errors",
    )
    for stream in inspection.streams:
        sizes = stream.minimum, stream.maximum, stream.spread, stream.per_word
        in_other_units = stream.per_word_as("10"), stream.per_word_as("2")
        correlations = stream.length_correlation, stream.error_correlation
        table.add_row(
            stream.name,
            *(_format_number(value) for value in (*sizes, *in_other_units)),
            f"{100 * stream.first_is_best / stream.compared:.0f} %" if stream.compared else "-",
            *("-" if r is None else f"{r:+.2f}" for r in correlations),
        )
    return table


def _findings(inspection: Inspection) -> list[RenderableType]:
    if not inspection.findings:
        return [Text("  Nothing looks wrong.")]
    rows: list[tuple[str, Text]] = []
    for finding in inspection.findings:
        is_warning = finding.severity == "warning"
        label = "WARNING" if is_warning else "note"
        rows.append((label, Text(finding.message)))
        if finding.advice:
            rows.append(("", Text(f"→ {finding.advice}")))
    table = make_text_grid(rows)
    return [Padding(table, (0, 0, 0, 2), expand=False)]


def _format_examples(tokens: TokenStats) -> Text:
    examples = ", ".join(f"{token} {count:,}" for token, count in tokens.examples[:MAX_EXAMPLES])
    return Text(f"{tokens.count:,} ({tokens.distinct:,} distinct): {examples}")


def _format_number(value: float) -> str:
    """Two decimals for small numbers only, so that ten columns fit."""
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.2g}"

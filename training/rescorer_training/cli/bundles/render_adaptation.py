"""Tables and lines about an adapted bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType

from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.evaluation.figures import (
    UNKNOWN,
    describe_p,
    describe_unknown,
    format_gain,
    format_interval,
    format_number,
    format_p,
    format_percent,
    format_signed,
)

if TYPE_CHECKING:  # imports torch, which takes seconds
    from rescorer_training.adaptation.lists import ListComparison
    from rescorer_training.adaptation.report import AdaptationReport, Change

TEXT_NAMES = {"domain": "held-out text of the domain", "general": "general text"}


def print_report(report: AdaptationReport, target: Path) -> None:
    """Print perplexities and λ before and after, and what else there is to know."""
    for name, text in report.texts.items():
        title = f"perplexity of {TEXT_NAMES[name]}: {text.file}, {text.tokens:,} tokens"
        table = FoldingTable("model", "before", "after", "change", "λ before", "λ after", title=title)
        for model, change in text.perplexity.items():
            shares = report.shares.get(model, (None, None))
            table.add_row(model, *format_change(change), *(format_value(share, 4) for share in shares))
        print_out(table, "")
    print_out(*describe_models(report), "", f"{target}: adapted from {report.adapted.source}")


def format_change(change: Change) -> tuple[str, str, str]:
    """A perplexity before and after, and the change in percent."""
    percent = UNKNOWN
    if change.before and change.after:
        percent = f"{format_signed(100 * (change.after / change.before - 1), 1)} %"
    return format_value(change.before, 2), format_value(change.after, 2), percent


def format_value(value: float | None, decimals: int) -> str:
    return UNKNOWN if value is None else format_number(value, decimals)


def describe_models(report: AdaptationReport) -> Iterator[str]:
    """Say of each model what was done to it."""
    ngram, text = report.adapted.ngram, report.adapted.text
    yield f"learnt from {text.name}: {text.n_words:,} words in {text.n_sentences:,} sentences"
    if ngram.shares:
        shares = ", ".join(f"{name} {share:.4f}" for name, share in ngram.shares.items())
        yield f"{ngram.model}: interpolated with a {ngram.order}-gram of the text ({shares})"
    else:
        yield f"{ngram.model}: a {ngram.order}-gram of the text, a further model because {ngram.reason}"
    for name, network in report.adapted.networks.items():
        if network.is_improved:
            yield f"{name}: {network.epochs} epochs in {network.seconds / 60:.1f} min"
        else:
            yield f"{name}: left as it was, because held-out text did not improve"
        if network.unknown_words:
            share = 100 * network.unknown_uses / text.n_words
            yield (
                f"{name}: does not know {network.unknown_words:,} words of the text ({share:.1f} % of it); "
                "the n-gram shares out their probability"
            )
    if report.stale_weights:
        names = ", ".join(report.stale_weights)
        yield (
            f"weights {names}: left out confidences, held-out error rates and rerankers, which belong to the "
            "models of the source; train, tune and calibrate again"
        )


def describe_lists(compared: ListComparison, weights: str) -> Iterator[RenderableType]:
    """Yield a table of error rates, and a sentence on the gain of the adapted bundle."""
    title = f"error rates of {compared.n_lists:,} lists, weights {weights!r}"
    table = FoldingTable("bundle", "WER %", "interval", "gain", "p", "errors", title=title)
    for result in compared.results:
        system, gain = result.row.report.total.system, result.gain
        is_known = gain is not None and gain.interval.is_finite
        table.add_row(
            result.row.name,
            format_percent(system.rate),
            format_interval(result.interval),
            format_gain(gain) if gain else UNKNOWN,
            format_p(gain.p_value) if gain and is_known else UNKNOWN,
            f"{system.errors:,}",
        )
    yield table
    yield f"gains are over the first pass; intervals of 95 % from {compared.n_units:,} {compared.unit}s"
    gain = compared.gain
    if not gain.units_changed:
        yield "after against before: the same errors"
    elif gain.interval.is_finite:
        yield f"after against before: {format_gain(gain)} points, {describe_p(gain.p_value)}"
    else:
        yield describe_unknown("the weights after", "those before", gain, compared.unit)

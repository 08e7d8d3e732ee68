"""The command ``rescorer-train adapt``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from rescorer.bundle import read_bundle
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import ListInputOptions, Lists
from rescorer.cli.options.scoring import ReferenceOption, collect_lists, make_list_reader
from rescorer.cli.options.weights import WeightOptions, check_streams
from rescorer.cli.output import Rejections
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import ConfigError, FormatError
from rescorer.evaluation.figures import (
    UNKNOWN,
    describe_p,
    explain_unknown,
    format_gain,
    format_interval,
    format_number,
    format_p,
    format_percent,
    format_signed,
)
from rescorer.types import NBestList, Weights
from rescorer_training.cli.options import DeviceOption, JsonOption, ThreadsOption
from rescorer_training.neural.options import TrainingOptions

if TYPE_CHECKING:
    from rescorer_training.adaptation.lists import ListComparison
    from rescorer_training.adaptation.report import AdaptationReport, Change
    from rescorer_training.adaptation.run import AdaptationInputs

BATCH_WORDS, WARMUP_STEPS, PATIENCE = 1024, 20, 2
"""Small batches and a short warm-up, because the text of a domain is small."""
TEXT_NAMES = {"domain": "held-out text of the domain", "general": "general text"}


@expand_options
def adapt(
    bundle: Annotated[
        Path, typer.Argument(help="Bundle to adapt: NAME/VERSION, or NAME for its newest version.")
    ],
    *,
    text: Annotated[Path, typer.Option(help="Text of the domain, one sentence per line; gzip or plain.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Folder of the new bundle, NAME/VERSION. Default: the name of the bundle and of the text, "
            "version 1, in the current folder: starter-domain/1.",
        ),
    ] = None,
    valid: Annotated[
        Path | None,
        typer.Option(
            help="Held-out text of the domain: half of it chooses λ and when training stops, half judges. "
            "Default: a tenth of the text, blocks of consecutive sentences chosen by --seed."
        ),
    ] = None,
    general: Annotated[
        Path | None,
        typer.Option(help="Text of another kind, to measure what the models forget of what they knew."),
    ] = None,
    lists: Annotated[
        str | None,
        typer.Option(help="N-best lists with references, to measure error rates before and after."),
    ] = None,
    reference: ReferenceOption = None,
    list_options: ListInputOptions,
    weight_options: WeightOptions,
    epochs: Annotated[int, typer.Option(help="Largest number of passes of the network over the text.")] = 12,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of the network.")] = 1e-3,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the held-out part and of the training.")
    ] = 1,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Adapt a bundle to a domain by text alone, and measure what that changes.

    Example: rescorer-train adapt models/starter/1 --text domain.txt.gz -o models/domain/1

    The n-gram is interpolated with a Kneser-Ney model of the text; each network is trained further on it,
    until held-out text no longer improves; λ are fitted by EM. The other values of the weights sets stay as
    they are, so tune them afterwards if there are lists.
    """
    # deferred, because importing torch takes seconds
    from rescorer_training.adaptation.run import AdaptationInputs, adapt_bundle, check_output

    for path in (text, valid, general):
        if path is not None and not path.is_file():
            raise ConfigError(f"{path}: no such text; expected a file with one sentence per line")
    source = read_bundle(bundle)
    target = output or Path(f"{source.name}-{text.name.split('.')[0]}") / "1"
    check_output(target)
    scorable = None
    if lists:
        weights = weight_options.resolve(source.weights)
        reader = make_list_reader(reference, list_options)
        scorable = ListsToRank.read(lists, reader(lists), weights, list_options)
    options = TrainingOptions(
        epochs, batch_words=BATCH_WORDS, learning_rate=learning_rate, warmup_steps=WARMUP_STEPS,
        patience=PATIENCE, schedule="plateau", seed=seed,
    )  # fmt: skip
    inputs = AdaptationInputs(source.folder, text, target, valid, general, device, threads)
    report = adapt_bundle(inputs, options)
    compared = scorable.compare(inputs) if scorable else None
    if as_json:
        facts = {"bundle": str(target), **report.to_dict()}
        facts |= {"error_rates": compared.to_dict()} if compared else {}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    print_report(report, target)
    if compared and scorable:
        print_out("", *describe_lists(compared, scorable.weights.name))


@dataclass(frozen=True)
class ListsToRank:
    """Lists to rank by both bundles, and the weights to do it by."""

    lists: Sequence[NBestList]
    weights: Weights
    rejected: Rejections

    @classmethod
    def read(cls, file: str, lists: Lists, weights: Weights, options: ListInputOptions) -> ListsToRank:
        """Read the lists of a file.

        Raises:
            ConfigError: the lists do not have the streams of the weights, or the weights use rerankers.
            FormatError: no list has a reference.
        """
        if weights.rerankers:
            names = ", ".join(weights.rerankers)
            raise ConfigError(
                f"weights {weights.name!r} use the reranker {names}, which an adapted bundle does not have; "
                "choose others with --weights"
            )
        rejected = Rejections()
        good = collect_lists(lists, rejected)
        if not any(nbest.reference for nbest in good):
            rejected.report()
            raise FormatError("no list has a reference; give the references with --reference", file=file)
        check_streams(good, weights, options.streams)
        return cls(good, weights, rejected)

    def compare(self, inputs: AdaptationInputs) -> ListComparison:
        """Rank the lists by the bundle and by the adapted one; report rejected lists on stderr."""
        from rescorer.pipeline import Rescorer
        from rescorer_training.adaptation.lists import compare_bundles

        before, after = (Rescorer.load(folder, inputs.device) for folder in (inputs.bundle, inputs.output))
        compared = compare_bundles(before, after, self.lists, self.weights)
        for error in compared.rejected:
            self.rejected.add(error)
        self.rejected.report()
        return compared


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
        yield f"after against before: {format_gain(gain)} points; {explain_unknown(gain, compared.unit)}"

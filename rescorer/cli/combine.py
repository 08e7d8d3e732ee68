"""The command ``rescorer combine``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer import decision
from rescorer.errors import ConfigError, FormatError, LimitExceeded, did_you_mean, pluralise
from rescorer.evaluation.combination import (
    CombinationReport,
    Utterance,
    join_systems,
    judge_settings,
    tune_and_judge,
)
from rescorer.evaluation.figures import (
    describe_p,
    describe_unknown,
    format_gain,
    format_interval,
    format_percent,
)
from rescorer.formats.registry import choose
from rescorer.terminal.evaluation_options import (
    CountedTextOptions,
    ReferenceOption,
    collect_lists,
    make_list_reader,
    reject_choices,
)
from rescorer.terminal.options import expand_options
from rescorer.terminal.program import SEE_JSON, SOME_REJECTED, Rejections, check_output_path
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer.text import Normaliser, rate_name, remark_on_spacing, unit_noun
from rescorer.types import MAX_NUMBER, Hypothesis, NBestList


def render_combination(report: CombinationReport) -> FoldingTable:
    """Render one row per system and vote."""
    rate, noun = rate_name(report.counted), unit_noun(report.counted)
    table = FoldingTable("system", f"{rate} %", "interval", "errors", f"{noun}s")
    for name, row in report.rows.items():
        counts = (str(row.errors), str(row.reference_words))
        table.add_row(name, format_percent(row.rate), format_interval(row.interval), *counts)
    return table


def summarise(report: CombinationReport) -> Iterator[str]:
    """Yield the verdict and, if they were tuned, the options for other utterances."""
    gain = report.gain
    name = report.best_system
    margin = f"{format_gain(gain)} points, {describe_p(gain.p_value)}"
    if not gain.units_changed:
        yield f"the combination makes the same errors as {name}, the best system"
    elif not gain.interval.is_finite:
        yield describe_unknown("the combination", f"{name}, the best system", gain, report.unit)
    elif gain.lower_bound > 0:
        yield f"the combination is better than {name}, the best system: {margin}"
    elif gain.interval.high < 0:
        yield f"the combination is worse than {name}, the best system: {margin}"
    else:
        yield f"the combination is not better than {name}, the best system, beyond chance: {margin}"
    if report.warning:
        yield report.warning
    if report.tuned is not None:
        weights = ",".join(f"{weight:.3g}" for weight in report.tuned.weights)
        temperatures = ",".join(f"{temperature:g}" for temperature in report.tuned.temperatures)
        yield (
            f"tuned on all {report.utterances:,} utterances: --system-weights {weights} --temperatures "
            f"{temperatures} --null-weight {report.tuned.null_weight:g}"
        )


FORMATS = ("jsonl", "trn")
"""Formats that hold a text without scores or times."""
POSTERIOR_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class VoteOptions:
    """The settings of the vote, or that they are tuned."""

    system_weights: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER,…", help="Weight of each file's votes, such as 0.7,0.3; default: equal."
        ),
    ] = None
    temperatures: Annotated[
        str | None,
        typer.Option(metavar="NUMBER,…", help="Temperature of each file's posteriors; default: 1 for each."),
    ] = None
    null_weight: Annotated[
        float, typer.Option(help="Factor of the votes for no word; above 1, texts become shorter.")
    ] = 1.0
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Find the three by the references; error rates are cross-validated."),
    ] = False

    def settings(self, n_systems: int) -> decision.RoverSettings:
        """Parse the options; raises ConfigError if they do not fit the number of files, or ``--tune``."""
        if n_systems < 2:
            raise ConfigError("a combination needs at least two files, one per recogniser")
        settings = decision.RoverSettings(
            parse_numbers("--system-weights", self.system_weights, n_systems),
            parse_numbers("--temperatures", self.temperatures, n_systems),
            *parse_numbers("--null-weight", str(self.null_weight), 1),
        )
        if self.tune and settings != VoteOptions().settings(n_systems):
            raise ConfigError(
                "--tune finds the settings: omit --system-weights, --temperatures and --null-weight"
            )
        return settings


@expand_options
def combine(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Lists of two or more recognisers for the same utterances."),
    ],
    output: Annotated[str, typer.Option("-o", "--output", help="File of combined texts.")],
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="FORMAT", help="Output format: jsonl, with posteriors of words, or trn."
        ),
    ] = "jsonl",
    normalised: Annotated[
        bool, typer.Option("--normalised", help="Write normalised words: lower case, no punctuation.")
    ] = False,
    vote: VoteOptions,
    reference: ReferenceOption = None,
    options: CountedTextOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print the error rates as JSON.")] = False,
) -> None:
    """Combine the lists of several recognisers into one text per utterance, by voting word by word (ROVER).

    Example: rescorer combine a.jsonl b.jsonl --tune -o both.jsonl

    Files are the output of `rescorer rescore`, lists with one score, or single texts; they are joined by id.
    The combination is new text, which no recogniser need have output; each word is written as the first
    recogniser that voted for it writes it. With references, error rates are printed, and a paired test
    against the best recogniser. --tune also prints the options with which to combine other utterances of
    these recognisers.
    """
    settings, tune = vote.settings(len(files)), vote.tune
    if to not in FORMATS:
        raise ConfigError(f"--to {to!r}: expected {' or '.join(FORMATS)}{did_you_mean(to, FORMATS)}")
    writer = choose(to).writer
    check_output_path("-o", Path(output))
    rejected = Rejections()
    normaliser = options.text.make_normaliser()
    read_all = make_list_reader(reference, options.lists)
    has_choices = options.counting.settings().alternations
    read_lists = (lambda file: reject_choices(read_all(file))) if has_choices else read_all
    utterances = read_utterances(files, read_lists, normaliser, rejected)
    judged = [item for item in utterances if item.reference is not None]
    report = None
    if tune and not judged:
        raise FormatError("--tune needs references, in the lists or with --reference", file=files[0])
    if judged:
        counting = options.counting.settings()
        evaluated = judged, files, normaliser.normalise, counting
        report = tune_and_judge(*evaluated) if tune else judge_settings(*evaluated, settings)
        settings = report.tuned or settings
    write_combinations(output, writer, utterances, settings, rejected, normalised=normalised)
    rejected.report(SEE_JSON)
    if as_json:
        data: dict[str, Any] = {"systems": [], "gain": None, "tuned": None, "utterances": len(utterances)}
        data = report.to_dict() if report else data
        data |= {"rejected": len(rejected), "rejected_lists": rejected.reasons}
        data["normaliser"] = normaliser.settings.describe()
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        if report is not None:
            words = f"words are compared by {normaliser.settings.describe()}"
            print_out(render_combination(report), "", *summarise(report), words)
        texts = (system.words[0] for item in utterances for system in item.systems)
        remark = remark_on_spacing(texts) if report is None or report.counted == "word" else ""
        if remark:
            print_out(remark)
        how = "in normalised words" if normalised else "each word as the first recogniser with it writes it"
        print_out(f"{pluralise(len(utterances), 'utterance')} written to {output}, {how}")
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def parse_numbers(option: str, text: str | None, expected: int) -> tuple[float, ...]:
    """Parse positive numbers separated by commas; without a text, all are 1."""
    if not text:
        return (1.0,) * expected
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected numbers separated by commas") from None
    if len(numbers) != expected:
        raise ConfigError(f"{option} {text!r}: expected {expected} numbers, one per file")
    if not all(0 < number <= MAX_NUMBER for number in numbers):
        raise ConfigError(f"{option} {text!r}: expected finite numbers above 0")
    return numbers


def read_utterances(
    files: Sequence[str], read_lists: Callable[[str], Any], normaliser: Normaliser, rejected: Rejections
) -> list[Utterance]:
    """Read and join the files; raises FormatError if they have no utterance in common."""
    systems = [collect_lists(read_lists(file), rejected) for file in files]
    utterances, errors, others = join_systems(systems, normaliser)
    for error in errors:
        rejected.add(error)
    if not utterances:
        rejected.report()
        raise FormatError("the files have no usable list with the same id", file=", ".join(files))
    if any(others):
        counts = ", ".join(f"{file} {count:,}" for file, count in zip(files, others, strict=True))
        typer.echo(
            f"{pluralise(len(utterances), 'utterance is', 'utterances are')} in all files; others are left "
            f"out: {counts}",
            err=True,
        )
    return utterances


def write_combinations(
    output: str,
    writer: Callable[[str], Any],
    utterances: Sequence[Utterance],
    settings: decision.RoverSettings,
    rejected: Rejections,
    *,
    normalised: bool,
) -> None:
    """Combine and write each utterance; one that takes too long is rejected."""
    with writer(output) as write:
        for item in utterances:
            try:
                words = decision.combine(item.systems, settings)
            except LimitExceeded as error:
                rejected.add(error)
                continue
            posteriors = [
                {"word": word.word, "posterior": round(word.posterior, POSTERIOR_DECIMALS)} for word in words
            ]
            text = " ".join(word.word if normalised else word.surface for word in words)
            hypothesis = Hypothesis(text, {"word_posteriors": posteriors})
            write(NBestList(item.id, (hypothesis,), reference=item.reference, group=item.group))

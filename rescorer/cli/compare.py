"""The commands ``rescorer compare``, ``report`` and ``combine``, which read the lists of several systems."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path
from string import ascii_uppercase
from typing import Any, get_args

import typer

from rescorer import consensus
from rescorer.cli.evaluate import check_bundle_options, check_system, evaluate_files
from rescorer.errors import ConfigError, FormatError, LimitExceeded, did_you_mean, pluralise
from rescorer.evaluation.combination import (
    CombinationReport,
    Utterance,
    join_systems,
    judge_settings,
    tune_and_judge,
)
from rescorer.evaluation.list_errors import (
    UNKNOWN,
    describe_p,
    describe_unknown,
    find_shared_lists,
    format_gain,
    format_interval,
    format_p,
    format_percent,
)
from rescorer.evaluation.rate_tables import Signature, tabulate_pairs
from rescorer.evaluation.report.build import MAX_UTTERANCES, ReportSettings, build_report_data, collect_files
from rescorer.evaluation.report.data import ReportData
from rescorer.evaluation.significance import (
    ComparedPair,
    Difference,
    DrawnUnit,
    PairwiseComparison,
    RankTestName,
    RecognisedLists,
    compare_shared,
    recognise_lists,
)
from rescorer.formats.io.text_io import write_text
from rescorer.formats.registry import choose
from rescorer.formats.rescored import is_rescored
from rescorer.terminal.evaluation_options import (
    CountedTextOptions,
    EvaluationOptions,
    ModelOptions,
    ReferenceOption,
    collect_lists,
    make_list_reader,
    reject_choices,
)
from rescorer.terminal.language_models import complete_weights, find_unweighted
from rescorer.terminal.options import (
    FirstPassOption,
    argument,
    check_streams,
    expand_options,
    option,
    parse_first_pass,
)
from rescorer.terminal.program import (
    Rejections,
    check_output_path,
    describe_shared_lists,
    name_systems,
    print_json,
)
from rescorer.terminal.tables import (
    ExportOptions,
    FoldingTable,
    make_text_grid,
    print_out,
)
from rescorer.text import Normaliser, rate_name, remark_on_spacing, unit_noun
from rescorer.types import MAX_NUMBER, Hypothesis, NBestList

PAIR_COLUMN = "pair"
TEST_HEADINGS = {"bootstrap": "p", "matched_pairs": "MAPSSWE p", "sign": "sign p", "wilcoxon": "Wilcoxon p"}


def print_comparison(
    comparison: PairwiseComparison, unit: str, n_shared: int, others: Mapping[str, int]
) -> None:
    """Print tables of the systems and the pairs, a verdict on each pair, and the number of lists compared."""
    names = (name for length in count(1) for name in product(ascii_uppercase, repeat=length))
    letters = {system.name: "".join(next(names)) for system in comparison.systems}  # A, B, … Z, AA, AB, …
    systems = FoldingTable(
        "system", f"{rate_name(unit)} %", "interval", "sub", "del", "ins", f"{unit_noun(unit)}s"
    )
    for system in comparison.systems:
        total = system.total
        counts = (total.substitutions, total.deletions, total.insertions, total.reference_words)
        rate = format_percent(total.rate) if total.reference_words else UNKNOWN
        systems.add_row(letters[system.name], rate, format_interval(system.interval), *map(str, counts))
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


def export_comparison(
    comparison: PairwiseComparison, unit: str, signature: Signature, export: ExportOptions
) -> None:
    """Write the table of systems to the file of ``--export``, if it is given. A CSV file has a row per
    pair."""
    paper = tabulate_pairs(comparison, unit)
    systems = {system.name: system.to_dict() for system in comparison.systems}
    records = [
        _to_record(pair, systems[pair.baseline], systems[pair.system]) | {"signature": str(signature)}
        for pair in comparison.pairs
    ]
    export.write(paper.headings, paper.rows, records, (*paper.notes, str(signature)))


def _to_record(
    pair: ComparedPair, baseline: Mapping[str, Any], system: Mapping[str, Any]
) -> dict[str, str | float | None]:
    """Return the numbers of a pair and of its systems as JSON output has them, each as a separate column."""
    data = pair.to_dict()
    low, high = data["gain_interval"] or (None, None)
    rate_low, rate_high = system["wer_interval"] or (None, None)
    record = {key: data[key] for key in ("baseline", "system")}
    record |= {
        "baseline_wer": baseline["wer"],
        "wer": system["wer"],
        "wer_low": rate_low,
        "wer_high": rate_high,
    }
    record |= {"gain": data["gain"], "gain_low": low, "gain_high": high}
    for test, p_value in data["p_values"].items():
        record |= {f"p_{test}": p_value, f"p_{test}_corrected": data["p_values_corrected"][test]}
    return record | {key: data[key] for key in ("units_changed", "units_needed", "verdict")}


def name_pair(pair: ComparedPair) -> str:
    """Name a pair by its baseline and its system: ``a.jsonl → b.jsonl``."""
    return f"{pair.baseline} → {pair.system}"


def pair_cells(comparison: PairwiseComparison, pair: ComparedPair) -> dict[str, str]:
    """Format the gain with its interval, and the p-values, by column heading. If there are several pairs, add
    the corrected p-values."""
    cells = {"gain": format_gain(pair.gain)}
    for test, p_value in pair.p_values.items():
        p_values = {TEST_HEADINGS[test]: p_value}
        if len(comparison.pairs) > 1:
            p_values[f"{TEST_HEADINGS[test]} corrected"] = pair.corrected[test]
        is_known = pair.has_p_value(test)
        cells |= {heading: format_p(p) if is_known else UNKNOWN for heading, p in p_values.items()}
    return cells


def describe_pair(pair: ComparedPair, unit: str) -> str:
    """Say in one sentence whether one of two systems is better.

    Args:
        unit: the unit that the bootstrap drew at random: ``list`` or ``group``.
    """
    p_value, gain = pair.corrected["bootstrap"], pair.gain
    judged = Difference(pair.baseline, pair.system, gain, p_value, unit, pair.units_needed)
    is_open = gain.units_changed and not gain.interval.is_finite
    return judged.sentence() + ("; --by list draws single lists" if is_open and unit == "group" else "")


@dataclass(frozen=True, slots=True)
class SignificanceOptions:
    """The statistical tests that show whether differences are larger than chance."""

    by: DrawnUnit | None = option(
        None,
        "What the bootstrap draws: single lists, or all lists of a speaker or other group; default: "
        "groups if they are known.",
    )
    tests: str = option(
        "", "Further tests: sign, wilcoxon; over groups if they are known, else over lists.", metavar="NAME,…"
    )


@expand_options
def compare(
    *,
    files: list[str] = argument(
        "Systems: output of `rescorer rescore`, n-best lists whose first hypothesis counts, or "
        "transcripts (trn, ctm, Kaldi's text, id<TAB>text, plain sentences). NAME=FILE names a system.",
        "[NAME=]FILE...",
    ),
    reference: ReferenceOption = None,
    first_pass: FirstPassOption = None,
    options: CountedTextOptions,
    significance: SignificanceOptions,
    export: ExportOptions,
    as_json: bool = option(
        False, "Print JSON: lists `systems` and `pairs`; rates and gains in percent.", "--json"
    ),
) -> None:
    """Tell differences between the error rates of systems from chance.

    Example: rescorer compare a.jsonl b.jsonl --groups '^(\\d+)-'

    Every system is compared with every later one, on the lists that all files have: the same id and
    reference. The gain is the first one's error rate minus the second one's, with a bootstrap interval of
    95 %. Two tests ask how often chance alone would give such a gain: a paired bootstrap and NIST's matched
    pairs (MAPSSWE; with --counting sclite, that of sc_stats). With more than two systems, p-values are also
    corrected for the number of pairs (Holm), and verdicts rest on the corrected ones.

    Every file is one row. For the first pass, give the lists themselves as a file; `rescorer evaluate` has
    the oracle, rules such as leaving out empty hypotheses, and the gain of each model.
    """
    inputs = name_systems(files)
    if len(inputs) < 2:
        raise ConfigError("expected two files or more, one per system, got one")
    export.check()
    by, test_names = significance.by, parse_tests(significance.tests)
    weights = parse_first_pass(first_pass)
    normaliser, counting = options.text.make_normaliser(), options.counting.settings()
    read_lists = make_list_reader(reference, options.lists, alternations=counting.alternations)
    rejected = Rejections()
    systems: list[RecognisedLists] = []
    for file in inputs:
        lists = collect_lists(read_lists(file), rejected)
        if weights and (unordered := [nbest for nbest in lists if not is_rescored(nbest)]):
            check_streams(unordered, weights, options.lists, file)
        systems.append(recognise_lists(lists, normaliser.normalise, counting, weights, rejected.add))
        if not systems[-1]:
            rejected.report(rejected.see_json)
            raise FormatError("no list could be evaluated", file=file)
    rejected.report(rejected.see_json)
    shared = find_shared_lists(systems)
    names = list(inputs.values())
    comparison = compare_shared(dict(zip(names, systems, strict=True)), shared, by, test_names)
    signature = Signature.make(counting, normaliser.settings, shared)
    texts = (key[1] for key in shared)
    remark = remark_on_spacing(texts) if counting.unit == "word" else ""
    others = {name: len(lists) - len(shared) for name, lists in zip(names, systems, strict=True)}
    export_comparison(comparison, counting.unit, signature, export)
    if as_json:
        report = comparison.to_dict(len(shared), others)
        report |= rejected.to_dict()
        report |= {"counting": counting.method, "unit": counting.unit}
        report["normaliser"] = normaliser.settings.describe()
        report |= {"notes": [remark] if remark else [], "signature": str(signature)}
        print_json(report)
    else:
        print_comparison(comparison, counting.unit, len(shared), others)
        print_out(f"words are compared by {normaliser.settings.describe()}", f"signature: {signature}")
        if remark:
            print_out(remark)
    rejected.end()


def parse_tests(tests: str) -> tuple[RankTestName, ...]:
    """Parse names of tests, such as ``sign,wilcoxon``; raise ConfigError if a test is unknown."""
    known = get_args(RankTestName)
    names = tuple(dict.fromkeys(name.strip() for name in tests.split(",") if name.strip()))
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--tests {name!r}: expected {' or '.join(known)}{did_you_mean(name, known)}; the bootstrap "
                "and matched pairs are always there"
            )
    return tuple(name for name in known if name in names)


REPORT_SUFFIXES = (".html", ".md", ".json")
"""Extensions of files of reports."""


def render_report(data: ReportData, suffix: str) -> str:
    """Write a report in the format of an extension, one of ``REPORT_SUFFIXES``."""
    from rescorer.evaluation.report.pages import render_html, render_markdown  # imports Jinja2

    if suffix == ".json":
        return json.dumps(data.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"
    return render_html(data) if suffix == ".html" else render_markdown(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedEvaluationOptions(EvaluationOptions):
    """The options of an evaluation. The help of some of them names the parts that only a report has."""

    bundle: Path | None = option(
        None,
        "Model bundle to re-rank with: adds a row for each of its models and for their mixture, and "
        "the error rate along each weight.",
        "--bundle",
        "-b",
    )
    tune: bool = option(
        False,
        "With --bundle: add rows with weights tuned on other folds, as by `rescorer tune`, and show "
        "the spread of these weights.",
    )


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """Options for the content of the report."""

    title: str | None = option(None, "Title of the report; default: the names of the files.")
    system: str | None = option(
        None,
        "Row of the table that is compared with the first pass word by word; default: the last one "
        "whose models rank, with --tune the one with held-out weights.",
        metavar="ROW",
    )
    max_utterances: int = option(
        MAX_UTTERANCES, "Number of utterances to show, those that changed most.", min=0
    )


@expand_options
def report(
    *,
    files: list[str] = argument(
        "N-best lists, or the output of `rescorer rescore`. NAME=FILE names a system.", "[NAME=]FILE..."
    ),
    output: list[Path] = option(
        ...,
        "File to write: a page (.html), text with tables (.md) or data (.json). May be repeated.",
        "-o",
        "--output",
    ),
    options: ReportedEvaluationOptions,
    content: ContentOptions,
    models: ModelOptions,
) -> None:
    """Write a report: one page with tables, charts and aligned utterances, which needs no network.

    Example: rescorer report demo/lists.jsonl.gz -b models/starter/1 --weights pocketsphinx -o report.html

    The page shows the rows of `rescorer evaluate` with intervals and significance, the error rate along each
    weight, the oracle by depth, words that rescoring fixed and broke, groups, and the utterances that changed
    most with their words and scores. Several files are compared on the lists that all of them have.
    """
    check_bundle_options(options, models.imports)
    for path in output:
        check_output_path("-o", path, REPORT_SUFFIXES)
    has_models = options.bundle or models.imports.lm
    inputs = name_systems(files)
    rescorer = models.load(options.bundle, list(inputs), options) if has_models else None
    if find_unweighted(rescorer.bundle if rescorer else None, options.weights):
        options = replace(options, tune=True)
    check_system(content.system, list(inputs.values()), rescorer, options)
    rejected = Rejections()
    evaluation = evaluate_files(files, options, rescorer, rejected)
    evaluation.compare(own_lists=False)
    if not evaluation.n_shared:
        raise ConfigError("the files share no list, so they cannot be compared: report on one of them")
    if not any(result.row.report.total.system.reference_words for _, _, result in evaluation.named_results()):
        raise FormatError("no reference has words: there are no error rates to report", file=", ".join(files))
    weights = None
    if rescorer:
        lists = [item.nbest for item in evaluation.parts[0].comparison.scored]
        weights = options.weights.resolve(rescorer.bundle.weights)
        weights = complete_weights(rescorer.bundle, weights, lists, evaluation.first_pass)
    settings = ReportSettings(
        title=content.title or f"Error rates of {', '.join(inputs.values())}",
        command=shlex.join(["rescorer", *sys.argv[1:]]),
        model=rescorer.bundle.label if rescorer else "",
        counting=evaluation.counting,
        rules=evaluation.normaliser.settings.describe(),
        max_utterances=content.max_utterances,
        system=content.system,
    )
    names = [evaluation.labels[part.file] for part in evaluation.parts]
    reported = collect_files(evaluation, names, rescorer, weights, n_rejected=len(rejected))
    data = build_report_data(reported, evaluation.normaliser.normalise, settings)
    for path in output:
        text = render_report(data, path.suffix.lower())
        write_text(path, text)
        size_kb = len(text.encode()) / 1e3
        print_out(f"{path}: {data.lists:,} utterances, {len(data.systems)} rows, {size_kb:,.0f} kB")
    rejected.end()


def render_combination(report: CombinationReport) -> FoldingTable:
    """Make a table with one row per system, and one row per vote of the systems."""
    rate, noun = rate_name(report.counted), unit_noun(report.counted)
    table = FoldingTable("system", f"{rate} %", "interval", "errors", f"{noun}s")
    for name, row in report.rows.items():
        counts = (str(row.errors), str(row.reference_words))
        table.add_row(name, format_percent(row.rate), format_interval(row.interval), *counts)
    return table


def summarise(report: CombinationReport) -> Iterator[str]:
    """Yield the verdict and, if the vote was tuned, the options with which to combine other utterances."""
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
"""The output formats. They can hold a text that has no scores and no times."""
POSTERIOR_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class VoteOptions:
    """The settings of the vote, or the choice to tune them."""

    system_weights: str | None = option(
        None, "Weight of each file's votes, such as 0.7,0.3; default: equal.", metavar="NUMBER,…"
    )
    temperatures: str | None = option(
        None, "Temperature of each file's posteriors; default: 1 for each.", metavar="NUMBER,…"
    )
    null_weight: float = option(1.0, "Factor of the votes for no word; above 1, texts become shorter.")
    tune: bool = option(False, "Find the three by the references; error rates are cross-validated.")

    def settings(self, n_systems: int) -> consensus.RoverSettings:
        """Parse the options; raise ConfigError if they contradict ``--tune`` or the number of systems."""
        if n_systems < 2:
            raise ConfigError("a combination needs at least two files, one per recogniser")
        settings = consensus.RoverSettings(
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
    *,
    files: list[str] = argument("Lists of two or more recognisers for the same utterances.", "FILE..."),
    output: str = option(..., "File of combined texts.", "-o", "--output"),
    to: str = option("jsonl", "Output format: jsonl, with posteriors of words, or trn.", metavar="FORMAT"),
    normalised: bool = option(False, "Write normalised words: lower case, no punctuation."),
    vote: VoteOptions,
    reference: ReferenceOption = None,
    options: CountedTextOptions,
    as_json: bool = option(False, "Print the error rates as JSON.", "--json"),
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
    rejected.report(rejected.see_json)
    if as_json:
        data: dict[str, Any] = {"systems": [], "gain": None, "tuned": None, "utterances": len(utterances)}
        data = report.to_dict() if report else data
        data |= rejected.to_dict()
        data["normaliser"] = normaliser.settings.describe()
        print_json(data)
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
    rejected.end()


def parse_numbers(option: str, text: str | None, expected: int) -> tuple[float, ...]:
    """Parse positive numbers separated by commas. If the option was not given, all of them are 1.

    Args:
        expected: how many numbers there must be.
    """
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
    """Read the files and join their lists by id; raise FormatError if they have no utterance in common."""
    systems = [collect_lists(read_lists(file), rejected) for file in files]
    utterances, errors, others = join_systems(systems, normaliser)
    rejected.extend(errors)
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
    settings: consensus.RoverSettings,
    rejected: Rejections,
    *,
    normalised: bool,
) -> None:
    """Combine and write each utterance. Reject an utterance if combining it would take too long."""
    with writer(output) as write:
        for item in utterances:
            try:
                words = consensus.combine(item.systems, settings)
            except LimitExceeded as error:
                rejected.add(error)
                continue
            posteriors = [
                {"word": word.word, "posterior": round(word.posterior, POSTERIOR_DECIMALS)} for word in words
            ]
            text = " ".join(word.word if normalised else word.surface for word in words)
            hypothesis = Hypothesis(text, {"word_posteriors": posteriors})
            write(NBestList(item.id, (hypothesis,), reference=item.reference, group=item.group))

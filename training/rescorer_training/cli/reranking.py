"""Commands that train rerankers and language models on lists, and that make lists to train on."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.errors import ConfigError, FormatError, pluralise
from rescorer.evaluation import list_errors
from rescorer.evaluation.error_rate import CountingSettings
from rescorer.evaluation.list_errors import Selection
from rescorer.evaluation.scored_lists import score_lists
from rescorer.formats.io.text_io import is_stream, make_folder, write_text
from rescorer.formats.jsonlines import writer
from rescorer.pipeline import Rescorer
from rescorer.progress import track
from rescorer.runtime import use_threads
from rescorer.terminal.evaluation_options import (
    CacheOptions,
    RankedListOptions,
    ReferenceOption,
    collect_lists,
    make_list_reader,
)
from rescorer.terminal.list_options import ListInputOptions
from rescorer.terminal.options import BundleOption, DeviceOption, SelectionOptions, expand_options
from rescorer.terminal.program import PLAIN_HELP, SOME_REJECTED, Rejections, check_output_path
from rescorer.terminal.tables import FoldingTable, print_out, to_markdown
from rescorer.types import NBestList, Weights
from rescorer_training.cli.bundles import keep_states
from rescorer_training.cli.options import JsonOption, NormaliserOption, SeedOption, ThreadsOption, make_table
from rescorer_training.corpus import choose_normaliser, count_words
from rescorer_training.lists import patterns, speech
from rescorer_training.lists.text import ListImitator
from rescorer_training.progress import option
from rescorer_training.reranker import training
from rescorer_training.reranker.arrays import encode_lists
from rescorer_training.reranker.training import RerankerReport, TrainingLists

if TYPE_CHECKING:
    from rescorer_training.list_finetuning import ListOptions, ListReport

Section = tuple[str, list[list[str]]]
"""A title, and the rows of a table. The first row has the headings."""


def make_page(report: RerankerReport, title: str) -> str:
    """Make a Markdown page with the tables and lines of a report."""
    parts = [f"# {title}", *(f"- {line}" for line in describe(report))]
    for heading, (headings, *lines) in make_sections(report):
        parts += ["", f"## {heading.capitalize()}", "", to_markdown(headings, lines).rstrip()]
    return "\n".join([parts[0], "", *parts[1:]]) + "\n"


def make_sections(report: RerankerReport) -> Iterator[Section]:
    """Yield the tables of a report."""
    yield (
        "error rates",
        [
            ["system", "WER %", "95 %", "saved, points", "p", "held out"],
            *(
                [
                    system.name,
                    list_errors.format_percent(float(report.bootstrap.rates[index])),
                    list_errors.format_interval(report.bootstrap.interval(index)),
                    list_errors.format_gain(gain),
                    list_errors.format_p(gain.p_value) if gain.interval.is_finite else "-",
                    "yes" if system.held_out else "-",
                ]
                for index, system in enumerate(report.systems)
                for gain in [report.bootstrap.gain(0, index)]
            ),
        ],
    )
    yield (
        "weights per standard deviation of the feature within lists",
        [
            ["feature", "weight", "mean of folds", "± over folds"],
            *(
                [part.name, *(f"{value:.3f}" for value in (part.weight, part.fold_mean, part.fold_spread))]
                for part in report.weights
            ),
        ],
    )
    yield (
        "lost by training without these features",
        [
            ["without", "points", "features"],
            *(
                [part.name, list_errors.format_signed(100 * part.loss), str(len(part.features))]
                for part in report.worth
            ),
        ],
    )


def describe(report: RerankerReport) -> Iterator[str]:
    """Yield lines about the judgement, the candidates chosen in folds, and the calibration."""
    judgement = report.judgement
    p_value = (
        f" ({list_errors.describe_p(judgement.gain.p_value)})" if judgement.gain.interval.is_finite else ""
    )
    yield f"{report.explain()}{p_value}"
    if report.n_seen:
        yield (
            f"warning: the base weights were tuned on {report.n_seen:,} of these lists, from which they are "
            "therefore not held out: error rates may be too low"
        )
    yield from judgement.caveats()
    yield f"cross-validation: {report.folds}"
    if report.prior_lists:
        yield f"prior: {report.prior_lists}"
    in_folds = "; ".join(
        f"{count}× {name}" for name, count in Counter(map(str, report.fold_candidates)).items()
    )
    yield f"chosen: {report.candidate}; in the folds: {in_folds}"
    yield (
        f"calibration: mean posterior {report.mean_posterior:.3f} of the first-ranked hypothesis, which has "
        f"the fewest errors of its list in {100 * report.share_right:.1f} % of the lists; expected "
        f"calibration error {report.calibration_error:.3f}"
    )


@dataclass(frozen=True, slots=True)
class RerankerOptions:
    """The reranker to train: where it is written, and what it learns from."""

    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="NAME/VERSION",
            help="Folder of the bundle to write: a copy of --bundle with the reranker.",
        ),
    ]
    name: str = option("reranker", "Name of the reranker, and of the weights set that uses it.")
    force: bool = option(False, "Write the reranker even if its gain may be chance.", "--force")
    share_references: bool = option(
        False,
        "Divide the lists by group alone: also train on lists whose reference the held-out lists "
        "have too, as where everybody says the same few sentences.",
        "--share-references",
    )
    prior_lists: list[str] | None = option(
        None,
        "Lists of another kind, with references: made ones, or without some stream; repeat for "
        "more. A first reranker is trained on them, and its weights are a further start to choose from. "
        "--map, --stream, --format, --join-pieces and --groups are not for them: apply these by "
        "`rescorer convert`.",
        metavar="FILE",
    )
    seed: SeedOption = 0


@expand_options
def reranker_command(
    files: Annotated[list[str], typer.Argument(metavar="LISTS…", help="N-best lists with references.")],
    bundle: BundleOption,
    *,
    wanted: RerankerOptions,
    options: RankedListOptions,
    cache: CacheOptions,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Train a reranker: a small model that scores hypotheses by features of their whole list.

    Example: rescorer-train reranker lists.jsonl --bundle models/starter/1 -o models/starter/2

    The base weights (--weights, -w) are where training starts from. Features, model, objective and penalty
    are chosen by cross-validation inside each fold, and judged outside. The reranker is written only if it
    beats the best simple rule there by more than chance: first pass, empty hypotheses left out, equal ones
    merged, a tuned word weight, tuned weights, minimum Bayes risk.
    """
    counting = options.counting.settings()
    rescorer = cache.load_rescorer(bundle, device)
    options.text.apply(rescorer.ranker)
    training.check_output(wanted.output, rescorer.bundle, wanted.name)
    page_file = wanted.output.with_suffix(".md")
    _make_folder(page_file.parent)
    check_output_path("-o", page_file)
    base = rescorer.ranker.effective_weights(options.weights.resolve(rescorer.bundle.weights))
    first_pass = options.parse_first_pass()
    rejected = Rejections()
    lists = read_files(files, options.reference, options.lists, rejected)
    options.check_streams(lists, base, files[0])
    training_lists = score_files(files, lists, rescorer, base, first_pass, counting, rejected)
    prior = None
    if wanted.prior_lists:
        prior = read_prior_lists(wanted.prior_lists, rescorer, base, counting, rejected)
    rejected.report()
    training_lists.check()
    if prior:
        try:
            prior.check_scores()
        except ConfigError as error:
            raise ConfigError(f"--prior-lists: {error}") from None
    share = wanted.share_references
    rules = training.compare_rules(training_lists, rescorer, first_pass, share_references=share)
    words = encode_lists(rescorer, [item.nbest for item in training_lists.scored])
    reranker, report = training.train_reranker(
        training_lists,
        rules,
        wanted.name,
        seed=wanted.seed,
        share_references=share,
        prior=prior,
        encoded=words,
    )
    is_written = report.is_better or wanted.force
    page = make_page(report, f"Reranker {wanted.name!r}: {', '.join(Path(file).name for file in files)}")
    if is_written:
        training.publish_with_reranker(rescorer.bundle, reranker, page, wanted.output)
    write_text(page_file, page)
    if as_json:
        facts = {**report.to_dict(), "written": is_written, "rejected": len(rejected)}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        use = f"written to {wanted.output}: use it with --weights {wanted.name}"
        what = use if is_written else "not written (see --force)"
        outcome = f"reranker {what}; figures in {page_file}; {len(rejected)} lists rejected"
        tables = (
            part
            for title, (headings, *rows) in make_sections(report)
            for part in (make_table(headings, rows, title), "")
        )
        print_out(*tables, *describe(report), outcome)
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def _make_folder(folder: Path) -> None:
    try:
        make_folder(folder)
    except FormatError as error:
        raise ConfigError(f"-o: {error}") from None


def read_files(
    files: Sequence[str], reference: str | None, options: ListInputOptions, rejected: Rejections
) -> list[NBestList]:
    """Read the lists of all files. Lists that cannot be read are rejected."""
    read_lists = make_list_reader(reference, options)
    lists = [nbest for file in dict.fromkeys(files) for nbest in collect_lists(read_lists(file), rejected)]
    options.check_groups(lists)
    return lists


def read_prior_lists(
    files: Sequence[str], rescorer: Rescorer, base: Weights, counting: CountingSettings, rejected: Rejections
) -> TrainingLists:
    """Read and score lists of another kind. Base weights of streams that they lack are left out."""
    lists = read_files(files, None, ListInputOptions(), rejected)
    known = {name for nbest in lists for name in nbest.streams}
    streams = {name: weight for name, weight in base.streams.items() if name in known}
    return score_files(files, lists, rescorer, replace(base, streams=streams), None, counting, rejected)


def score_files(
    files: Sequence[str],
    lists: Sequence[NBestList],
    rescorer: Rescorer,
    base: Weights,
    first_pass: Weights | None,
    counting: CountingSettings,
    rejected: Rejections,
    selection: Selection = list_errors.ALL,
) -> TrainingLists:
    """Score the lists of files. Lists that cannot be scored are rejected.

    Raises:
        FormatError: no list is left.
    """
    scored, errors = score_lists(rescorer, lists, base, first_pass, counting, selection)
    for error in errors:
        rejected.add(error)
    if not scored:
        rejected.report()
        raise FormatError("no list could be used for training", file=", ".join(files))
    return TrainingLists(scored, base, list(rescorer.models))


@dataclass(frozen=True, slots=True)
class ListTraining:
    """The training of a model in pieces of words on lists."""

    model: str | None = option(None, "Model to train. Default: the only one in pieces of words.")
    epochs: int = option(4, "Largest number of passes over the lists.", min=1)
    hypotheses: int = option(
        10,
        "Largest number of hypotheses of a list that training reads: those with the highest totals, and the "
        "one with the fewest errors. The held-out lists are ranked as a whole.",
        min=2,
    )
    likelihood: float = option(
        0.01,
        "Weight of the likelihood per piece of the hypothesis with the fewest errors, next to the expected "
        "number of errors. It keeps the model a language model.",
        min=0.0,
    )
    rank: int | None = option(
        None,
        "Rank of the matrices that LoRA trains; 0: all weights are trained. Default: 16, or 0 for recurrent "
        "networks and decoders of at most 20 million parameters.",
        min=0,
    )
    alpha: float | None = option(
        None, "LoRA: the change is multiplied by this over the rank. Default: twice the rank."
    )
    learning_rate: float | None = option(
        None, "Peak learning rate. Default: 1e-3 with LoRA, 3e-4 for all weights."
    )
    bfloat16: bool = option(
        False, "LoRA: multiply the weights that stay in bfloat16, for processors that are fast at it."
    )
    force: bool = option(False, "Write the bundle even if the gain may be chance.", "--force")
    resume: bool = option(False, "Continue a command that was stopped.")
    seed: SeedOption = 1
    device: DeviceOption = "cpu"
    threads: ThreadsOption = None

    def to_options(self) -> ListOptions:
        """Make the options of the runs; raises ConfigError if a value is out of range."""
        from rescorer_training.list_finetuning import ListOptions  # imports torch

        values = {
            field.name: getattr(self, field.name) for field in fields(ListOptions) if field.name != "patience"
        }
        return ListOptions(**values)


BundleOutputOption = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        metavar="NAME/VERSION",
        help="Folder of the bundle to write: a copy of --bundle with the trained model.",
    ),
]


@expand_options
def finetune_command(
    files: Annotated[list[str], typer.Argument(metavar="LISTS…", help="N-best lists with references.")],
    bundle: BundleOption,
    output: BundleOutputOption,
    *,
    training: ListTraining,
    options: RankedListOptions,
    selection: SelectionOptions,
    cache: CacheOptions,
    as_json: JsonOption = False,
) -> None:
    """Train a model in pieces of words further on lists, so that ranking by it makes fewer word errors.

    Example: rescorer-train finetune lists.jsonl --bundle llm/1 --weights tuned.json -o llm/2

    It minimises the expected number of errors under the posteriors of the hypotheses (minimum word error rate
    training). Weights are not tuned again: training, judgement and the new bundle have the same ones, so
    tune them before, on other lists. Each fold of the lists is ranked by a model that was trained on the
    other folds, a fifth of which says when to stop. Only if these held-out lists then have fewer errors, by
    more than chance, than before and than the first pass, a model is trained on all lists and written.
    """
    # deferred, because importing torch takes seconds
    from rescorer_training import list_finetuning
    from rescorer_training.adaptation import check_output
    from rescorer_training.finetuning import SourceModel

    check_output(output)
    wanted = training.to_options()
    rescorer = cache.load_rescorer(bundle, training.device)
    options.text.apply(rescorer.ranker)
    weights = rescorer.ranker.effective_weights(options.weights.resolve(rescorer.bundle.weights))
    name = list_finetuning.choose_model(rescorer.bundle, training.model, weights)
    if training.threads:
        use_threads(training.threads)
    rejected = Rejections()
    lists = read_files(files, options.reference, options.lists, rejected)
    options.check_streams(lists, weights, files[0])
    scored = score_files(
        files, lists, rescorer, weights, options.parse_first_pass(), options.counting.settings(), rejected,
        selection.selection(),
    ).scored  # fmt: skip
    rejected.report()
    entry = rescorer.bundle.manifest["models"][name]
    source = SourceModel.load(rescorer.bundle.files.path / entry["path"], name, training.device)
    preparer = list_finetuning.ListPreparer(rescorer, source.writer, name, weights, wanted)
    states = output.with_name(f".{output.name}.finetuning")  # where a stopped command leaves its states
    with keep_states(states, True, resume=training.resume):
        run = list_finetuning.ListFinetuning(
            rescorer, source, preparer.prepare(scored), weights, wanted, states
        )
        report, found = run.cross_validate(), None
        if report.is_better or training.force:
            found = run.publish(report, output)
    is_written = found is not None and found.is_improved
    if as_json:
        facts = {**report.to_dict(), "written": is_written, "rejected": len(rejected)}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        print_out(make_error_table(report), "", *describe_training(report))
        if is_written:
            typer.echo(f"{output}: written, with {name} trained on all lists")
        elif found is not None:
            typer.echo(
                "not written: trained on all lists, the model does not improve those by which it stops"
            )
        else:
            typer.echo("not written (see --force)")
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def make_error_table(report: ListReport) -> FoldingTable:
    """Make a table of held-out error rates: of the first pass, and of the model before and after."""
    from rescorer_training.list_finetuning import SYSTEMS

    title = f"held-out error rates of {report.judgement.n_lists:,} lists, weights {report.weights.name!r}"
    drawn, expected = report.bootstrap, ("", *(f"{value:.3f}" for value in report.expected))
    return make_table(
        ["system", "WER %", "95 %", "saved, points", "p", "expected errors"],
        (
            [
                name,
                list_errors.format_percent(float(drawn.rates[index])),
                list_errors.format_interval(drawn.interval(index)),
                list_errors.format_gain(gain),
                list_errors.format_p(gain.p_value) if gain.interval.is_finite else "-",
                expected[index],
            ]
            for index, name in enumerate(SYSTEMS)
            for gain in [drawn.gain(0, index)]
        ),
        title,
    )


def describe_training(report: ListReport) -> Iterator[str]:
    """Yield lines about the judgement, the runs and the lists from which nothing was learnt."""
    judgement, runs = report.judgement, report.in_folds
    p_value = (
        f" ({list_errors.describe_p(judgement.gain.p_value)})" if judgement.gain.interval.is_finite else ""
    )
    yield f"{report.explain()}{p_value}"
    changed = report.bootstrap.gain(1, 2)
    chance = f", {list_errors.describe_p(changed.p_value)}" if changed.interval.is_finite else ""
    yield f"after against before: {list_errors.format_gain(changed)} points{chance}"
    if report.n_seen:
        yield (
            f"warning: the weights were tuned on {report.n_seen:,} of these lists, or models trained: error "
            "rates may be too low"
        )
    yield from judgement.caveats()
    yield f"cross-validation: {report.folds}"
    how = f"LoRA of rank {runs[0].rank}" if runs[0].rank else "all weights"
    improved = sum(run.is_improved for run in runs)
    yield (
        f"{report.model}: {how}, {runs[0].trained:,} trained parameters, "
        f"{sum(run.seconds for run in runs) / 60:.1f} min; improved in {improved} of {len(runs)} folds, and "
        "left as it was in the others"
    )
    for reason, count in report.skipped.items():
        yield f"not trained on: {pluralise(count, 'list')} ({reason})"


TextsArgument = Annotated[
    list[Path], typer.Argument(metavar="TEXT...", help="Text files, one sentence per line.")
]
OutputOption = Annotated[
    Path, typer.Option("-o", "--output", help="JSON-lines file of lists to write; .gz compresses it.")
]
MAX_WORDS = 20
"""Default maximum length of sentences. Longer ones take long to recognise."""


@dataclass(frozen=True, slots=True)
class SentenceOptions:
    """Which sentences of the texts to use."""

    exclude: list[str] | None = option(
        None,
        "Lists whose references must not be used, compared after normalisation; repeat for more files.",
        metavar="LISTS",
    )
    number: int = option(1000, "Number of sentences; each gives one list.", "-n", "--number", min=1)
    seed: SeedOption = 1
    min_words: int = option(3, "Smallest number of words per sentence.", min=1)
    max_words: int = option(MAX_WORDS, "Largest number of words per sentence.", min=1)

    def to_choice(self) -> patterns.Choice:
        """Convert to settings of the choice; raises ConfigError if no sentence can have such a length."""
        if self.min_words > self.max_words:
            raise ConfigError(
                f"--min-words {self.min_words} is more than --max-words {self.max_words}; "
                "no sentence has so many and so few words"
            )
        return patterns.Choice(self.number, self.seed, self.min_words, self.max_words)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Reading of lists and texts."""

    reference: ReferenceOption = None
    list_options: ListInputOptions
    normaliser: NormaliserOption = None

    def read_lists(self, files: Sequence[str]) -> list[NBestList]:
        """Read the lists of files, which must all have references.

        Raises:
            InputError: a list cannot be read.
            ConfigError: a file has no references.
        """
        lists: list[NBestList] = []
        read = make_list_reader(self.reference, self.list_options)
        for file in files:
            before = len(lists)
            for item in read(file):
                if not isinstance(item, NBestList):
                    raise item
                lists.append(item)
            if all(nbest.reference is None for nbest in lists[before:]):
                raise ConfigError(
                    f"{file}: no list has a reference; name their field with --map reference=FIELD, or give "
                    "a file with --reference"
                )
        return lists

    def read_excluded(self, files: Sequence[str]) -> list[NBestList]:
        """Read lists whose references must not be used; print a note if some have no reference."""
        lists = self.read_lists(files)
        if missing := sum(nbest.reference is None for nbest in lists):
            without = f"{missing:,} of the {len(lists):,} lists of --exclude have no reference"
            typer.echo(f"note: {without}; what was said in them may be in the result", err=True)
        return lists


def check_paths(output: Path) -> None:
    """Raise ConfigError unless the output can be written, and is neither an input nor a device or pipe."""
    check_output_path("-o", output)
    if is_stream(output):
        raise ConfigError(f"-o {output}: expected the name of a file, not of a device or pipe")


def report_few(n_chosen: int, n_wanted: int) -> None:
    """Print a note if the texts have too few fitting sentences."""
    if n_chosen < n_wanted:
        fitting = pluralise(n_chosen, "fitting sentence")
        typer.echo(f"note: the texts have only {fitting}, not {n_wanted:,}", err=True)


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """Settings to speak and recognise sentences."""

    voice: list[str] | None = option(
        None,
        "Voice to use, such as flite:slt, festival:ked_diphone or espeak-ng:en-us+m3; repeat for "
        "more. Default: 5 of flite and 3 of festival.",
        metavar="PROGRAM:VOICE",
    )
    depth: int = option(100, "Maximum number of hypotheses per list.", min=1)
    processes: int = option(1, "Number of processes.", min=1)
    min_snr: float = option(20.0, "Least ratio of speech to added noise, in decibels.", metavar="DB")
    max_snr: float = option(40.0, "Largest ratio of speech to added noise, in decibels.", metavar="DB")
    timeout: float = option(
        120.0, "Time for one sentence, after which it is rejected.", metavar="SECONDS", min=1
    )

    def snr_range(self) -> tuple[float, float]:
        """Return the range of ratios; raises ConfigError if it is empty or not finite."""
        if not -math.inf < self.min_snr <= self.max_snr < math.inf:
            raise ConfigError(
                f"--min-snr {self.min_snr:g}, --max-snr {self.max_snr:g}: expected two numbers in decibels, "
                "the first at most as large as the second"
            )
        return self.min_snr, self.max_snr


@expand_options
def speech_command(
    texts: TextsArgument,
    output: OutputOption,
    *,
    sentences: SentenceOptions,
    speech_options: SpeechOptions,
    reading: ReadingOptions,
    as_json: JsonOption = False,
) -> None:
    """Speak sentences by synthetic voices, and recognise them with PocketSphinx.

    Example: rescorer-train lists speech novel.txt -o lists.jsonl.gz -n 2000 --exclude test.jsonl

    Needs Debian's packages flite, festival and festvox-*, and the Python package pocketsphinx. Give texts
    that the language models were not trained on. Voice, speed, pitch and noise are drawn for each sentence
    and recorded in its list; the group of a list is its voice. Its streams are acoustic and lm;
    PocketSphinx itself ranks by acoustic=1,lm=9.5,word=-0.6296. Sentences that give no list are counted. A
    run that was interrupted goes on where it stopped when it is started again. --map, --stream, --format
    and --reference describe the files of --exclude.
    """
    check_paths(output)
    choice = sentences.to_choice()
    snr_range_db = speech_options.snr_range()
    voices = tuple(dict.fromkeys(speech_options.voice or speech.DEFAULT_VOICES))
    speech.check_voices(voices)
    speech.import_pocketsphinx()
    normaliser = choose_normaliser(reading.normaliser)
    excluded = patterns.reference_words(reading.read_excluded(sentences.exclude or []), normaliser)
    chosen = patterns.choose_sentences(texts, normaliser, choice, excluded)
    settings = speech.SpeechSettings(sentences.seed, speech_options.depth, voices, snr_range_db)
    folder = speech.unfinished_folder(output)
    try:
        summary = speech.make_speech_lists(
            chosen, output, settings, speech.PocketSphinx,
            n_processes=speech_options.processes, timeout_s=speech_options.timeout,
        )  # fmt: skip
    except (KeyboardInterrupt, SystemExit):
        typer.echo(f"note: finished lists are kept in {folder}; start the command again to go on", err=True)
        raise
    report_few(len(chosen), sentences.number)
    if summary.n_kept:
        more = pluralise(summary.n_kept, "finished sentence")
        typer.echo(
            f"note: {more} of an earlier run, not asked for now, are kept in {folder}: a larger -n writes "
            "them, too; if you do not need them, delete the folder",
            err=True,
        )
    _print_summary(summary, output, as_json)


def _print_summary(summary: speech.Summary, output: Path, as_json: bool) -> None:
    if as_json:
        facts = {"output": str(output), "written": summary.written, "rejected": dict(summary.rejected)}
        typer.echo(json.dumps({**facts, "kept": summary.n_kept}, indent=2, ensure_ascii=False))
        return
    typer.echo(
        f"{pluralise(summary.written, 'list')} written to {output}; "
        f"{pluralise(summary.rejected.total(), 'sentence')} rejected"
    )
    for reason, n_sentences in summary.rejected.most_common():
        typer.echo(f"  {n_sentences:,}: {reason}")


@dataclass(frozen=True, slots=True)
class WrongWordOptions:
    """Sources of the pronunciations and the contexts of wrong words."""

    dictionary: Path | None = option(
        None,
        "Pronunciation dictionary in the form of the CMU dictionary. Default: that of the Python "
        "package pocketsphinx.",
    )
    ngram: Path | None = option(
        None,
        "ARPA file or KenLM binary: wrong words fit their context, and scores follow it. Default: "
        "counts of words in the texts.",
    )


@expand_options
def text_command(
    texts: TextsArgument,
    output: OutputOption,
    like: Annotated[str, typer.Option(metavar="LISTS", help="Real lists with references to imitate.")],
    *,
    sentences: SentenceOptions,
    wrong_words: WrongWordOptions,
    reading: ReadingOptions,
    as_json: JsonOption = False,
) -> None:
    """Make lists from text alone, in imitation of real lists.

    Example: rescorer-train lists text novel.txt --like real.jsonl -o lists.jsonl.gz -n 5000

    Each list takes the pattern of a real one: which hypotheses are right, wrong and different at which words.
    Wrong words are drawn among those that sound like the right ones, and scores follow the words as they do
    in real lists. The group of a list is that of the real list that it imitates. References of --like and
    --exclude are not used. --map, --stream, --format, --groups and --reference describe these files.
    """
    check_paths(output)
    check_read_twice(texts)
    choice = sentences.to_choice()
    pronunciations = patterns.Pronunciations.read(wrong_words.dictionary or speech.dictionary_path())
    ngram = wrong_words.ngram
    normaliser = choose_normaliser(reading.normaliser, [ngram] if ngram else [])
    real = reading.read_lists([like])
    counts = count_words(texts, normaliser)
    model = patterns.NGramContext(ngram) if ngram else patterns.CountModel(counts)
    imitator = ListImitator(real, normaliser, pronunciations, counts, model)
    others = reading.read_excluded(sentences.exclude or [])
    excluded = patterns.reference_words([*real, *others], normaliser)
    chosen = patterns.choose_sentences(texts, normaliser, choice, excluded)
    with writer(output) as write, track("making lists", "lists", len(chosen)) as task:
        for nbest in map(imitator.make, chosen):
            write(nbest)
            task.advance()
    report_few(len(chosen), sentences.number)
    if as_json:
        facts = {"output": str(output), "written": len(chosen), "imitated": len(imitator.templates)}
        typer.echo(json.dumps(facts, indent=2))
        return
    made, imitated = pluralise(len(chosen), "list"), pluralise(len(imitator.templates), "real list")
    typer.echo(f"{made} written to {output}, in imitation of {imitated}")


def check_read_twice(texts: Sequence[Path]) -> None:
    """Raise ConfigError if a text is a pipe, which can be read only once."""
    for text in texts:
        if str(text) == "-" or text.is_fifo():
            raise ConfigError(f"{text}: is a pipe, but texts are read twice; write it to a file first")


lists_app = typer.Typer(
    **PLAIN_HELP,
    help="Make n-best lists with references, for training where there are few real ones.",
    no_args_is_help=True,
)
lists_app.command("speech")(speech_command)
lists_app.command("text")(text_command)

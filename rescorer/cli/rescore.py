"""The command ``rescorer rescore``: files, archives in shards, and forecasts of their cost."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rescorer.errors import ConfigError, RescorerError, ScoringError, pluralise, quote
from rescorer.extensions import make_ranker, used_rerankers
from rescorer.formats.inputs import expand_globs
from rescorer.formats.io.folders import list_files
from rescorer.formats.io.text_io import is_stream
from rescorer.formats.pieces import sample_markup
from rescorer.formats.rescored import get_renderer, rescored_writer
from rescorer.jobs.cluster import Cluster, check_address, check_reachable, measure_start_s, run_on_cluster
from rescorer.jobs.files import (
    Batch,
    BatchRescorer,
    FileSummary,
    LineBlock,
    LocalRescorer,
    RejectsFile,
    RescorerLoader,
    SessionRescorer,
    SessionText,
    cut_batches,
    rescore_batches,
)
from rescorer.jobs.forecast import N_PASSES, Estimate, Forecast, forecast_run, sample_input
from rescorer.jobs.plan import Unit, measure_all
from rescorer.jobs.processes import MAX_BATCH_WORDS as MAX_PROCESS_BATCH_WORDS
from rescorer.jobs.processes import open_rescorer, open_shared_rescorer
from rescorer.jobs.shards import Archive, DueRun, Finished, Job, OnBatch, run_shards
from rescorer.jobs.store import PLAN, Store, open_store
from rescorer.models import CONTEXT_CACHE_BYTES
from rescorer.models.bundle import Bundle, read_bundle
from rescorer.pipeline import MAX_BATCH_WORDS
from rescorer.progress import install_display, show_nothing
from rescorer.runtime import Phase, count_cpus, time_items
from rescorer.scoring.options import RescoreOptions
from rescorer.scoring.ranker import ListRanker
from rescorer.storage import as_local, is_url
from rescorer.terminal.language_models import ImportOptions, check_weighted, record_models
from rescorer.terminal.list_options import ListInputOptions, Lists
from rescorer.terminal.options import (
    CandidateOptions,
    DeviceOption,
    DtypeOption,
    OtherBundleOption,
    PhraseOptions,
    SelectionOptions,
    TextOptions,
    WeightOptions,
    argument,
    check_first_lists,
    expand_options,
    option,
    warn_if_tuned_otherwise,
)
from rescorer.terminal.program import SOME_REJECTED, check_not_an_input, print_note, warn
from rescorer.terminal.progress import progress_bar, show_rescoring
from rescorer.types import LENGTH, DecisionKind, DecisionRule, ErrorUnit, Weights
from rescorer.weights import uses_model

KINDS: dict[str, DecisionKind] = {
    "maximum": "maximum",
    "mbr": "minimum_bayes_risk",
    "confusion-network": "confusion_network",
}
"""The kind of decision rule for each value of ``--decision``."""


@dataclass(frozen=True, slots=True)
class DecisionOptions:
    """Changes to the decision rule that the weights contain."""

    decision: Literal["maximum", "mbr", "confusion-network"] | None = option(
        None,
        "Decision rule. maximum: the largest total; mbr: the fewest expected errors under the "
        "posteriors of the list (minimum Bayes risk); confusion-network: also write the consensus, which "
        "may be new text. Default: the rule of the weights, usually maximum.",
    )
    decision_unit: ErrorUnit | None = option(
        None, "Errors that mbr minimises; see --unit of `rescorer evaluate`. Default: word."
    )
    temperature: float | None = option(
        None,
        "Temperature of the posteriors of mbr and confusion-network, softmax(total / temperature), "
        "above 0; high values let all hypotheses count alike. Default: that of the weights, or 1.",
    )

    def resolve(self, weights: Weights) -> DecisionRule:
        """Apply the options to the rule of the weights.

        Raises:
            ConfigError: the options are invalid or contradict each other.
        """
        rule = weights.decision
        kind = KINDS[self.decision] if self.decision else rule.kind
        has_words_only = self.decision is not None and kind == "confusion_network"
        return DecisionRule(
            kind,
            self.decision_unit or ("word" if has_words_only else rule.unit),
            rule.temperature if self.temperature is None else self.temperature,
        )


BYTES_PER_WORD = 8
"""Number of bytes that a word takes in lists of JSON lines, about."""
MIN_GPU_SHARE = 0.0001
"""Smallest share of a GPU that Ray can count."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine that runs the shards: this machine, or a Ray cluster and its resources."""

    engine: Literal["local", "ray"] = option(
        "local",
        "What runs shards: local for processes of this machine; ray for workers on a cluster, each "
        "with --threads CPUs (0: one) and its own copy of the models. Needs the extra ray. --workers 0: "
        "as many as the cluster has room for.",
    )
    address: str = option(
        "",
        "Ray cluster of --engine ray: auto for the one of this machine, HOST:PORT of its head, or "
        "ray://HOST:PORT from a machine outside. Default: a Ray on this machine, for this command only.",
        metavar="ADDRESS",
    )
    gpus_per_worker: float = option(
        0.0,
        "Share of a GPU for each worker of --engine ray, with --device cuda: 0.25 for four per GPU.",
        min=0,
        max=1,
    )
    wait_s: float = option(
        60.0, "Seconds for which --engine ray waits until the cluster has room for a worker.", min=0
    )

    def check(self, device: str, *, is_sharded: bool) -> None:
        """Raise ConfigError if options contradict each other."""
        if self.engine != "ray":
            for name, is_given in (
                ("--address", self.address),
                ("--gpus-per-worker", self.gpus_per_worker),
            ):
                if is_given:
                    raise ConfigError(f"{name} is for a cluster; give --engine ray too")
            return
        check_address(self.address)
        if not is_sharded:
            raise ConfigError("--engine ray runs shards; give --shards N and -o FOLDER too")
        if 0 < self.gpus_per_worker < MIN_GPU_SHARE:
            raise ConfigError(
                f"--gpus-per-worker {self.gpus_per_worker:g}: Ray counts shares of at least {MIN_GPU_SHARE}"
            )
        if self.gpus_per_worker and device != "cuda":
            raise ConfigError(
                f"--gpus-per-worker gives each worker a GPU as its device cuda, but --device is {device}"
            )
        if device != "cpu" and not self.gpus_per_worker:
            raise ConfigError(
                f"--device {device} with --engine ray: give --gpus-per-worker too, such as 1, or 0.25 for "
                "four workers on each GPU"
            )

    def check_reachable(self) -> None:
        """Raise ConfigError, before any work is done, if the cluster cannot be reached."""
        if self.engine == "ray":
            check_reachable(self.address)

    def run_shards(
        self, store: Store, due: Sequence[int], job: Job, workers: int, threads: int, on_batch: OnBatch
    ) -> Iterator[Finished]:
        """Run the due shards with the chosen engine; see ``rescorer.jobs.shards.run_shards`` and
        ``run_on_cluster``."""
        if self.engine == "local":
            count = min(workers or count_cpus(), max(1, len(due)))
            return run_shards(store, due, job, count, threads, on_batch)
        return run_on_cluster(store, due, job, self._cluster(workers, threads), on_batch)

    def measure_start_s(self, workers: int, threads: int) -> float | None:
        """See ``rescorer.jobs.cluster.measure_start_s``; None if the shards run without Ray."""
        return None if self.engine == "local" else measure_start_s(self._cluster(workers, threads))

    def _cluster(self, workers: int, threads: int) -> Cluster:
        return Cluster(self.address, workers, threads or 1, self.gpus_per_worker, self.wait_s)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Whether to forecast the cost instead of rescoring, and the sample of lists that is scored for that."""

    plan: bool = option(
        False,
        "Write nothing, but score a sample of the lists on this machine, and print how many core "
        "hours all of them will take, and with --engine ray how long Ray takes to start; with --json, as "
        "one JSON object.",
    )
    plan_lists: int = option(400, "Number of lists that --plan scores, three times.", min=2)
    plan_seed: int = option(0, "Random seed by which --plan chooses them.")
    plan_mb: float = option(
        256.0,
        "Largest number of megabytes that --plan reads, in places all over plain JSON lines, or in "
        "whole files. A pipe, and files of different kinds, are read to the end.",
        min=1,
    )


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The field that names a list's conversation, and the text of earlier lists that models read."""

    session: str = option(
        "",
        "Field of lists that names their conversation, or 'group'. Lists of one conversation are "
        "rescored in order, each after the texts before it: networks with carried state or topics read "
        "these, and so do caches (-w cache=0.1, -w neural_cache=0.1).",
        metavar="FIELD",
    )
    session_text: SessionText = option(
        "chosen",
        "What later lists of a conversation are read after: the texts that were chosen, or the "
        "references, which shows what perfect decisions would be worth.",
    )

    def keep_order(self, rescorer: BatchRescorer) -> BatchRescorer:
        """Wrap a rescorer so that it follows conversations, if ``--session`` is given."""
        return SessionRescorer(rescorer, self.session, self.session_text) if self.session else rescorer

    def forbid(self, option: str) -> None:
        """Raise ConfigError if ``--session`` is given, too.

        Args:
            option: the option that samples lists and so cannot follow conversations.
        """
        if self.session:
            raise ConfigError(f"{option} samples lists and so cannot follow conversations; omit --session")

    def warn_if_unread(self, ranker: ListRanker, weights: Weights) -> None:
        """Warn if ``--session`` is given, but no model, reranker or cache reads earlier utterances, or models
        in pieces of words that do not have a weight beside those that do."""
        is_read = ranker.bundle.reads_previous or used_rerankers(ranker.bundle, weights)
        if self.session and not (is_read or weights.cache or weights.neural_cache):
            units = sorted(ranker.bundle.units)
            prompted = f"import {quote(units[0])} again with --prompt, " if units else ""
            warn(
                f"--session {self.session} changes nothing, because no model of {ranker.bundle.label} reads "
                f"previous utterances; {prompted}add a cache with -w cache=0.1, or train a network with "
                "--carried or --topics"
            )
            return
        unread = ranker.bundle.units.keys() - ranker.bundle.reads_previous
        if self.session and (names := [name for name in sorted(unread) if uses_model(weights, name)]):
            warn(
                f"{', '.join(names)} does not read previous utterances, and scores each list by itself; "
                "rescorer-train import --prompt lets a model in pieces of words read them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """All options that change the answers: how lists are read, weighted and ranked."""

    text: TextOptions
    lists: ListInputOptions
    weights: WeightOptions
    selection: SelectionOptions
    decision: DecisionOptions
    session: SessionOptions
    phrases: PhraseOptions
    candidates: CandidateOptions

    def apply(self, ranker: ListRanker) -> None:
        """Set up a ranker by the options for text rules, phrases and generated hypotheses."""
        self.text.apply(ranker)
        self.phrases.apply(ranker)
        self.candidates.apply(ranker)


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The device and the precision of the models, the size of batches, and the number of processes."""

    device: DeviceOption = "cpu"
    dtype: DtypeOption = "float32"
    batch_words: int = option(MAX_BATCH_WORDS, "Number of words per batch.")
    workers: int = option(
        1,
        "Number of processes that score, each with its own copy of the models: batches of one file, or "
        "shards; 0: one per core. Pays off for long files only, since a process takes seconds to start.",
        min=0,
    )
    share_models: bool = option(
        False,
        "Load the models in one process, which scores for all --workers of a file: for a GPU, or for models "
        "that do not fit into memory several times. --threads are then those of this process.",
    )
    processes: Annotated[int | None, typer.Option(min=0, hidden=True)] = None
    """The former name of ``workers``, which is accepted until 0.2."""
    threads: int = option(0, "CPU threads of each process; 0: divide the cores among them.", min=0)

    def limit_batches(self, workers: int, *, is_sharded: bool) -> int:
        """Return the number of words per batch: fewer if several processes with models share a file.

        Raises:
            ConfigError: shards are to share models.
        """
        if self.share_models and is_sharded:
            raise ConfigError("--share-models is for one file, not for shards")
        is_divided = workers != 1 and not is_sharded and not self.share_models
        return min(self.batch_words, MAX_PROCESS_BATCH_WORDS) if is_divided else self.batch_words

    def open_rescorer(self, load: RescorerLoader, workers: int) -> AbstractContextManager[BatchRescorer]:
        """Open a rescorer in as many processes as wanted; ``load`` has its number of words per batch."""
        open_processes = open_shared_rescorer if self.share_models else open_rescorer
        return open_processes(load, workers or count_cpus(), self.threads, load.batch_words)

    def count_workers(self) -> int:
        """Return the number of processes. Warn if the option is given under its former name.

        Raises:
            ConfigError: both names are given, with different numbers.
        """
        if self.processes is None:
            return self.workers
        warn("--processes is now called --workers; the old name ends with 0.2")
        if self.workers not in (1, self.processes):
            raise ConfigError("--processes is the old name of --workers; give only --workers")
        return self.processes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """The number of shards of the input, the shards that this command runs, and the engine that runs them."""

    shards: int | None = option(
        None, "Divide the input into this many shards of about equal size, in a folder.", min=1
    )
    shard_lists: int | None = option(
        None, "Divide the input into shards of about this many lists instead.", min=1
    )
    shard: int | None = option(
        None,
        "Run only this shard, counted from 0, as the tasks of array jobs do; the first task makes "
        "the plan if there is none.",
        min=0,
    )
    resume: bool = option(False, "Run the shards of an existing plan that are not committed.")
    plan_only: bool = option(False, "Make the plan, and run no shard.")
    engine: EngineOptions

    @property
    def is_set(self) -> bool:
        """Whether options say that the input is rescored in shards."""
        return bool(self.shards or self.shard_lists or self.shard is not None or self.resume)

    @property
    def has_size(self) -> bool:
        """Whether options say how to divide the input: by the number or the size of shards."""
        return self.shards is not None or self.shard_lists is not None

    def check(self) -> None:
        """Raise ConfigError if options contradict each other."""
        if self.shards is not None and self.shard_lists is not None:
            raise ConfigError("--shards and --shard-lists both say how to divide the input; give one of them")
        if self.resume and self.shard is not None:
            raise ConfigError(
                "--resume runs all shards that are not committed, --shard one; give one of them"
            )
        if self.plan_only and not self.has_size:
            raise ConfigError("--plan-only makes a plan; give --shards N or --shard-lists K too")
        if self.plan_only and (self.resume or self.shard is not None):
            raise ConfigError("--plan-only runs no shard; leave out --resume and --shard")

    def check_unset(self) -> None:
        """Raise ConfigError if an option is given that needs shards. Call this if there are no shards."""
        if self.plan_only:
            raise ConfigError("--plan-only is for shards; give --shards N too")

    def check_outputs(self, output: str, rejects: Path | None) -> None:
        """Raise ConfigError if shards cannot be written: ``--output`` is a file or ``-``, or ``--rejects`` is
        given."""
        if output == "-":
            raise ConfigError("shards are written into a folder; give -o FOLDER")
        if Path(output).is_file():
            raise ConfigError(f"--output {output}: is a file; shards are written into a folder")
        if rejects is not None:
            raise ConfigError(
                "--rejects is for one file; each shard has its rejects, and `shards merge` joins them"
            )


def render_plan(forecast: Forecast, seed: int, ray_start_s: float | None = None) -> Iterator[str]:
    """Yield the lines that describe a forecast, each of at most 80 characters."""
    sample = forecast.sample
    about = "" if sample.read_share == 1 else "about "
    hypotheses = pluralise(sample.hypotheses, "hypothesis", "hypotheses")
    words = pluralise(round(sample.words.value), "word")
    yield f"{about}{pluralise(sample.n_lists, 'list')}, {hypotheses}, {words}"
    if about:
        yield f"{100 * sample.read_share:.2g} % of the bytes read"
    if sample.unreadable:
        yield f"{about}{pluralise(sample.unreadable, 'list')} cannot be read"
    sampled = f"{pluralise(len(sample.lists), 'list')} scored, drawn with seed {seed}"
    yield f"{sampled}; {forecast.rejected:,} of them rejected" if forecast.rejected else sampled
    rows = {
        "distinct prefixes per word": f"{forecast.prefix_share:.3f}",
        "words per core second": _with_interval(forecast.words_per_core_s, ",.0f"),
        "core hours": _with_interval(forecast.core_s.times(1 / 3600), ",.3g"),
        "core hours of reading": f"{sample.read_s / 3600:,.3g}",
        "core seconds to start, per process": f"{forecast.start_s:,.1f}",
    }
    if ray_start_s is not None:
        rows["seconds on the clock for Ray's start and end"] = f"{ray_start_s:,.1f}"
    if forecast.gpu_s is not None:
        rows["GPU hours, of one process"] = _with_interval(forecast.gpu_s.times(1 / 3600), ",.3g")
    width = max(map(len, rows))
    for name, value in rows.items():
        yield f"{name:<{width}}  {value}"
    yield f"95 % intervals, from the lists drawn and {N_PASSES} passes over them on this machine"


def _with_interval(estimate: Estimate, spec: str) -> str:
    if math.isinf(estimate.high):
        return f"{estimate.value:{spec}} (one batch: no interval)"
    return f"{estimate.value:{spec}} ({estimate.low:{spec}} to {estimate.high:{spec}})"


@dataclass(frozen=True, slots=True)
class Run:
    """The lists to rescore, the options, the models, and the number of processes."""

    sources: Sequence[str]
    answers: AnswerOptions
    weights: Weights
    bundle: Bundle
    load: RescorerLoader
    workers: int
    """Number of processes; 0: one per core."""
    threads: int

    def check_first(self, lists: Lists, name: str) -> Lists:
        """Check the first lists of a file; see ``check_first_lists``."""
        return check_first_lists(lists, self.weights, self.answers.lists, name, self.load.to)


def print_plan(
    run: Run, options: PlanOptions, engine: EngineOptions, *, compress: bool, as_json: bool
) -> None:
    """Forecast the cost of a run, and print it."""
    sample = sample_input(
        run.sources,
        run.answers.lists.as_source(),
        run.check_first,
        n_lists=options.plan_lists,
        max_bytes=int(options.plan_mb * 1e6),
        seed=options.plan_seed,
    )
    result = forecast_run(run.load, sample, run.threads, compress=compress)
    ray_start_s = engine.measure_start_s(run.workers, run.threads)
    if as_json:
        ray = {} if ray_start_s is None else {"ray_start_seconds": ray_start_s}
        typer.echo(json.dumps({**result.to_dict(), **ray, "seed": options.plan_seed}))
        return
    for line in render_plan(result, options.plan_seed, ray_start_s):
        typer.echo(line)


def describe_options(run: Run) -> dict[str, Any]:
    """Return the options that change answers, in the form in which a plan stores them."""
    answers, load, bundle, weights = run.answers, run.load, run.bundle, run.weights
    lists = answers.lists
    decision = answers.decision.resolve(weights)
    data = {
        "to": load.to,
        "device": load.device.split(":")[0],
        "dtype": load.dtype,
        "batch_words": load.batch_words,
        "decision": asdict(decision),
        **asdict(answers.selection),
        **asdict(answers.session),
        "format": lists.format_,
        "map": lists.maps,
        "stream": lists.streams,
        "join_pieces": lists.join_pieces or None,  # as in the plans of versions without this option
        "groups": _hash_if_file(lists.groups),
        "phrases": _hash_if_file(answers.phrases.phrases),
        "phrase_list": answers.phrases.phrase_list,
        "generate": answers.candidates.generate,
        "dictionary": _hash_if_file(answers.candidates.dictionary),
    }
    if load.best_only:  # otherwise left out, as in plans of versions without this option
        data["best_only"] = True
    # The normaliser by which answers compare texts, if they do; left out if it is that of the models, as it
    # always was in plans of versions before 0.2.
    settings = answers.text.make_normaliser(bundle).settings
    is_default = answers.selection == SelectionOptions() and decision.kind == "maximum"
    if (not is_default or weights.calibration is not None) and settings != bundle.normaliser.settings:
        data["text"] = settings.to_dict()
    return data


def rescore_shards(run: Run, store: Store, options: ShardOptions) -> FileSummary | None:
    """Make the plan if there is none, run shards, and return their counts; None with ``--plan-only``.

    Raises:
        ConfigError: options contradict each other or the plan.
        InputError: an input cannot be read, or has changed since the plan was made.
    """
    options.check()
    if not options.plan_only:
        options.engine.check_reachable()
    session = run.answers.session
    source = run.answers.lists.as_source(may_divide=not session.session)
    names = Archive.find(run.sources, source, store)
    archive = Archive(store, names, source, run.bundle, run.weights, describe_options(run))
    is_new = not store.exists(PLAN)
    if is_new:
        _make_plan(run, archive, options)
    elif options.has_size and options.shard is None and not options.resume:
        raise ConfigError(
            f"{store.place} has a plan already: --resume goes on with it; or choose another folder"
        )
    plan = archive.read_plan()
    if options.plan_only:
        shards = pluralise(len(plan.shards), "shard")
        message = f"{store.place}/{PLAN}: {shards}; run them with --resume, or each with --shard"
        typer.echo(message, err=True)
        return None
    job = Job(run.load, source, run.load.to, session.keep_order)
    try:
        return _run_due(run, store, DueRun.find(store, plan, options.shard), job, options.engine)
    except (ConfigError, ScoringError) as error:
        if not is_new:
            raise
        message = f"{error}; the plan in {store.place} is made: go on with --resume"
        raise type(error)(message) from error


def _make_plan(run: Run, archive: Archive, options: ShardOptions) -> None:
    """Make the plan of an archive that has none; warn if some shards get no lists."""
    if not options.has_size:
        raise ConfigError(f"{archive.store.place} has no plan yet; give --shards N or --shard-lists K too")
    if archive.names:
        run.check_first(run.answers.lists.read(archive.names[0]), archive.names[0])
    size = options.shards or options.shard_lists or 1
    unit: Unit = "shards" if options.shards else "lists"
    with progress_bar("planning", total=sum(measure_all(archive.names)), unit="B", unit_scale=True) as bar:
        plan = archive.make_plan(size, unit, run.load.batch_words, bar.update)
    if empty := sum(not shard for shard in plan.shards):
        shards = pluralise(len(plan.shards), "shard")
        warn(
            f"of {shards}, {empty:,} got no lists: only plain files of JSON lines can be "
            "divided, with networks only where batches end (--batch-words); others are one shard each"
        )


def _run_due(run: Run, store: Store, shards: DueRun, job: Job, engine: EngineOptions) -> FileSummary:
    """Run the shards that are not committed, and show progress. Before that, warn of damaged records."""
    for shard, error in shards.found.damaged.items():
        warn(f"shard {shard} cannot be committed: {error}")
    with progress_bar("rescoring", total=shards.n_lists, unit=" lists") as bar:

        def update(n_items: int, _: FileSummary) -> None:
            bar.update(n_items)

        def show_failure(shard: int, error: RescorerError) -> None:
            bar.write(f"shard {shard} failed: {error}", file=sys.stderr)

        results = engine.run_shards(store, shards.due, job, run.workers, run.threads, update)
        total = shards.collect(results, show_failure)
    if done := len(shards.found.records):
        typer.echo(f"{done:,} of {pluralise(len(shards.planned), 'shard')} committed before", err=True)
    return total


def _hash_if_file(value: str | Path | None) -> str | None:
    """Return the hash of a file if the value is its path, or else the value itself, such as a pattern."""
    if value is None or not Path(value).is_file():
        return None if value is None else str(value)
    return "sha256 " + hashlib.sha256(Path(value).read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The format of the output, and the files to write."""

    output: str = option(
        "-",
        "File of re-ranked lists; .gz compresses; - for a pipe. Folder of shards, or s3://BUCKET/PREFIX.",
        "-o",
        "--output",
    )
    to: str = option(
        "jsonl",
        "Output format: jsonl or parquet for whole lists; trn, ctm or stm for the best hypothesis of each, "
        "or its consensus. ctm needs the hypothesis field words, stm the list fields start_s and end_s. "
        "manifest:manifest=FILE adds it to the lines of a NeMo manifest, as pred_text.",
        metavar="FORMAT",
    )
    best_only: bool = option(
        False, "Write only the best hypothesis of each list, with its scores: faster, and a smaller output."
    )
    rejects: Path | None = option(
        None,
        "File of lists that could not be scored or written, with reasons; default: OUT.rejects, or "
        "stderr for a pipe.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayOptions:
    """Options for what is shown: a forecast instead of a run, or the progress and a summary of a run."""

    plan: PlanOptions
    quiet: bool = option(False, "Show neither a progress bar nor a summary.", "--quiet", "-q")
    as_json: bool = option(False, "Print the summary as JSON, on stderr.", "--json")


@expand_options
def rescore(
    *,
    sources: list[str] = argument(
        "Lists to re-rank, gzip or plain: files, globs, and folders, also those of jobs (output.1, output.2, "
        "…), read as one; - for a pipe; s3://… for an object.",
        "IN...",
    ),
    bundle: OtherBundleOption = None,
    imports: ImportOptions,
    written: OutputOptions,
    answers: AnswerOptions,
    shards: ShardOptions,
    machine: MachineOptions,
    display: DisplayOptions,
) -> None:
    """Re-rank n-best lists, or an archive of them in shards.

    Example: rescorer rescore demo/lists.jsonl.gz -o out.jsonl --bundle models/starter/1 --weights
    pocketsphinx

    Memory use does not grow with the file. Exit code 1 means that some lists were rejected. A file without
    lists gives a warning and exit code 0, for pipelines whose recogniser heard nothing. Models of --lm need
    weights of `rescorer tune` with the same --lm.
    """
    if display.quiet:
        install_display(show_nothing)
    sources, output, to = list(map(as_local, sources)), as_local(written.output), written.to
    source = imports.compose(bundle, sources, answers)
    ranker = make_ranker(read_bundle(source))
    check_weighted(ranker.bundle, answers.weights)
    weights = record_models(ranker.bundle, answers.weights.resolve(ranker.bundle.weights))
    selection, session = answers.selection, answers.session
    warn_if_tuned_otherwise(weights, selection.selection())
    ranker.effective_weights(weights)  # reject invalid weights and formats before writing anything
    decision = answers.decision.resolve(weights)
    session.warn_if_unread(ranker, weights)
    answers.apply(ranker)  # reject invalid phrases and dictionaries, too
    get_renderer(to)
    workers = machine.count_workers()
    batch_words = machine.limit_batches(workers, is_sharded=shards.is_set)
    generate = answers.candidates.generate
    options = RescoreOptions(weights, decision, selection.merge, selection.drop_empty, generate)
    cache = CONTEXT_CACHE_BYTES if session.session else 0  # only conversations grow in the same process
    load = RescorerLoader(source, options, machine.device, batch_words, machine.dtype, answers.apply, to)
    load = replace(load, context_cache_bytes=cache, best_only=written.best_only)
    run = Run(sources, answers, weights, ranker.bundle, load, workers, machine.threads)
    if display.plan.plan:
        session.forbid("--plan")
        shards.engine.check(machine.device, is_sharded=True)  # a forecast does not depend on their number
        shards.engine.check_reachable()
        print_plan(run, display.plan, shards.engine, compress=output.endswith(".gz"), as_json=display.as_json)
        return
    shards.engine.check(machine.device, is_sharded=shards.is_set)
    if shards.is_set:
        shards.check_outputs(output, written.rejects)
        with open_store(output) as store:
            if (total := rescore_shards(run, store, shards)) is not None:
                finish(total, "in the rejects of their shards", display, next_step=suggest_next(output, to))
        return
    shards.check_unset()
    rejects_path = written.rejects or (None if is_stream(output) else Path(f"{output}.rejects"))
    check_paths(sources, output, rejects_path)
    warnings: list[str] = []
    lists = check_first_lists(answers.lists.read(sources), weights, answers.lists, sources[0], to, warnings)
    with ExitStack() as stack:
        rescorer = session.keep_order(stack.enter_context(machine.open_rescorer(load, workers)))
        batches = cut_input(rescorer, lists, sources, answers.lists)
        write = stack.enter_context(rescored_writer(to, output))
        rejects_file = stack.enter_context(RejectsFile(rejects_path))
        update_bar = stack.enter_context(show_rescoring(not display.quiet, sources))
        summary = rescore_batches(rescorer, batches, write, rejects_file.write, on_batch=update_bar)
    see = f"see {rejects_path}" if rejects_path else ""
    finish(summary, see, display, warnings, next_step=suggest_next(output, to))


def cut_input(
    rescorer: BatchRescorer, lists: Lists, sources: Sequence[str], options: ListInputOptions
) -> Iterator[Batch | LineBlock]:
    """Divide the input into batches; into blocks of lines if other processes can read these.

    Args:
        lists: all lists of the input, of which warnings depend on the first ones.
    """
    if not isinstance(rescorer, (LocalRescorer, SessionRescorer)):
        blocks = options.divide(sources, BYTES_PER_WORD * rescorer.batch_words)
        if blocks is not None:
            sample_markup(lists)  # reads until there are warnings
            return blocks
    return cut_batches(time_items(lists, Phase.PARSE), rescorer.batch_words)


EVALUATED_FORMATS = ("jsonl", "parquet", "trn", "ctm")
"""Output formats that `rescorer evaluate` reads."""


def suggest_next(output: str, to: str) -> str:
    """Suggest what to do with the output; empty for a pipe or a format that is not evaluated."""
    if is_stream(output) or is_url(output) or to not in EVALUATED_FORMATS:
        return ""
    return (
        f"next: rescorer evaluate {shlex.quote(output)} (with --reference FILE, unless the lists have "
        "references)"
    )


def finish(
    summary: FileSummary,
    see: str,
    display: DisplayOptions,
    warnings: Sequence[str] = (),
    *,
    next_step: str = "",
) -> None:
    """Print the summary of a run, and end the command with the exit code for rejected lists if there are any.

    Args:
        see: a text that says where the rejected lists are; empty if they are not in a file.
        warnings: earlier warnings about the weights, which JSON repeats.
        next_step: a line that says what to do next; may be empty.
    """
    if summary.looks_reversed:
        warn(
            f"in {summary.from_lower_half:,} of {summary.lists:,} lists the best hypothesis comes "
            "from the lower half of the list: is a cost read as a log-probability, or a weight wrong? "
            "`rescorer inspect` finds such errors"
        )
    if summary.too_long:
        warn(
            f"{summary.too_long:,} of {pluralise(summary.lists, 'list')} are too long for a language model: "
            f"its scores are 0 there, and the answers have the degradation {LENGTH!r}"
        )
    if display.as_json:
        noted = {"warnings": list(warnings)} if warnings else {}
        typer.echo(json.dumps(summary.to_dict() | noted, ensure_ascii=False), err=True)
    elif not display.quiet:
        see = f" ({see})" if see and summary.rejected else ""
        typer.echo(
            f"{pluralise(summary.lists, 'list')}, "
            f"{pluralise(summary.hypotheses, 'hypothesis', 'hypotheses')}, "
            f"{pluralise(summary.words, 'word')}; the best hypothesis changed in {summary.changed:,}; "
            f"{summary.rejected:,} rejected{see}",
            err=True,
        )
        if next_step and summary.lists:
            print_note(next_step)
    if summary.rejected:
        raise typer.Exit(SOME_REJECTED)


def check_paths(sources: Sequence[str], output: str, rejects_path: Path | None) -> None:
    """Raise ConfigError if an output folder does not exist, or if an input would be overwritten."""
    if is_url(output):
        raise ConfigError(
            f"--output {output}: an object is written only for shards: give --shards N too, or the name "
            "of a file"
        )
    if output != "-" and not Path(output).parent.is_dir():
        raise ConfigError(f"--output {output}: no such folder")
    if rejects_path and not rejects_path.parent.is_dir():
        raise ConfigError(f"--rejects {rejects_path}: no such folder")
    names = (name for name in expand_globs(sources) if not is_url(name))
    files = [file for name in names for file in list_files(name)]
    check_not_an_input("--output", output, files)
    if rejects_path:
        check_not_an_input("--rejects", rejects_path, files)

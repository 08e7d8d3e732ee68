"""Rescore an archive in shards: run each shard, commit it exactly once, verify and join the output.

An ``Archive`` is the input, whose plan is read or, if there is none yet, made. A ``DueRun`` is the set of
shards that a command still has to run. A shard is committed when the record that names its files is created.
Of several processes that run the same shard, only the first can create it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.errors import (
    BundleError,
    ConfigError,
    FormatError,
    InputError,
    RescorerError,
    ScoringError,
    pluralise,
)
from rescorer.formats.io.text_io import WRITE_ERRORS, open_binary_output, remove_file
from rescorer.formats.rescored import rescored_writer
from rescorer.jobs.files import BatchRescorer, FileSummary, LocalRescorer, RejectsFile, rescore_lists
from rescorer.jobs.plan import (
    BLOCK_BYTES,
    Division,
    ListSource,
    Plan,
    Unit,
    check_answers,
    check_files,
    find_files,
    hash_part,
    hash_stream,
    make_plan,
    measure_all,
    open_part,
    read_plan,
)
from rescorer.jobs.processes import ProcessPool, load_in_process, open_rescorer
from rescorer.jobs.store import (
    ATTEMPT_NAME,
    ATTEMPTS,
    NAME_DIGITS,
    PLAN,
    RECORDS,
    DataFile,
    OutputError,
    Record,
    Store,
    StoredFile,
    is_own_file,
    output_error,
    read_record,
    record_name,
    shard_of_record,
)
from rescorer.models.bundle import Bundle
from rescorer.runtime import count_cpus
from rescorer.types import Weights
from rescorer.weights import weights_to_dict

READERS = 16
"""Number of records that are read in parallel, because object storages answer slowly."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The records of committed shards, and errors for the shards whose record cannot be used."""

    records: dict[int, Record]
    """Records of the committed shards."""
    damaged: dict[int, FormatError]
    """Errors by shard, for damaged records and for records with damaged files. Such a shard can be committed
    only after its record is removed by hand, because the files that the record names may be intact."""


def read_committed(store: Store, plan: Plan, shards: Sequence[int]) -> Committed:
    """Read the records of shards. A shard without a record counts neither as committed nor as damaged.

    Only the sizes of the files are compared with the records; ``verify`` and ``merge`` also compare the
    hashes.

    Raises:
        FormatError: the storage does not answer.
    """

    def read(shard: int) -> Record | FormatError | None:
        try:
            return read_record(store, shard, plan.fingerprint)
        except FormatError as error:
            return error

    with ThreadPoolExecutor(READERS) as readers:
        found = dict(zip(shards, readers.map(read, shards), strict=True))
    records = {shard: record for shard, record in found.items() if isinstance(record, Record)}
    damaged = {shard: error for shard, error in found.items() if isinstance(error, FormatError)}
    sizes = {file.name: file.n_bytes for file in store.list_files(ATTEMPTS)} if records else {}
    for shard, record in list(records.items()):
        if (error := _compare_sizes(store, record, sizes)) is not None:
            damaged[shard] = error
            del records[shard]
    return Committed(records, damaged)


def _compare_sizes(store: Store, record: Record, sizes: dict[str, int]) -> FormatError | None:
    """The error for the first file of a record that is missing or has another size; None if all are right."""
    for file in filter(None, (record.data, record.rejects)):
        if sizes.get(file.name) == file.n_bytes:
            continue
        try:
            with store.open(file.name) as stream:  # the list of files may be older than the record
                n_bytes = stream.seek(0, os.SEEK_END)
        except FileNotFoundError:
            wrong = "is missing"
        except FormatError as error:
            return error
        else:
            wrong = f"has {n_bytes:,} bytes, its record {file.n_bytes:,}" if n_bytes != file.n_bytes else ""
        if wrong:
            message = f"{wrong}; {how_to_mend(store, record.shard)}"
            return FormatError(message, file=f"{store.place}/{file.name}")
    return None


def how_to_mend(store: Store, shard: int) -> str:
    """Say in a message what to do about a file that does not agree with the record of its shard."""
    return f"restore it, or remove {store.place}/{record_name(shard)} and --resume"


MAX_DEATHS = 3
"""A shard is given up after so many workers were killed while they ran it."""


class Finished(NamedTuple):
    """The number of a shard, and its record if it is committed, or the error by which it failed."""

    shard: int
    result: Record | RescorerError


def is_local(error: RescorerError) -> bool:
    """Whether an error concerns only one shard, so that others may succeed."""
    return isinstance(error, InputError) and not isinstance(error, OutputError)


class DueShards:
    """The queue of shards that no worker runs yet."""

    def __init__(self, shards: Iterable[int]) -> None:
        self._shards = deque(shards)
        self._deaths: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._shards)

    def take(self) -> int | None:
        """Take the next shard; None if there is none."""
        return self._shards.popleft() if self._shards else None

    def put_back(self, shard: int) -> Finished | None:
        """Put back the shard of a worker that was killed, at the front; after ``MAX_DEATHS``, give it up."""
        self._deaths[shard] += 1
        if self._deaths[shard] < MAX_DEATHS:
            self._shards.appendleft(shard)
            return None
        message = (
            f"shard {shard}: its worker ended unexpectedly {MAX_DEATHS} times, perhaps for want of memory; "
            "each worker has its own copy of the models, so try fewer"
        )
        return Finished(shard, ScoringError(message))


OnBatch = Callable[[int, FileSummary], object]


def keep(rescorer: BatchRescorer) -> BatchRescorer:
    """Return the rescorer itself: the default of ``Job.arrange``."""
    return rescorer


@dataclass(frozen=True, slots=True)
class Job:
    """Everything, apart from the store, that a process needs to run shards of a plan. It can be pickled.

    Args:
        load: loads the models; called once in each process.
        source: reads the lists.
        to: format of the output.
        arrange: wraps the rescorer for each part, to change the order in which lists are rescored.
    """

    load: Callable[[], LocalRescorer]
    source: ListSource
    to: str
    arrange: Callable[[BatchRescorer], BatchRescorer] = keep


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """The label of a bundle, and the hashes of its files; weights are compared separately."""
    files = bundle.manifest["files"]
    return {
        "label": bundle.label,
        "files": {name: digest for name, digest in files.items() if not name.startswith("weights/")},
    }


def load_planned(plan: Plan, load: Callable[[], LocalRescorer]) -> LocalRescorer:
    """Load the models; raise BundleError if they are not those of the plan."""
    local = load()
    if describe_bundle(local.rescorer.bundle) != plan.answers.get("bundle"):
        bundle = local.rescorer.bundle
        raise BundleError(f"{bundle.folder}: changed since the plan; restore it, or plan into another folder")
    return local


def run_shard(
    store: Store,
    plan: Plan,
    index: int,
    job: Job,
    rescorer: BatchRescorer,
    on_batch: OnBatch = lambda n_items, summary: None,
) -> tuple[Record, bool]:
    """Rescore a shard and commit it, unless it is committed already. Several processes may do this at once.

    Args:
        rescorer: has the models of the plan; see ``load_planned``.
        on_batch: called after each batch with its number of items and the summary of the shard so far.

    Returns:
        The shard's record, and whether this call committed it.

    Raises:
        InputError: the input has changed since the plan.
        OutputError: the output cannot be written. After either error, nothing is committed, and the files of
            this attempt are deleted.
    """
    if (record := read_record(store, index, plan.fingerprint)) is not None:
        return record, False
    begin, attempt = time.monotonic(), secrets.token_hex(6)
    data = f"{ATTEMPTS}/{index:0{NAME_DIGITS}}.{attempt}.{job.to.partition(':')[0]}"
    rejects = f"{data}.rejects"
    try:
        summary = _write_output(store, plan, index, job, rescorer, (data, rejects), on_batch)
        files = [describe_file(store.scratch(name), name) for name in (data, rejects)]
        for file in filter(None, files):
            store.save(file.name)
    except BaseException as error:
        _discard(store, data, rejects)
        _raise_output_error(error, store.place)
        raise
    assert files[0] is not None  # a writer creates its file even if it writes no list
    seconds = round(time.monotonic() - begin, 3)
    worker = f"{socket.gethostname()}:{os.getpid()}"
    record = Record(index, plan.fingerprint, attempt, files[0], files[1], summary, seconds, worker)
    if store.create(record_name(index), record.encode()):
        return record, True
    _discard(store, data, rejects)
    committed = read_record(store, index, plan.fingerprint)
    assert committed is not None  # the name was taken
    return committed, False


def _write_output(
    store: Store,
    plan: Plan,
    index: int,
    job: Job,
    rescorer: BatchRescorer,
    names: tuple[str, str],
    on_batch: OnBatch,
) -> FileSummary:
    data, rejects = map(store.scratch, names)
    total = FileSummary()

    def report(n_items: int, summary: FileSummary) -> None:
        on_batch(n_items, total + summary)

    with rescored_writer(job.to, data) as write, RejectsFile(rejects) as rejected:
        for part in plan.shards[index]:
            with open_part(plan.files[part.file], part, job.source) as lists:
                summary = rescore_lists(job.arrange(rescorer), lists, write, rejected.write, on_batch=report)
            total += summary
    return total


def describe_file(path: Path, name: str) -> DataFile | None:
    """Size and hash of a written file; None if it does not exist."""
    try:
        with open(path, "rb") as stream:
            return DataFile(name, os.fstat(stream.fileno()).st_size, hash_stream(stream))
    except FileNotFoundError:
        return None


def _raise_output_error(error: BaseException, place: str) -> None:
    """Raise OutputError if the error says that a file could not be written, as on a full disk."""
    cause = error.__context__ if isinstance(error, FormatError) else error
    if isinstance(cause, OSError) and cause.errno in WRITE_ERRORS:
        raise output_error(place, cause) from None


def _discard(store: Store, *names: str) -> None:
    """Delete the files of an attempt."""
    for name in names:
        with suppress(OSError):
            store.delete(name)


@dataclass(slots=True)
class ShardRunner:
    """Runs shards in another process, to which it is pickled.

    Args:
        store: has the plan of the shards.
        threads: CPU threads of the process.
    """

    store: Store
    job: Job
    threads: int
    _loaded: tuple[Plan, LocalRescorer] | None = None

    def load(self) -> None:
        """Read the plan and load the models now; otherwise the first ``run`` does it.

        Raises:
            ConfigError, ModelError: the models cannot be loaded, or are not those of the plan.
        """
        try:
            plan = read_plan(self.store)
            self._loaded = plan, load_in_process(partial(load_planned, plan, self.job.load), self.threads)
        except InputError as error:
            raise ConfigError(str(error)) from None

    def run(self, index: int, on_batch: OnBatch) -> Record | RescorerError:
        """Run a shard; return its record, or the error by which it failed."""
        try:
            if self._loaded is None:
                self.load()
            assert self._loaded is not None
            plan, rescorer = self._loaded
            return run_shard(self.store, plan, index, self.job, rescorer, on_batch)[0]
        except RescorerError as error:
            return error


def run_shards(
    store: Store, shards: Iterable[int], job: Job, workers: int, threads: int, on_batch: OnBatch
) -> Iterator[Finished]:
    """Run shards of the plan of a store; yield each when it is committed or has failed.

    If a shard fails, the others continue, unless the error would happen to all shards.

    Args:
        workers: number of processes; 1 runs the shards in this process. A process that is killed is replaced.
        threads: CPU threads of each process; 0: divide the cores among them.
        on_batch: called after each batch, with its number of items and the summary of its shard so far.

    Raises:
        ConfigError, ModelError: the models cannot be loaded, or are not those of the plan.
    """
    if workers == 1:
        plan = read_plan(store)
        with open_rescorer(lambda: load_planned(plan, job.load), 1, threads, 0) as rescorer:
            for index in shards:
                try:
                    record, _ = run_shard(store, plan, index, job, rescorer, on_batch)
                    yield Finished(index, record)
                except InputError as error:
                    yield finish(index, error)
        return
    due, runner = DueShards(shards), ShardRunner(store, job, threads or max(1, count_cpus() // workers))
    with ProcessPool(runner, workers, on_report=on_batch) as pool:
        for index, result in pool.run(due.take):
            if result is not None:
                yield finish(index, result)
            elif (given_up := due.put_back(index)) is not None:
                yield given_up


def finish(shard: int, result: Record | RescorerError) -> Finished:
    """Return the result of a shard; raise an error that would happen to all shards."""
    if isinstance(result, RescorerError) and not is_local(result):
        raise result
    return Finished(shard, result)


@dataclass(frozen=True, slots=True)
class Status:
    """The shards of a plan that are committed, and those that are not."""

    plan: Plan
    records: dict[int, Record]
    """Records of the committed shards."""
    damaged: tuple[str, ...]
    """A message for each record that cannot be read, or whose files are missing or changed."""
    leftovers: tuple[StoredFile, ...]
    """Files of attempts that no intact record names. They are from running or killed processes, or their
    record is damaged."""

    @property
    def missing(self) -> list[int]:
        """Shards that are not committed."""
        return [index for index in range(len(self.plan.shards)) if index not in self.records]

    @property
    def summary(self) -> FileSummary:
        """Counts of all committed shards."""
        return sum((record.summary for record in self.records.values()), FileSummary())

    @property
    def seconds(self) -> float:
        """The sum of the times, in seconds, of all committed shards."""
        return sum(record.seconds for record in self.records.values())

    @property
    def n_bytes(self) -> int:
        """Size of the committed output, without rejects."""
        return sum(record.data.n_bytes for record in self.records.values())

    def complete_records(self) -> list[Record]:
        """The records of all shards in order; raise ConfigError or FormatError if one is missing or
        damaged."""
        if self.damaged:
            raise FormatError(self.damaged[0])
        if missing := self.missing:
            names = ", ".join([*map(str, missing[:5]), *["…"] * (len(missing) > 5)])
            raise ConfigError(
                f"{len(missing):,} of {len(self.plan.shards):,} shards are not committed: {names}; run them "
                "first, with `rescorer rescore … --resume`"
            )
        return [record for _, record in sorted(self.records.items())]


def read_status(store: Store) -> Status:
    """Read the plan and all records.

    Raises:
        ConfigError: there is no plan.
        FormatError: the plan cannot be read.
    """
    plan = read_plan(store)
    attempts = store.list_files(ATTEMPTS)  # before records are read: a commit in between is no leftover
    shards, damaged = [], []
    for file in store.list_files(RECORDS):
        shard = shard_of_record(file.name)
        if shard is None or shard >= len(plan.shards):
            damaged.append(f"{store.place}/{file.name}: is not the record of a planned shard; remove it")
        else:
            shards.append(shard)
    found = read_committed(store, plan, shards)
    damaged += [f"shard {shard}: {error}" for shard, error in sorted(found.damaged.items())]
    named = {file.name for record in found.records.values() for file in (record.data, record.rejects) if file}
    leftovers = tuple(
        file for file in attempts if file.name not in named and ATTEMPT_NAME.fullmatch(file.name)
    )
    return Status(plan, found.records, tuple(damaged), leftovers)


def verify(
    store: Store, *, inputs: bool = False, on_shard: Callable[[], object] = lambda: None
) -> Iterator[str]:
    """Check all output: read it again, and yield a message for everything that is wrong or missing.

    Args:
        inputs: also hash the input again, and compare it with the plan.
        on_shard: called after each shard.

    Raises:
        ConfigError, FormatError: as for ``read_status``.
    """
    status = read_status(store)
    yield from status.damaged
    for index in range(len(status.plan.shards)):
        record = status.records.get(index)
        if record is not None:
            yield from _verify_record(store, record, status.plan.count_lists(index))
        elif not store.exists(record_name(index)):
            yield f"shard {index}: not committed"
        if inputs:
            yield from _verify_inputs(status.plan, index)
        on_shard()


def _verify_record(store: Store, record: Record, n_planned: int | None) -> Iterator[str]:
    found = record.summary.lists + record.summary.rejected
    if n_planned is not None and found != n_planned:
        yield f"shard {record.shard}: the plan has {n_planned:,} lists, its record {found:,}"
    for file in filter(None, (record.data, record.rejects)):
        try:
            with store.open(file.name) as stream:
                is_same = hash_stream(stream) == file.sha256
            wrong = "" if is_same else "was changed: its hash differs from its record's"
        except OSError as error:
            wrong = error.strerror or str(error)
        if wrong:
            mend = how_to_mend(store, record.shard)
            yield f"shard {record.shard}: {store.place}/{file.name}: {wrong}; {mend}"


def _verify_inputs(plan: Plan, index: int) -> Iterator[str]:
    for part in plan.shards[index]:
        file = plan.files[part.file]
        place = f"shard {index}: {file.name}, bytes {part.start:,} to {part.end:,}"
        try:
            if hash_part(file, part) != part.sha256:
                yield f"{place}: changed since the plan"
        except (InputError, OSError) as error:
            yield f"{place}: {error}"


def clean(store: Store, min_age_s: float) -> list[StoredFile]:
    """Delete the files of attempts that no record names, and that were not written to lately.

    Args:
        min_age_s: smallest number of seconds since the last write. A running process writes after each batch.

    Returns:
        The deleted files.

    Raises:
        ConfigError, FormatError: as for ``read_status``. FormatError also means that a record is damaged, so
            that the files to keep are not known, or that a file cannot be deleted.
    """
    status = read_status(store)
    if status.damaged:
        raise FormatError(f"nothing is deleted, since a record names files to keep: {status.damaged[0]}")
    deleted = [file for file in status.leftovers if file.age_s >= min_age_s]
    for file in deleted:
        try:
            store.delete(file.name)
        except OSError as error:
            place = f"{store.place}/{file.name}"
            raise FormatError(f"cannot be deleted: {error.strerror}", file=place) from None
    return deleted


def merge(
    store: Store, output: str, rejects: Path | None, on_shard: Callable[[], object] = lambda: None
) -> FileSummary:
    """Write the output of all shards to one file, and all rejected lists to another.

    The output replaces an earlier file only when it is complete.

    Args:
        output: file, compressed if its name ends with ``.gz``; ``-`` is standard output.
        rejects: file of rejected lists, which is removed if there are none; None leaves them out.
        on_shard: called after each shard.

    Raises:
        ConfigError: shards are missing.
        FormatError: a record or a file was changed, or the output cannot be written.
    """
    status = read_status(store)
    records = status.complete_records()
    with open_binary_output(output) as stream:
        for record in records:
            stream.writelines(_read_verified(store, record.shard, record.data))
            on_shard()
    rejected = [(record.shard, record.rejects) for record in records if record.rejects]
    if rejects is not None and not rejected:
        remove_file(rejects)  # left by an earlier run
    elif rejects is not None:
        with open_binary_output(rejects) as stream:
            for index, file in rejected:
                stream.writelines(_read_verified(store, index, file))
    return status.summary


def find_outputs(store: Store) -> tuple[str, list[str], FileSummary]:
    """Find the output files of all shards, so that they can be read without ``merge``.

    Returns:
        The format, the names of the files in the order of the input, and the counts of all shards.

    Raises:
        ConfigError: shards are missing.
        FormatError: a record, a file or the plan was changed.
    """
    status = read_status(store)
    names = [f"{store.place}/{record.data.name}" for record in status.complete_records()]
    options = status.plan.answers.get("options")
    if not isinstance(options, dict) or not isinstance(options.get("to"), str):
        raise FormatError("the plan does not say in which format the output is", file=f"{store.place}/{PLAN}")
    return options["to"].partition(":")[0], names, status.summary


def _read_verified(store: Store, index: int, file: DataFile) -> Iterator[bytes]:
    """Yield the blocks of a file; raise FormatError at the end if its record gives another size or hash."""
    place = f"{store.place}/{file.name}"
    try:
        stream = store.open(file.name)
    except FileNotFoundError:
        raise FormatError(f"is missing; {how_to_mend(store, index)}", file=place) from None
    digest, n_bytes = hashlib.sha256(), 0
    with stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            n_bytes += len(block)
            yield block
    if (n_bytes, digest.hexdigest()) != (file.n_bytes, file.sha256):
        message = f"was changed since shard {index} was committed"
        raise FormatError(f"{message}; {how_to_mend(store, index)}", file=place)


@dataclass(frozen=True, slots=True)
class Archive:
    """Input files, the store of their shards, and the models, weights and options that decide the answers.

    Args:
        names: input files, from ``find``.
        options: the options that answers depend on, in the form in which a plan stores them.
    """

    store: Store
    names: Sequence[str]
    source: ListSource
    bundle: Bundle
    weights: Weights
    options: Mapping[str, Any]

    @staticmethod
    def find(sources: Sequence[str], source: ListSource, store: Store) -> list[str]:
        """Find the input files, without files of the store; raise the errors of ``find_files``."""
        return [name for name in find_files(sources, source) if not is_own_file(store, name)]

    @property
    def answers(self) -> dict[str, Any]:
        """Everything on which answers depend, apart from the lists, in the form in which a plan stores it."""
        weights = weights_to_dict(self.weights)
        return {"bundle": describe_bundle(self.bundle), "weights": weights, "options": dict(self.options)}

    def make_plan(
        self, n: int, unit: Unit, batch_words: int, on_bytes: Callable[[int], object] = lambda n_bytes: None
    ) -> Plan:
        """Divide the input; store the plan, unless another process has stored one meanwhile.

        Args:
            n, unit, batch_words: as for ``Division``. If all models are n-grams, shards may end at any line,
                because the scores do not depend on the batch.
            on_bytes: called with the number of bytes that were read since the last call.
        """
        self.store.prepare()
        is_exact = set(self.bundle.model_kinds.values()) == {"ngram"}
        division = Division(n, unit, None if is_exact else batch_words)
        plan = make_plan(list(self.names), self.source, self.answers, division, on_bytes)
        self.store.create(PLAN, plan.encode())
        return plan

    def read_plan(self) -> Plan:
        """Read the plan of the store; check that it is for the same input, models, weights and options.

        Raises:
            ConfigError: the models, weights or options differ from those of the plan.
            InputError: an input file differs from that of the plan.
        """
        plan = read_plan(self.store)
        place, answers, now = f"{self.store.place}/{PLAN}", self.answers, self.options
        before = plan.answers.get("options")
        if now.get("text") and isinstance(before, dict) and "text" not in before:
            check_answers(plan, answers | {"options": {**now, "text": None}}, place)
            raise ConfigError(
                f"{place} compares texts by the bundle's own rules, as earlier versions did: go on with "
                f"--normaliser {self.bundle.folder}/text.json, or plan into another folder"
            )
        check_answers(plan, answers, place)
        check_files(plan, tuple(zip(self.names, measure_all(self.names), strict=True)))
        return plan


@dataclass(frozen=True, slots=True)
class DueRun:
    """The shards that a command should run: all of a plan, or a single one."""

    planned: Sequence[int]
    """All these shards."""
    found: Committed
    """The shards that have a record already."""
    due: Sequence[int]
    """The shards without a record."""
    n_lists: int | None
    """Number of lists in the shards without a record; None if it is unknown."""

    @classmethod
    def find(cls, store: Store, plan: Plan, shard: int | None) -> DueRun:
        """Find the shards to run: read the records of all shards or, if ``shard`` is given, that of one.

        Raises:
            ConfigError: there is no such shard.
        """
        if shard is not None and shard >= len(plan.shards):
            raise ConfigError(f"--shard {shard}: the plan has shards 0 to {len(plan.shards) - 1:,}")
        planned = range(len(plan.shards)) if shard is None else [shard]
        recorded = {shard_of_record(file.name) for file in store.list_files(RECORDS)}
        found = read_committed(store, plan, [index for index in planned if index in recorded])
        due = [index for index in planned if index not in found.records and index not in found.damaged]
        counts = [plan.count_lists(index) for index in due]
        return cls(planned, found, due, None if None in counts else sum(filter(None, counts)))

    def collect(
        self, results: Iterable[Finished], on_failure: Callable[[int, RescorerError], object]
    ) -> FileSummary:
        """Take the results of shards as they come, and add up the counts of those that were committed.

        Raises:
            InputError, ScoringError: some shards failed or have damaged records. The type is that of the
                first error.
        """
        total, errors = FileSummary(), list[tuple[int, RescorerError]](self.found.damaged.items())
        for index, result in results:
            if isinstance(result, Record):
                total += result.summary
            else:
                errors.append((index, result))
                on_failure(index, result)
        if not errors:
            return total
        shard, error = errors[0]
        others = f"; {len(errors) - 1:,} more failed" if errors[1:] else ""
        n_shards = pluralise(len(self.due) + len(self.found.damaged), "shard")
        message = f"{len(errors):,} of {n_shards} failed: shard {shard}: {error}{others}"
        raise (InputError if isinstance(error, InputError) else ScoringError)(message)

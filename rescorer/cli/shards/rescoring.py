"""Rescore in shards: make or check the plan, run shards, and say what was done."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from tqdm import tqdm

from rescorer.bundle import Bundle
from rescorer.cli.options.rescoring.loading import AnswerOptions, RescorerLoader
from rescorer.cli.options.rescoring.shards import ShardOptions
from rescorer.cli.options.selection import SelectionOptions
from rescorer.cli.options.weights import check_first_lists
from rescorer.errors import ConfigError, InputError, RescorerError, ScoringError, pluralise
from rescorer.files.rescoring import FileSummary
from rescorer.score_combination import weights_to_dict
from rescorer.shards.committed import Committed, read_committed
from rescorer.shards.planning.inputs import ListSource, find_files, measure_all
from rescorer.shards.planning.partition import Division, make_plan
from rescorer.shards.planning.plan import Plan, check_answers, check_files, read_plan
from rescorer.shards.record import Record, shard_of_record
from rescorer.shards.store import PLAN, RECORDS, Store, is_own_file
from rescorer.shards.worker import Job, add_summaries, describe_bundle
from rescorer.types import Weights


@dataclass(frozen=True, slots=True)
class ShardRun:
    """A run of ``rescorer rescore`` on shards of a folder or prefix."""

    sources: Sequence[str]
    store: Store
    options: ShardOptions
    answers: AnswerOptions
    load: RescorerLoader
    bundle: Bundle
    weights: Weights

    def rescore(self) -> FileSummary | None:
        """Run shards and return what was done; None if there should only be a plan.

        Raises:
            ConfigError: options contradict each other or the plan.
            InputError: an input cannot be read, or is not what was planned.
        """
        store, options = self.store, self.options
        options.check()
        if not options.plan_only:
            options.engine.check_reachable()
        source = self.answers.lists.as_source(may_divide=not self.answers.session.session)
        names = [name for name in find_files(self.sources, source) if not is_own_file(store, name)]
        answers = self.describe()
        is_new = not store.exists(PLAN)
        if is_new:
            self._make_plan(names, source, answers)
        elif options.has_size and options.shard is None and not options.resume:
            raise ConfigError(
                f"{store.place} has a plan already: --resume goes on with it; or choose another folder"
            )
        plan, fingerprint = read_plan(store)
        self._check_text(plan, answers)
        check_answers(plan, answers, f"{store.place}/{PLAN}")
        check_files(plan, tuple(zip(names, measure_all(names), strict=True)))
        if options.plan_only:
            shards = pluralise(len(plan.shards), "shard")
            message = f"{store.place}/{PLAN}: {shards}; run them with --resume, or each with --shard"
            typer.echo(message, err=True)
            return None
        try:
            return self._run(plan, fingerprint, source)
        except (ConfigError, ScoringError) as error:
            if not is_new:
                raise
            message = f"{error}; the plan in {store.place} is made: go on with --resume"
            raise type(error)(message) from error

    def describe(self) -> dict[str, Any]:
        """All besides the lists that answers depend on, as data of a plan."""
        machine, given = self.load.machine, self.answers
        lists, phrases, candidates = given.lists, given.phrases, given.candidates
        options = {
            "to": self.load.to,
            "device": machine.device.split(":")[0],
            "dtype": machine.dtype,
            "batch_words": machine.batch_words,
            "decision": asdict(given.decision.resolve(self.weights)),
            **asdict(given.selection),
            **asdict(given.session),
            "format": lists.format_,
            "map": lists.maps,
            "stream": lists.streams,
            "join_pieces": lists.join_pieces or None,  # as in the plans of versions without this option
            "groups": _hash_if_file(lists.groups),
            "phrases": _hash_if_file(phrases.phrases),
            "phrase_list": phrases.phrase_list,
            "generate": candidates.generate,
            "dictionary": _hash_if_file(candidates.dictionary),
            **self._describe_text(),
        }
        weights = weights_to_dict(self.weights)
        return {"bundle": describe_bundle(self.bundle), "weights": weights, "options": options}

    def _describe_text(self) -> dict[str, Any]:
        """The normaliser by which answers compare texts, where they do; nothing if it is that of the models,
        as it always was in plans of versions before 0.2."""
        given = self.answers
        compares = (
            given.selection != SelectionOptions()
            or given.decision.resolve(self.weights).kind != "maximum"
            or self.weights.calibration is not None
        )
        settings = given.text.make_normaliser(self.bundle).settings
        if not compares or settings == self.bundle.normaliser.settings:
            return {}
        return {"text": settings.to_dict()}

    def _check_text(self, plan: Plan, answers: dict[str, Any]) -> None:
        """Say how to go on with a plan whose texts were compared as models read them."""
        before, now = plan.answers.get("options"), answers["options"]
        if now.get("text") and isinstance(before, dict) and "text" not in before:
            place = f"{self.store.place}/{PLAN}"
            check_answers(plan, answers | {"options": now | {"text": None}}, place)
            raise ConfigError(
                f"{place} compares texts by the bundle's own rules, as earlier versions did: go on with "
                f"--normaliser {self.bundle.folder}/text.json, or plan into another folder"
            )

    def _make_plan(self, names: list[str], source: ListSource, answers: dict[str, Any]) -> None:
        """Make the plan of a folder, unless another process makes one at the same time."""
        store, options, lists, load = self.store, self.options, self.answers.lists, self.load
        if not options.has_size:
            raise ConfigError(f"{store.place} has no plan yet; give --shards N or --shard-lists K too")
        if names:
            check_first_lists(lists.read(names[0]), self.weights, lists, names[0], load.to)
        store.prepare()
        unit: Any = "shards" if options.shards else "lists"
        size = options.shards or options.shard_lists or 1
        exact = set(self.bundle.model_kinds.values()) == {"ngram"}  # scores do not depend on the batch at all
        division = Division(size, unit, None if exact else load.machine.batch_words)
        with _progress("planning", sum(measure_all(names)), "B", scale=True) as bar:
            plan = make_plan(names, source, answers, division, bar.update)
        store.create(PLAN, plan.encode())
        empty = sum(not shard for shard in plan.shards)
        if empty:
            shards = pluralise(len(plan.shards), "shard")
            typer.echo(
                f"warning: of {shards}, {empty:,} got no lists: only plain files of JSON lines can be "
                "divided, with networks only where batches end (--batch-words); others are one shard each",
                err=True,
            )

    def _run(self, plan: Plan, fingerprint: str, source: ListSource) -> FileSummary:
        """Run the shards that are due, and raise the first error of one that failed."""
        shard = self.options.shard
        if shard is not None and shard >= len(plan.shards):
            raise ConfigError(f"--shard {shard}: the plan has shards 0 to {len(plan.shards) - 1:,}")
        planned = range(len(plan.shards)) if shard is None else [shard]
        found = _read_committed(self.store, fingerprint, planned)
        due = [index for index in planned if index not in found.records and index not in found.damaged]
        counts = [plan.count_lists(index) for index in due]
        total, errors = FileSummary(), list[tuple[int, RescorerError]](found.damaged.items())
        n_lists = None if None in counts else sum(filter(None, counts))
        job = Job(self.load, source, self.load.to, self.answers.session.keep_order)
        workers, threads = self.options.workers, self.load.machine.threads
        with _progress("rescoring", n_lists, " lists") as bar:

            def update(n_items: int, _: FileSummary) -> None:
                bar.update(n_items)

            run_shards = self.options.engine.run_shards
            for index, result in run_shards(self.store, due, job, workers, threads, update):
                if isinstance(result, Record):
                    total = add_summaries(total, result.summary)
                else:
                    errors.append((index, result))
                    bar.write(f"shard {index} failed: {result}", file=sys.stderr)
        if errors:
            _raise_first(errors, len(due) + len(found.damaged))
        if done := len(found.records):
            typer.echo(f"{done:,} of {pluralise(len(planned), 'shard')} committed before", err=True)
        return total


def _read_committed(store: Store, fingerprint: str, planned: Sequence[int]) -> Committed:
    """Read the records of shards, and warn of those that are damaged before the others are run."""
    recorded = {shard_of_record(file.name) for file in store.list_files(RECORDS)}
    found = read_committed(store, fingerprint, [index for index in planned if index in recorded])
    for shard, error in found.damaged.items():
        typer.echo(f"warning: shard {shard} cannot be committed: {error}", err=True)
    return found


def _raise_first(errors: list[tuple[int, RescorerError]], n_due: int) -> None:
    """Raise an error of the type of the first one, which says how many shards failed."""
    shard, error = errors[0]
    others = f"; {len(errors) - 1:,} more failed" if errors[1:] else ""
    message = f"{len(errors):,} of {pluralise(n_due, 'shard')} failed: shard {shard}: {error}{others}"
    if isinstance(error, InputError):
        raise InputError(message)
    raise ScoringError(message)


@contextmanager
def _progress(what: str, total: int | None, unit: str, *, scale: bool = False) -> Iterator[tqdm[Any]]:
    """A bar on stderr if it is a terminal."""
    with tqdm(desc=what, total=total, unit=unit, unit_scale=scale, disable=not sys.stderr.isatty()) as bar:
        yield bar


def _hash_if_file(value: str | Path | None) -> str | None:
    """The hash of a file; other text, such as a pattern, as it is."""
    if value is None or not Path(value).is_file():
        return None if value is None else str(value)
    return "sha256 " + hashlib.sha256(Path(value).read_bytes()).hexdigest()

"""Rescore an archive in shards: make its plan or continue the one that there is, and run what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rescorer.combination import weights_to_dict
from rescorer.errors import ConfigError, InputError, RescorerError, ScoringError, pluralise
from rescorer.jobs.files import FileSummary
from rescorer.jobs.plan import (
    Division,
    ListSource,
    Plan,
    Unit,
    check_answers,
    check_files,
    find_files,
    make_plan,
    measure_all,
    read_plan,
)
from rescorer.jobs.shards import Committed, Finished, add_summaries, describe_bundle, read_committed
from rescorer.jobs.store import PLAN, RECORDS, Record, Store, is_own_file, shard_of_record
from rescorer.models.bundle import Bundle
from rescorer.types import Weights


@dataclass(frozen=True, slots=True)
class Archive:
    """Inputs, the place of their shards, and all that the answers depend on.

    Args:
        names: input files, from ``find``.
        options: what else answers depend on, as data of a plan.
    """

    store: Store
    names: Sequence[str]
    source: ListSource
    bundle: Bundle
    weights: Weights
    options: Mapping[str, Any]

    @staticmethod
    def find(sources: Sequence[str], source: ListSource, store: Store) -> list[str]:
        """Find the input files, without those of the store; raises as ``find_files``."""
        return [name for name in find_files(sources, source) if not is_own_file(store, name)]

    @property
    def answers(self) -> dict[str, Any]:
        """All besides the lists that answers depend on, as data of a plan."""
        weights = weights_to_dict(self.weights)
        return {"bundle": describe_bundle(self.bundle), "weights": weights, "options": dict(self.options)}

    def make_plan(
        self, n: int, unit: Unit, batch_words: int, on_bytes: Callable[[int], object] = lambda n_bytes: None
    ) -> Plan:
        """Divide the input, and store the plan unless another process stores one at the same time.

        Args:
            n, unit, batch_words: as for ``Division``; scores of n-grams alone do not depend on the batch, so
                that their shards may end at any line.
            on_bytes: called with the number of bytes that were read since the last call.
        """
        self.store.prepare()
        is_exact = set(self.bundle.model_kinds.values()) == {"ngram"}
        division = Division(n, unit, None if is_exact else batch_words)
        plan = make_plan(list(self.names), self.source, self.answers, division, on_bytes)
        self.store.create(PLAN, plan.encode())
        return plan

    def read_plan(self) -> tuple[Plan, str]:
        """Read the plan of the store and its fingerprint.

        Raises:
            ConfigError: answers would depend on something else than planned.
            InputError: an input is not what was planned.
        """
        plan, fingerprint = read_plan(self.store)
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
        return plan, fingerprint


@dataclass(frozen=True, slots=True)
class DueRun:
    """The shards of a plan that a run should commit."""

    planned: Sequence[int]
    found: Committed
    """Those of them that have a record already."""
    due: Sequence[int]
    """Those without a record."""
    n_lists: int | None
    """Number of lists of those; None if it is unknown."""

    @classmethod
    def find(cls, store: Store, plan: Plan, fingerprint: str, shard: int | None) -> DueRun:
        """Read the records of all shards, or that of one.

        Raises:
            ConfigError: there is no such shard.
        """
        if shard is not None and shard >= len(plan.shards):
            raise ConfigError(f"--shard {shard}: the plan has shards 0 to {len(plan.shards) - 1:,}")
        planned = range(len(plan.shards)) if shard is None else [shard]
        recorded = {shard_of_record(file.name) for file in store.list_files(RECORDS)}
        found = read_committed(store, fingerprint, [index for index in planned if index in recorded])
        due = [index for index in planned if index not in found.records and index not in found.damaged]
        counts = [plan.count_lists(index) for index in due]
        return cls(planned, found, due, None if None in counts else sum(filter(None, counts)))

    def collect(
        self, results: Iterable[Finished], on_failure: Callable[[int, RescorerError], object]
    ) -> FileSummary:
        """Add up the shards that are committed now.

        Raises:
            InputError, ScoringError: shards failed, or have damaged records; has the type of the first error.
        """
        total, errors = FileSummary(), list[tuple[int, RescorerError]](self.found.damaged.items())
        for index, result in results:
            if isinstance(result, Record):
                total = add_summaries(total, result.summary)
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

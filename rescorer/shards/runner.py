"""Run any number of shards in one process, with models that are loaded once."""

from __future__ import annotations

from dataclasses import dataclass

from rescorer.errors import ConfigError, InputError, RescorerError
from rescorer.files.rescoring import BatchRescorer
from rescorer.lm.malloc import keep_freed_memory
from rescorer.lm.threads import use_threads
from rescorer.shards.planning.plan import Plan, read_plan
from rescorer.shards.record import Record
from rescorer.shards.store import Store
from rescorer.shards.worker import Job, OnBatch, load_planned, run_shard


@dataclass(frozen=True, slots=True)
class ShardRunner:
    """Runs shards of the plan of a store."""

    store: Store
    plan: Plan
    fingerprint: str
    job: Job
    rescorer: BatchRescorer

    @classmethod
    def load(cls, store: Store, job: Job, threads: int) -> ShardRunner:
        """Read the plan and load the models, in a process that was started for this.

        Args:
            threads: CPU threads of the process.

        Raises:
            ConfigError, ModelError: the models cannot be loaded, or are not those of the plan.
        """
        try:
            plan, fingerprint = read_plan(store)
            keep_freed_memory()
            use_threads(threads)
            return cls(store, plan, fingerprint, job, load_planned(plan, job.load))
        except InputError as error:
            raise ConfigError(str(error)) from None

    def run(self, index: int, on_batch: OnBatch) -> Record | RescorerError:
        """Run a shard as ``run_shard`` does; return its record, or the error by which it failed."""
        try:
            return run_shard(
                self.store, self.plan, self.fingerprint, index, self.job, self.rescorer, on_batch
            )[0]
        except RescorerError as error:
            return error

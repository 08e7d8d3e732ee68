"""Measure how fast several processes feed one process that holds the models, with models that cost nothing.

    python -m tools.feed_speed LISTS --bundle models/starter/1 --workers 1,2

All is as in ``rescorer rescore --workers N --share-models``, but in place of the bundle's models, a stand-in
gives every word the log-probability 0. So the figures are those of the host alone: what is left if the device
takes no time. The first row is a single process with the same stand-in. Processor times do not change with
other work on the machine; elapsed times do.

The last line says what limits a machine of more cores, by the processor times per list: the parent reads,
divides and writes in one process, the process with the models receives and sends in another, and the workers
have the other cores.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer

from rescorer.formats.rescored import JSON_LINES, rescored_writer
from rescorer.frames import ScoreJob, pack, pack_scores
from rescorer.jobs.files import (
    Batch,
    BatchRescorer,
    LineBlock,
    LocalRescorer,
    RescorerLoader,
    rescore_batches,
)
from rescorer.jobs.processes import ProcessPoolRescorer, load_in_process, open_shared_rescorer
from rescorer.models.bundle import read_bundle
from rescorer.pipeline import Rescorer, TrieScorer
from rescorer.scoring.options import RescoreOptions
from rescorer.terminal.list_options import ListInputOptions
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer.trie import EdgeScores, HypothesisTrie
from rescorer.types import Weights

TARGET_CORES = 16
SCHEDULED = 2
"""The part of the id of a process's clock that chooses its processor time; see clock_getcpuclockid(3)."""


class NullScorer(TrieScorer):
    """Gives every word the log-probability 0, under every model; counts the bytes of frames if asked to."""

    names: tuple[str, ...]
    frame_bytes: int | None = None

    def score(self, trie: HypothesisTrie, *args: object, **options: object) -> dict[str, EdgeScores]:
        zeros = EdgeScores(np.zeros(trie.n_edges), np.zeros(trie.n_edges, dtype=bool))
        scores = dict.fromkeys(self.names, zeros)
        if self.frame_bytes is not None:
            self.frame_bytes += len(pack(*ScoreJob(self.label, trie).pack())) + len(
                pack({}, pack_scores(scores))
            )
        return scores


@dataclass(frozen=True)
class NullLoader:
    """Loads a bundle without its models, for one process or for those that share models."""

    bundle: Path
    weights: Weights
    batch_words: int

    def __call__(self) -> LocalRescorer:
        rescorer = Rescorer(read_bundle(self.bundle), {}, self.batch_words)
        rescorer.scorer = self.load_scorer()
        return LocalRescorer(rescorer, RescoreOptions(self.weights))

    def load_scorer(self) -> NullScorer:
        bundle = read_bundle(self.bundle)
        scorer = NullScorer({}, bundle.label)
        scorer.names = tuple(bundle.model_kinds)
        return scorer

    def load_ranker(self, address: str) -> LocalRescorer:
        options = RescoreOptions(self.weights)
        return RescorerLoader(self.bundle, options, batch_words=self.batch_words).load_ranker(address)


@dataclass(frozen=True)
class Cost:
    """Seconds that a pass over the lists took."""

    elapsed: float
    parent: float
    """Processor time of the process that reads and writes; of the only process, if there is one."""
    models: float = 0.0
    workers: float = 0.0

    @property
    def processor(self) -> float:
        return self.parent + self.models + self.workers


def read_processor_times() -> dict[int, float]:
    """Read the processor seconds of all child processes, by their ids (Linux only)."""
    pids = [process.pid or 0 for process in active_children()]
    return {pid: time.clock_gettime(~pid << 3 | SCHEDULED) for pid in pids}


def time_pass(
    rescorer: BatchRescorer, divide: Callable[[], Iterator[Batch | LineBlock]], folder: Path
) -> tuple[Cost, int, int]:
    """Rescore all lists once; return the cost, the number of lists and the number of words."""
    before, began, began_cpu = read_processor_times(), time.perf_counter(), time.process_time()
    with rescored_writer(JSON_LINES, folder / "answers.jsonl") as write:
        summary = rescore_batches(rescorer, divide(), write)
    elapsed, parent = time.perf_counter() - began, time.process_time() - began_cpu
    spent = {pid: seconds - before.get(pid, 0.0) for pid, seconds in read_processor_times().items()}
    holder = rescorer.models.pid if isinstance(rescorer, ProcessPoolRescorer) and rescorer.models else None
    models = spent.pop(holder or 0, 0.0)
    words = summary.words + summary.hypotheses  # with the ends of sentences
    return Cost(elapsed, parent, models, sum(spent.values())), summary.lists, words


def forecast(costs: Mapping[str, float], cores: int) -> float:
    """Forecast lists per second on more cores from the processor seconds per list of each kind of process."""
    return min(1 / costs["parent"], 1 / costs["models"], cores / sum(costs.values()))


def main(
    lists: Annotated[Path, typer.Argument(help="Lists, as JSON lines.")],
    bundle: Annotated[Path, typer.Option(help="Bundle whose models are replaced by the stand-in.")],
    weights: Annotated[str, typer.Option(help="Weights of the bundle.")] = "default",
    workers: Annotated[str, typer.Option(help="Numbers of processes that feed the models.")] = "1,2",
    batch_words: Annotated[int, typer.Option(help="Number of words per batch.")] = 65_536,
    repetitions: Annotated[
        int, typer.Option(help="Number of measured passes, after one that is not counted.")
    ] = 3,
    map_: Annotated[list[str] | None, typer.Option("--map")] = None,
    stream: Annotated[list[str] | None, typer.Option("--stream")] = None,
) -> None:
    """Measure how fast several processes feed models that cost nothing."""
    options = ListInputOptions(map_, stream)
    load = NullLoader(bundle, read_bundle(bundle).weights[weights], batch_words)
    n_bytes = 8 * batch_words

    def divide() -> Iterator[Batch | LineBlock]:
        blocks = options.divide([str(lists)], n_bytes)
        if blocks is None:
            raise typer.BadParameter(f"{lists}: expected one file of JSON lines with ids")
        return blocks

    table = FoldingTable("processes", "words/s", "×", "cores", "parent", "models", "workers", "µs of a list")
    with TemporaryDirectory() as name:
        folder = Path(name)

        def measure(rescorer: BatchRescorer) -> tuple[Cost, int, int]:
            passes = [time_pass(rescorer, divide, folder) for _ in range(repetitions + 1)][1:]
            _, n_lists, n_words = passes[0]
            columns = zip(*((c.elapsed, c.parent, c.models, c.workers) for c, *_ in passes), strict=True)
            return Cost(*map(statistics.median, columns)), n_lists, n_words

        local = load_in_process(load, 1)
        first, n_lists, n_words = measure(local)

        def add_row(label: str, cost: Cost) -> None:
            parts = [
                f"{1e6 * s / n_lists:.0f}" for s in (cost.parent, cost.models, cost.workers, cost.processor)
            ]
            cores = cost.processor / cost.elapsed
            rate = f"{n_words / cost.elapsed:,.0f}"
            table.add_row(label, rate, f"{first.elapsed / cost.elapsed:.2f}", f"{cores:.2f}", *parts)

        add_row("one, alone", first)
        shared = first
        for count in map(int, workers.split(",")):
            with open_shared_rescorer(load, count, 1, batch_words) as pool:
                shared, *_ = measure(pool)
            add_row(f"{count} + 2", shared)
        scorer = local.rescorer.scorer
        assert isinstance(scorer, NullScorer)
        scorer.frame_bytes = 0
        time_pass(local, divide, folder)
    per_list = {kind: getattr(shared, kind) / n_lists for kind in ("parent", "models", "workers")}
    lists_per_s = forecast(per_list, TARGET_CORES)
    print_out(
        table,
        f"{n_lists:,} lists, {n_words:,} words; {scorer.frame_bytes / n_lists:,.0f} bytes of frames a list",
        f"{TARGET_CORES} cores by these processor times: {lists_per_s * n_words / n_lists:,.0f} words/s",
    )


if __name__ == "__main__":
    typer.run(main)

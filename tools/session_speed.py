"""Measure how much longer an utterance takes to rescore if other utterances come before it.

    python -m tools.session_speed LISTS --bundle carried/1

Each list of a file is scored in three ways. First, nothing comes before it. Second, the first hypotheses of
the 20 lists before it come before it, and the states after all but the last of these are cached, as in a
conversation that has grown by one utterance. Third, the same hypotheses come before it, without cached
states. The three ways take turns, so that other load on the machine affects all of them. Times are processor
times of the library, in one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.pipeline import Rescorer
from rescorer.terminal.list_options import ListInputOptions
from rescorer.types import NBestList, Utterance

WAYS = ("after nothing", "after others, states cached", "after others, no states")


def cut_lists(lists: Sequence[NBestList], n_hypotheses: int) -> list[NBestList]:
    """Keep the first hypotheses of lists, without scores; lists with fewer hypotheses are left out."""
    return [
        NBestList(nbest.id, nbest.hypotheses[:n_hypotheses])
        for nbest in lists
        if len(nbest.hypotheses) >= n_hypotheses
    ]


def time_list(rescorer: Rescorer, nbest: NBestList) -> float:
    """Measure the processor time of rescoring a list, in seconds."""
    began = time.process_time()
    rescorer.rescore([nbest])
    return time.process_time() - began


def measure(
    cached: Rescorer, uncached: Rescorer, lists: Sequence[NBestList], n_previous: int
) -> list[tuple[float, ...]]:
    """Measure lists that have enough lists before them: processor times in seconds for each of ``WAYS``."""
    rows = []
    for index in range(n_previous, len(lists)):
        before = tuple(Utterance(nbest.hypotheses[0].text) for nbest in lists[index - n_previous : index])
        cached.rescore([replace(lists[index - 1], previous=before[:-1])])
        after = replace(lists[index], previous=before)
        ways = (cached, lists[index]), (cached, after), (uncached, after)
        times = [0.0] * len(ways)
        for turn in range(len(ways)):
            way = (index + turn) % len(ways)
            times[way] = time_list(*ways[way])
        rows.append(tuple(times))
    return rows


def main(
    file: Annotated[Path, typer.Argument(help="Lists, in the order in which they were said.")],
    bundle: Annotated[Path, typer.Option(help="Bundle with a network that carries its state.")],
    hypotheses: Annotated[int, typer.Option(help="Number of hypotheses; shorter lists are left out.")] = 50,
    fields: Annotated[str, typer.Option(help="Fields of the lists, as for rescorer rescore.")] = "",
    previous: Annotated[int, typer.Option(help="Number of utterances before each list.")] = 20,
    repetitions: Annotated[int, typer.Option(help="Number of passes over the lists.")] = 5,
) -> None:
    """Print the median processor time of each way, and its ratio to the time with nothing before."""
    import torch  # takes seconds

    torch.set_num_threads(1)
    read = ListInputOptions([fields] if fields else []).read(str(file))
    lists = cut_lists([item for item in read if isinstance(item, NBestList)], hypotheses)
    rows = []
    for _ in range(repetitions):  # each pass with empty caches
        rescorers = Rescorer.load(bundle), Rescorer.load(bundle, context_cache_bytes=0)
        rows += measure(*rescorers, lists, previous)
    for way, times in zip(WAYS, zip(*rows, strict=True), strict=True):
        ratio = statistics.median(time / row[0] for time, row in zip(times, rows, strict=True))
        print(f"{way:<28} {statistics.median(times) * 1e3:6.2f} ms  {ratio:5.2f} ×")


if __name__ == "__main__":
    typer.run(main)

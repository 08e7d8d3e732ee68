"""Forecast what ``rescorer rescore`` will cost, instead of running it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.rescoring.loading import RescorerLoader
from rescorer.cli.options.rescoring.plan import PlanOptions
from rescorer.cli.options.weights import check_first_lists
from rescorer.cli.render.plan import render_plan
from rescorer.files.forecast import Sample, draw_sample, forecast, measure_sample
from rescorer.files.parallel import open_rescorer
from rescorer.files.rescoring import LocalRescorer
from rescorer.formats.registry import is_pipe
from rescorer.formats.rescored import rescored_writer
from rescorer.shards.planning.extract import Extract, draw_extract
from rescorer.shards.planning.inputs import find_files
from rescorer.types import Weights


def read_sample(
    options: PlanOptions, sources: Sequence[str], list_options: ListInputOptions, weights: Weights, to: str
) -> Sample:
    """Read parts of the input, or a pipe to its end.

    Raises:
        ConfigError: the first lists do not fit the weights or the output format.
        InputError: an input cannot be read, or has no lists.
    """
    if len(sources) == 1 and is_pipe(sources[0]):
        lists = check_first_lists(
            list_options.read(sources[0], warn=False), weights, list_options, sources[0], to
        )
        extract = Extract(1, iter([(1, lists)]))
    else:
        source = list_options.as_source()
        names = find_files(sources, source)
        if names:
            check_first_lists(source.read_file(names[0]), weights, list_options, names[0], to)
        extract = draw_extract(names, source, int(options.plan_mb * 1e6), options.plan_seed)
    return draw_sample(extract.parts, max(1, extract.n_bytes), options.plan_lists, options.plan_seed)


def print_plan(
    options: PlanOptions, sample: Sample, load: RescorerLoader, output: str, *, as_json: bool
) -> None:
    """Score a sample in this process, and print the forecast.

    What it takes to write answers is measured in a file that is removed, compressed if the output would be.
    One thread is the default, since the forecast is of processor time.
    """
    machine = load.machine
    read_s = sample.read_s * sample.read_share
    with ExitStack() as stack:
        rescorer = stack.enter_context(open_rescorer(load, 1, machine.threads or 1, machine.batch_words))
        start_s = time.process_time() - read_s
        folder = Path(stack.enter_context(TemporaryDirectory()))
        name = "out.gz" if output.endswith(".gz") else "out"
        write = stack.enter_context(rescored_writer(load.to, str(folder / name)))
        assert isinstance(rescorer, LocalRescorer)  # as with one process
        costs, summary = measure_sample(rescorer, sample, write)
    result = forecast(sample, costs, summary.rejected, start_s, on_gpu=machine.device != "cpu")
    if as_json:
        typer.echo(json.dumps({**result.to_dict(), "seed": options.plan_seed}))
        return
    for line in render_plan(result, options.plan_seed):
        typer.echo(line)

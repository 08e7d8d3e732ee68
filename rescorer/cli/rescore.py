"""Owns the command ``rescorer rescore``."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, TextIO

import typer

from rescorer.bundle import read_bundle
from rescorer.cli.options import (
    SOME_REJECTED,
    BundleOption,
    DtypeOption,
    FormatOption,
    GroupsOption,
    MapOption,
    StreamOption,
    WeightOption,
    WeightsOption,
    chosen_weights,
    lists_from,
    looked_at,
)
from rescorer.cpu_count import cores
from rescorer.errors import ConfigError
from rescorer.file_rescoring import FileSummary, Rescoring, rescore_lists
from rescorer.formats.rescored import get_renderer, rescored_writer
from rescorer.list_ranker import ListRanker
from rescorer.parallel_rescoring import rescoring
from rescorer.pipeline import MAX_BATCH_WORDS, Rescorer
from rescorer.types import Weights


def rescore(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Lists to re-rank, gzip or plain; - for a pipe.")
    ],
    bundle: BundleOption,
    output: Annotated[str, typer.Option("-o", "--output", help="Re-ranked lists; .gz compresses.")] = "-",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="jsonl: whole lists; trn, ctm or stm: the best hypothesis of each, ctm by the times in its "
            "field words, stm by those in its list's fields start_s and end_s.",
        ),
    ] = "jsonl",
    rejects: Annotated[
        Path | None,
        typer.Option(
            help="Lists that could not be scored or written, with the reason. Default: OUT.rejects; stderr "
            "for a pipe."
        ),
    ] = None,
    maps: MapOption = None,
    streams: StreamOption = None,
    format_: FormatOption = None,
    groups: GroupsOption = None,
    weights: WeightsOption = "default",
    weight: WeightOption = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge hypotheses that are equal once normalised.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    dtype: DtypeOption = "float32",
    batch_words: Annotated[int, typer.Option(help="Words scored at once.")] = MAX_BATCH_WORDS,
    processes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Processes that score, each with the models in its memory; 0: one a core. For long files: "
            "every one takes seconds to start.",
        ),
    ] = 1,
    threads: Annotated[
        int, typer.Option(min=0, help="CPU threads of each process; 0: the cores shared out.")
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Summary as JSON, on stderr.")] = False,
) -> None:
    """Re-rank a file of n-best lists.

    Example: rescorer rescore demo/lists.jsonl.gz -o out.jsonl --bundle models/starter/1 --weights
    pocketsphinx

    Memory stays bounded whatever the file's length. Exit code 1 says that some lists went to the rejects. No
    lists at all are a warning and exit code 0, for pipelines whose recogniser heard nothing.
    """
    ranker = ListRanker(read_bundle(bundle))
    effective = chosen_weights(dict(ranker.bundle.weights), weights, weight)
    ranker.effective_weights(effective)  # a fault in them shows before any output
    make = partial(loaded, bundle, device, dtype, batch_words, effective, merge, to)
    get_renderer(to)  # and so does this one
    lists = looked_at(lists_from(source, maps, streams, groups, format_), effective, streams, to)
    reject_file = rejects or (Path(f"{output}.rejects") if output != "-" else None)
    check_places(source, output, reject_file)
    with ExitStack() as stack:
        scorer = stack.enter_context(rescoring(make, processes or cores(), threads, batch_words))
        write = stack.enter_context(rescored_writer(to, output))
        reject_out = stack.enter_context(Rejects(reject_file))
        show = not quiet and sys.stderr.isatty()
        summary = rescore_lists(scorer, lists, write, reject_out, progress=show)
    if as_json:
        typer.echo(json.dumps(summary.to_dict()), err=True)
    elif not quiet:
        show_summary(summary, reject_file)
    if summary.rejected:
        raise typer.Exit(SOME_REJECTED)


def check_places(source: str, output: str, reject_file: Path | None) -> None:
    """Raises ConfigError where nothing could be written, or what is read would be overwritten."""
    if output != "-":
        if not Path(output).parent.is_dir():
            raise ConfigError(f"--output {output}: no such folder")
        if Path(output).exists() and Path(source).exists() and Path(output).samefile(source):
            raise ConfigError(
                f"--output {output} is the file of the lists: re-ranked ones do not take the place of their "
                "scores; write to another"
            )
    if reject_file and not reject_file.parent.is_dir():
        raise ConfigError(f"--rejects {reject_file}: no such folder")


def show_summary(summary: FileSummary, reject_file: Path | None) -> None:
    where = f" (see {reject_file})" if reject_file and summary.rejected else ""
    typer.echo(
        f"{summary.lists:,} lists, {summary.hypotheses:,} hypotheses, {summary.words:,} words; the best "
        f"changed in {summary.changed:,}; {summary.rejected:,} rejected{where}",
        err=True,
    )


def loaded(
    bundle: Path, device: str, dtype: str, batch_words: int, weights: Weights, merge: bool, to: str
) -> Rescoring:
    """What each process does; raises BundleError and ConfigError as ``Rescorer.load``."""
    rescorer = Rescorer.load(bundle, device, batch_words, dtype)
    return Rescoring(rescorer, weights, merge, get_renderer(to))


class Rejects:
    """Where rejected lists go: a file made when the first one comes, or stderr where there is no file.

    What an earlier run left in the file is taken away, so that it is not taken for this one's.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stream: TextIO | None = None

    def __enter__(self) -> Rejects:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
        elif self._path is not None and kind is None:
            self._path.unlink(missing_ok=True)

    def write(self, text: str) -> None:
        if self._path is None:
            sys.stderr.write(text)
            return
        if self._stream is None:
            self._stream = open(self._path, "w", encoding="utf-8")  # noqa: SIM115 (closed in __exit__)
        self._stream.write(text)

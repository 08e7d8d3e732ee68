"""Owns the command ``rescorer rescore``."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TextIO

import typer

from rescorer.cli.options import (
    BundleOption,
    FormatOption,
    GroupsOption,
    MapOption,
    StreamOption,
    WeightOption,
    WeightsOption,
    chosen_weights,
    lists_from,
)
from rescorer.files import rescore_lists
from rescorer.formats.source import open_output
from rescorer.pipeline import MAX_BATCH_WORDS, Rescorer

SOME_REJECTED = 1


def rescore(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Lists to re-rank, gzip or plain; - for a pipe.")
    ],
    bundle: BundleOption,
    output: Annotated[str, typer.Option("-o", "--output", help="Re-ranked lists; .gz compresses.")] = "-",
    rejects: Annotated[
        Path | None,
        typer.Option(help="Lists that could not be scored, with the reason. Default: OUT.rejects."),
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
    batch_words: Annotated[int, typer.Option(help="Words scored at once.")] = MAX_BATCH_WORDS,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Summary as JSON, on stderr.")] = False,
) -> None:
    """Re-rank a file of n-best lists.

    Example: rescorer rescore demo/lists.jsonl.gz -o out.jsonl --bundle models/starter/1

    Memory stays bounded whatever the file's length. Exit code 1 says that some lists went to the rejects.
    """
    rescorer = Rescorer.load(bundle, device, batch_words)
    effective = chosen_weights(dict(rescorer.bundle.weights), weights, weight)
    rescorer.effective_weights(effective)  # a fault in them shows before any output
    lists = lists_from(source, maps, streams, groups, format_)
    reject_file = rejects or (Path(f"{output}.rejects") if output != "-" else None)
    with ExitStack() as stack:
        out = stack.enter_context(open_output(output))
        reject_out = stack.enter_context(LazyFile(reject_file)) if reject_file else None
        show = not quiet and sys.stderr.isatty()
        summary = rescore_lists(rescorer, lists, out, reject_out, effective, merge=merge, progress=show)
    if as_json:
        typer.echo(json.dumps(summary.to_dict()), err=True)
    elif not quiet:
        where = f" (see {reject_file})" if reject_file and summary.rejected else ""
        typer.echo(
            f"{summary.lists:,} lists, {summary.hypotheses:,} hypotheses, {summary.words:,} words; the best "
            f"changed in {summary.changed:,}; {summary.rejected:,} rejected{where}",
            err=True,
        )
    if summary.rejected:
        raise typer.Exit(SOME_REJECTED)


class LazyFile:
    """A text file that is made when something is first written to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: TextIO | None = None
        path.unlink(missing_ok=True)  # those of an earlier run would be taken for this one's

    def __enter__(self) -> LazyFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def write(self, text: str) -> None:
        if self._stream is None:
            self._stream = open(self._path, "w", encoding="utf-8")  # noqa: SIM115 (closed in __exit__)
        self._stream.write(text)

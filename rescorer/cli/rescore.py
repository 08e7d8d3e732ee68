"""Owns the command ``rescorer rescore``."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TextIO

import typer

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
)
from rescorer.errors import ConfigError
from rescorer.files import rescore_lists
from rescorer.formats.rescored import rescored_writer
from rescorer.lm.memory import keep_freed_memory
from rescorer.pipeline import MAX_BATCH_WORDS, Rescorer


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
            help="jsonl: whole lists; trn or ctm: the best hypothesis of each, ctm by the times in its field "
            "words.",
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Summary as JSON, on stderr.")] = False,
) -> None:
    """Re-rank a file of n-best lists.

    Example: rescorer rescore demo/lists.jsonl.gz -o out.jsonl --bundle models/starter/1 --weights
    pocketsphinx

    Memory stays bounded whatever the file's length. Exit code 1 says that some lists went to the rejects.
    """
    keep_freed_memory()
    rescorer = Rescorer.load(bundle, device, batch_words, dtype)
    effective = chosen_weights(dict(rescorer.bundle.weights), weights, weight)
    rescorer.effective_weights(effective)  # a fault in them shows before any output
    lists = lists_from(source, maps, streams, groups, format_)
    reject_file = rejects or (Path(f"{output}.rejects") if output != "-" else None)
    if reject_file and not reject_file.parent.is_dir():
        raise ConfigError(f"--rejects {reject_file}: no such folder")
    with ExitStack() as stack:
        write = stack.enter_context(rescored_writer(to, output))
        reject_out = stack.enter_context(Rejects(reject_file))
        show = not quiet and sys.stderr.isatty()
        summary = rescore_lists(rescorer, lists, write, reject_out, effective, merge=merge, progress=show)
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

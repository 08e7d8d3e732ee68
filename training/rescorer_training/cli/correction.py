"""The commands ``rescorer-train correct train`` and ``apply``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.errors import ConfigError
from rescorer.formats.io.text_io import make_folder
from rescorer.formats.jsonlines import writer
from rescorer.runtime import use_threads
from rescorer.terminal.evaluation_options import ReferenceOption
from rescorer.terminal.list_options import ListInputOptions
from rescorer.terminal.options import expand_options
from rescorer.terminal.program import PLAIN_HELP, SOME_REJECTED, Rejections, check_output_path
from rescorer.types import NBestList
from rescorer_training import correction
from rescorer_training.cli.options import NormaliserOption, ThreadsOption, check_run_output
from rescorer_training.cli.reranking import read_files
from rescorer_training.corpus import choose_normaliser
from rescorer_training.correction import CorrectionOptions, Corrector
from rescorer_training.progress import option

FilesArgument = Annotated[list[str], typer.Argument(metavar="LISTS…", help="N-best lists, best first.")]
CandidatesOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=20,
        help="Number of new hypotheses to add to a list: the most probable rewritings that it lacks.",
    ),
]


@dataclass(frozen=True, slots=True)
class HeldOutOptions:
    """The same lists with scores by networks that did not learn from them."""

    held_out: Path | None = option(
        None,
        "File for the lists with their scores, each by a network that was trained on other lists: what "
        "weights and rerankers are to be learnt from.",
    )
    folds: int = option(5, "With --held-out: number of parts into which the lists are divided.", min=2)
    share_references: bool = option(
        False,
        "With --held-out: train also on lists that share a reference with the part whose scores are "
        "written; only groups are kept apart.",
        "--share-references/--separate-references",
    )
    candidates: CandidatesOption = 0


@expand_options
def train_command(
    files: FilesArgument,
    output_folder: Annotated[Path, typer.Option("-o", "--output", help="Folder of the network to write.")],
    *,
    reference: ReferenceOption = None,
    lists: ListInputOptions,
    normaliser: NormaliserOption = None,
    held_out: HeldOutOptions,
    options: CorrectionOptions,
    threads: ThreadsOption = None,
) -> None:
    """Train a network that rewrites the first hypothesis of a list to its reference.

    Example: rescorer-train correct train lists.jsonl -o runs/correct --held-out scored.jsonl --candidates 3
    """
    check_run_output("-o", output_folder, (correction.CONFIG_FILE,))
    if (output_folder / correction.CONFIG_FILE).exists():
        raise ConfigError(f"{output_folder} already has a network; choose another folder")
    make_folder(output_folder)
    if held_out.held_out is not None:
        check_output_path("--held-out", held_out.held_out)
    if threads:
        use_threads(threads)
    rejected = Rejections()
    read = read_files(files, reference, lists, rejected)
    rejected.report()
    chosen, began = choose_normaliser(normaliser), time.monotonic()
    if held_out.held_out is not None:  # so that nothing is trained in vain
        correction.divide(read, held_out.folds, share_references=held_out.share_references)
    corrector = correction.train(read, chosen, options)
    facts = {"lists": len(read), "options": asdict(options), "seconds": round(time.monotonic() - began, 1)}
    corrector.save(output_folder, facts)
    if held_out.held_out is not None:
        scored = correction.hold_out(
            read, chosen, options, held_out.candidates, n_folds=held_out.folds,
            share_references=held_out.share_references,
        )  # fmt: skip
        _write(held_out.held_out, scored)
    typer.echo(f"{output_folder}: {json.dumps(facts)}")
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def _write(path: Path, lists: Sequence[NBestList]) -> None:
    with writer(path) as write:
        for nbest in lists:
            write(nbest)


@expand_options
def apply_command(
    run: Annotated[Path, typer.Argument(help="Folder that correct train has written.")],
    files: FilesArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="File of JSON lines to write.")],
    *,
    candidates: CandidatesOption = 0,
    lists: ListInputOptions,
    threads: ThreadsOption = None,
) -> None:
    """Add the stream `correction` to lists, ln P(hypothesis | first hypothesis), and new hypotheses if asked
    for.

    New hypotheses have the scores of the first one, and 1 in the stream `corrected`, which is 0 for all
    others.

    Example: rescorer-train correct apply runs/correct new.jsonl -o scored.jsonl --candidates 3
    """
    check_output_path("-o", output)
    if threads:
        use_threads(threads)
    corrector, rejected = Corrector.load(run), Rejections()
    read = read_files(files, None, lists, rejected)
    rejected.report()
    _write(output, corrector.annotate(read, candidates))
    if rejected:
        raise typer.Exit(SOME_REJECTED)


correct_app = typer.Typer(
    **PLAIN_HELP,
    help="Rewrite the first hypothesis of a list by an encoder and a decoder, to score and to add "
    "hypotheses.\n\n"
    "Example: rescorer-train correct train lists.jsonl -o runs/correct --held-out scored.jsonl",
    no_args_is_help=True,
)
correct_app.command("train")(train_command)
correct_app.command("apply")(apply_command)

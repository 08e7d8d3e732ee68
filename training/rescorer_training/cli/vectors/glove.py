"""The command ``rescorer-train vectors glove``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.output import print_results_apart
from rescorer.runtime.cpu_count import count_cpus
from rescorer_training.cli.options import TextsArgument
from rescorer_training.cli.vectors.options import (
    MemoryOption,
    OutputFormatOption,
    VectorRunOptions,
    VectorsOutputOption,
)
from rescorer_training.cli.vectors.outputs import prepare_output
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.vectors.files import write_vectors
from rescorer_training.vectors.files.formats import VectorFormat
from rescorer_training.vectors.glove.options import GloveOptions


@expand_options
def glove_command(
    texts: TextsArgument,
    output: VectorsOutputOption,
    folder: Annotated[
        Path, typer.Option("--run", help="Folder of the run: text as ids, co-occurrences, and state.")
    ],
    *,
    to: OutputFormatOption = VectorFormat.WORD2VEC,
    memory_mb: MemoryOption = 1024,
    settings: VectorRunOptions,
    options: GloveOptions,
) -> None:
    """Train GloVe vectors, whose products approximate the logarithms of co-occurrences.

    A pair of words at distance d counts 1/d. With one thread the same seed gives the same vectors, also after
    an interruption; several threads change the same vectors without waiting, so that results vary a little.

    Example: rescorer-train vectors glove books.txt.gz --run runs/glove -o glove.txt --dimensions 300
    """
    from rescorer_training.vectors.glove import run  # deferred, because importing torch takes seconds

    prepare_output(output)
    settings.check_folder(folder, texts)
    if not settings.resume:
        run.start_run(texts, choose_normaliser(settings.normaliser), folder, options, memory_mb=memory_mb)
    vectors, state = run.run(folder, options, settings.threads or count_cpus())
    write_vectors(output, vectors, to)
    with print_results_apart(output):
        typer.echo(
            f"{output}: {len(vectors):,} words, {vectors.dimensions} dimensions; "
            f"loss {state.losses[-1]:.4f} per pair; trained in {state.seconds:,.0f} s"
        )

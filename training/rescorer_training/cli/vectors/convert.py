"""The command ``rescorer-train vectors convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer_training.cli.vectors.options import VectorReadingOptions, VectorsArgument
from rescorer_training.cli.vectors.outputs import prepare_output
from rescorer_training.vectors.files import write_vectors
from rescorer_training.vectors.files.formats import VectorFormat


@expand_options
def convert_command(
    vectors: VectorsArgument,
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="File to write, gzip if the name ends in .gz.")
    ],
    to: Annotated[VectorFormat, typer.Option(help="Format to write.")],
    *,
    reading: VectorReadingOptions,
) -> None:
    """Convert a file of word vectors to another format; every value stays the same float32.

    Example: rescorer-train vectors convert glove.6B.50d.txt.gz glove.bin --to word2vec-binary
    """
    prepare_output(output, "output")
    content = reading.read(vectors)
    write_vectors(output, content, to)
    typer.echo(f"{output}: {len(content):,} words, {content.dimensions} dimensions", err=True)

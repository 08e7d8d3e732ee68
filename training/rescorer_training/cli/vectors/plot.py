"""The command ``rescorer-train vectors plot``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.errors import ConfigError
from rescorer.formats.io import text_io
from rescorer_training.cli.vectors.options import VectorReadingOptions, VectorsArgument
from rescorer_training.cli.vectors.outputs import prepare_output
from rescorer_training.vectors.plots.image import draw_png
from rescorer_training.vectors.plots.page import render_page
from rescorer_training.vectors.plots.picture import make_picture
from rescorer_training.vectors.plots.projection import Projection, check_libraries
from rescorer_training.vectors.plots.selection import (
    MAX_WORDS,
    MIN_WORDS,
    Selection,
    select_from_file,
    select_most_frequent,
)
from rescorer_training.vectors.word_vectors import WordVectors

MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DrawnWords:
    """Which words to draw."""

    number: Annotated[
        int,
        typer.Option(
            "-n", "--number", min=MIN_WORDS, max=MAX_WORDS, help="Number of words, the most frequent."
        ),
    ] = 500
    words: Annotated[
        Path | None,
        typer.Option(
            help="File of the words to draw instead: one per line, and after a tab, optionally, the name of "
            "its group, which chooses the colour."
        ),
    ] = None

    def select(self, vectors: WordVectors) -> Selection:
        """Select the words; raises FormatError if their file cannot be read."""
        if self.words:
            return select_from_file(vectors, self.words)
        return select_most_frequent(vectors, self.number)


@expand_options
def plot_command(
    vectors: VectorsArgument,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="File to write: a picture (.png), or a page to explore (.html)."),
    ],
    *,
    drawn: DrawnWords,
    projection: Annotated[
        list[Projection] | None,
        typer.Option(
            help="How vectors become points. A page can have both, which is the default; a picture has one, "
            "by default t-SNE."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of t-SNE.")] = 0,
    title: Annotated[str | None, typer.Option(help="Title. Default: the name of VECTORS.")] = None,
    reading: VectorReadingOptions,
) -> None:
    """Draw words as points of a plane, those with similar vectors close together.

    The page needs no network: it has a search box, zooms and moves, and lists the nearest words of each.
    Labels that would cover others are left out until there is room.

    Example: rescorer-train vectors plot vectors.bin -o vectors.html -n 1000
    """
    check_libraries()
    is_page = output.suffix == ".html"
    chosen = projection or ([Projection.TSNE, Projection.PCA] if is_page else [Projection.TSNE])
    if output.suffix not in (".html", ".png"):
        raise ConfigError(f"{output}: expected a name that ends in .png or .html")
    if len(chosen) > 1 and not is_page:
        raise ConfigError(f"a picture shows one projection, got {len(chosen)}; write a page (.html) for more")
    prepare_output(output)
    content = reading.read(vectors)
    selection = drawn.select(content)
    picture = make_picture(content, selection, chosen, seed, vectors.name if title is None else title)
    if is_page:
        text_io.write_text(output, render_page(picture))
    else:
        with text_io.open_binary_output(output) as stream:
            draw_png(picture, chosen[0], stream)
    typer.echo(f"{output}: {len(picture.words):,} words", err=True)
    if selection.missing:
        shown = ", ".join(selection.missing[:MAX_SHOWN]) + (
            " …" if len(selection.missing) > MAX_SHOWN else ""
        )
        typer.echo(f"{len(selection.missing)} words without a vector: {shown}", err=True)

"""The command ``rescorer-train vectors neighbours``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer_training.cli.options import JsonOption
from rescorer_training.cli.vectors.options import VectorReadingOptions, VectorsArgument
from rescorer_training.vectors.evaluation.neighbours import find_neighbours, parse_sum


@expand_options
def neighbours_command(
    vectors: VectorsArgument,
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORD…", help="Words, or sums of words in quotes: 'king - man + woman'."),
    ],
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="Number of neighbours to show.")] = 10,
    *,
    reading: VectorReadingOptions,
    as_json: JsonOption = False,
) -> None:
    """Show the words whose vectors are nearest, by the cosine, to that of a word or a sum of words.

    Vectors are added at length 1. The words themselves are not shown. Upper and lower case are different
    words here.

    Example: rescorer-train vectors neighbours vectors.bin house 'king - man + woman'
    """
    content = reading.read(vectors)
    terms = [parse_sum(text, content) for text in words]
    found = {text: find_neighbours(content, sum_, number) for text, sum_ in zip(words, terms, strict=True)}
    if as_json:
        typer.echo(json.dumps({text: [asdict(item) for item in rows] for text, rows in found.items()}))
        return
    for text, neighbours in found.items():
        table = FoldingTable(text, "cosine")
        for item in neighbours:
            table.add_row(item.word, f"{item.cosine:.3f}")
        print_out(table, "")

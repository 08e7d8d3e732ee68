"""Options that commands for word vectors share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rescorer_training.vectors.files.formats import Encoding, VectorFormat

VectorsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="VECTORS", help="File of word vectors: word2vec's text or binary, or GloVe's; gzip or plain."
    ),
]
FormatOption = Annotated[
    VectorFormat | None,
    typer.Option(
        "--format",
        help="Format of VECTORS. Default: word2vec if the first line is two whole numbers, binary if the "
        "second line does not then end in as many numbers as the first announces; otherwise glove.",
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Read only the first N words, usually the most frequent ones."),
]
EncodingOption = Annotated[
    Encoding,
    typer.Option(help="Encoding of the words of VECTORS; try cp1252 if a file is not UTF-8."),
]
MinCountOption = Annotated[int, typer.Option(min=1, help="Leave out words that occur less often.")]
WindowOption = Annotated[
    int, typer.Option(help="Largest distance of two words that occur together, 1 to 100, within a sentence.")
]
MemoryOption = Annotated[
    int,
    typer.Option(
        help="Memory in MB for counting and shuffling co-occurrences; what does not fit is sorted on disk."
    ),
]
DimensionsOption = Annotated[int, typer.Option(help="Number of values per vector.")]
VectorsOutputOption = Annotated[
    Path, typer.Option("-o", "--output", help="File of vectors to write, gzip if the name ends in .gz.")
]
OutputFormatOption = Annotated[VectorFormat, typer.Option("--to", help="Format of the vectors.")]

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

"""Options that commands for word vectors share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import TEXT
from rescorer_training.cli.options import NormaliserOption, ResumeOption, ThreadsOption
from rescorer_training.cli.outputs import check_run_output
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.vectors.encoded_text import IDS_FILE, VOCABULARY_FILE
from rescorer_training.vectors.files import read_vectors
from rescorer_training.vectors.files.formats import Encoding, VectorFormat
from rescorer_training.vectors.sources import SOURCES_FILE, check_sources
from rescorer_training.vectors.word_vectors import WordVectors

VectorsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="VECTORS", help="File of word vectors: word2vec's text or binary, or GloVe's; gzip or plain."
    ),
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


@dataclass(frozen=True, slots=True)
class VectorReadingOptions:
    """How a file of word vectors is read."""

    format: Annotated[
        VectorFormat | None,
        typer.Option(
            help="Format of VECTORS. Default: word2vec if the first line is two whole numbers, binary if the "
            "second line does not then end in as many numbers as the first announces; otherwise glove.",
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Read only the first N words, usually the most frequent ones."),
    ] = None
    encoding: Annotated[
        Encoding,
        typer.Option(help="Encoding of the words of VECTORS; try cp1252 if a file is not UTF-8."),
    ] = Encoding.UTF_8

    def read(self, vectors: Path) -> WordVectors:
        """Read a file; raises FormatError if it cannot be read."""
        return read_vectors(vectors, self.format, limit=self.limit, encoding=self.encoding)


@dataclass(frozen=True, slots=True)
class VectorsTarget:
    """The file of vectors to write."""

    output: VectorsOutputOption
    to: OutputFormatOption = VectorFormat.WORD2VEC


@dataclass(frozen=True, slots=True)
class VectorRunOptions:
    """How a run of training reads its texts, and whether it continues."""

    normaliser: NormaliserOption = None
    threads: ThreadsOption = None
    resume: ResumeOption = False

    def check_folder(self, folder: Path, texts: Sequence[Path]) -> None:
        """Check the folder of the run before its work.

        Raises:
            ConfigError: a new run would overwrite an input, or the run to continue has other texts.
        """
        if self.resume:
            check_sources(folder, texts, choose_normaliser(self.normaliser) if self.normaliser else None)
        else:
            check_run_output("--run", folder, (TEXT, SOURCES_FILE, IDS_FILE, VOCABULARY_FILE))

"""Options for hypotheses that lists lack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.errors import ConfigError, FormatError
from rescorer.extensions import Generation
from rescorer.scoring.ranker import ListRanker

DictionaryOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Pronunciations of words, in the form of the CMU dictionary: lines of a word and its phones. "
        "Default: the dictionary that the extra sounds installs.",
    ),
]


@dataclass(frozen=True, slots=True)
class CandidateOptions:
    """Whether hypotheses are generated from phrases, and how words sound."""

    generate: Annotated[
        bool,
        typer.Option(
            "--generate",
            help="Add hypotheses that a list lacks, with its phrases in place of what sounds like them; the "
            "output marks them as generated. Needs the extra sounds, or --dictionary.",
        ),
    ] = False
    dictionary: DictionaryOption = None

    def apply(self, ranker: ListRanker) -> None:
        """Read the dictionary, if it is needed.

        Raises:
            ConfigError: there is no dictionary, it cannot be read, or it is not used.
        """
        if self.dictionary is not None and not self.generate:
            raise ConfigError("--dictionary is for generating hypotheses; give --generate too")
        if self.generate:
            use_dictionary(ranker, self.dictionary)


def use_dictionary(ranker: ListRanker, path: Path | None) -> None:
    """Read a dictionary, by default the installed one; raises as ``CandidateOptions.apply``."""
    generation = ranker.component(Generation)
    generation.dictionary = path
    try:
        generation.generator  # noqa: B018  # reads the dictionary
    except FormatError as error:
        raise ConfigError(f"--dictionary {error}") from None

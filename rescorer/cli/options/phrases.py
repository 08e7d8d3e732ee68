"""Options for phrases that are expected in all lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.errors import ConfigError, LimitExceeded
from rescorer.extensions import Phrases
from rescorer.phrases.files import read_phrase_file
from rescorer.scoring.ranker import ListRanker


@dataclass(frozen=True, slots=True)
class PhraseOptions:
    """Names and phrases that are more likely than usual in all lists of a command."""

    phrases: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Names and phrases that are expected in all lists, one per line; or JSON objects with text, "
            "weight, spellings and slot. Hypotheses get credits for those that they have.",
        ),
    ] = None
    phrase_list: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The same, of the bundle's phrases/NAME.txt. Repeatable."),
    ] = None

    def apply(self, ranker: ListRanker) -> None:
        """Let a ranker expect the phrases in all lists.

        Raises:
            ConfigError: the file cannot be read, a phrase is invalid, or the bundle lacks a list.
            FormatError: a line of the file is not a phrase.
        """
        names = self.phrase_list or []
        given = () if self.phrases is None else read_phrase_file(self.phrases)
        try:
            ranker.component(Phrases).expect(given, names)
        except LimitExceeded as error:
            raise ConfigError(f"--phrases {self.phrases}: {error}") from None

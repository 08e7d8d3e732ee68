"""Options for comparing, counting and writing texts, which are not the bundle's to decide."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.bundle import Bundle, read_normaliser
from rescorer.errors import ConfigError
from rescorer.scoring.ranker import ListRanker
from rescorer.text import FILLERS, LETTERS, Normaliser, NormaliserSettings

RAW = "raw"


@dataclass(frozen=True, slots=True)
class TextOptions:
    """By which words texts are compared, counted and written; what models read is the bundle's to decide."""

    normaliser: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON file of normaliser settings by which words are compared and errors are counted; raw "
            "only splits at white space. Default: words without case and punctuation, also with a bundle, "
            "whose models read text as it says.",
        ),
    ] = None
    language: Annotated[
        str,
        typer.Option(
            metavar="TAG", help="Language of the text, such as tr or az-Latn: decides the case of I and ı."
        ),
    ] = ""
    fillers: Annotated[
        str,
        typer.Option(
            metavar="NAME,…", help=f"Drop the fillers of a language or corpus: {', '.join(FILLERS)}."
        ),
    ] = ""
    letters: Annotated[
        str,
        typer.Option(
            metavar="NAME", help=f"Alphabet in which signs are letters and case counts: {', '.join(LETTERS)}."
        ),
    ] = ""

    def make_normaliser(self, bundle: Bundle | None = None) -> Normaliser:
        """The normaliser that the options choose, by default the one for text of the bundle, if there is one.

        Raises:
            ConfigError: the file does not exist, or a name is unknown.
            BundleError: the file is not one of normaliser settings.
        """
        changes = self._changes()
        if self.normaliser is None and not changes:
            return bundle.text_normaliser if bundle else Normaliser()
        settings = self._read_settings(bundle)
        try:
            return Normaliser(replace(settings, **changes))
        except ConfigError as error:  # begins with the name of the setting, as the option is named
            raise ConfigError(f"--{error}") from None

    def apply(self, ranker: ListRanker) -> None:
        """Let a ranker compare and write texts by the normaliser that the options choose."""
        ranker.text_normaliser = self.make_normaliser(ranker.bundle)

    def _changes(self) -> dict[str, Any]:
        fillers = tuple(name.strip() for name in self.fillers.split(",") if name.strip())
        changes = {"language": self.language, "fillers": fillers, "letters": self.letters}
        return {name: value for name, value in changes.items() if value}

    def _read_settings(self, bundle: Bundle | None) -> NormaliserSettings:
        if self.normaliser is None:
            return bundle.text_normaliser.settings if bundle else NormaliserSettings()
        if self.normaliser == RAW:
            return NormaliserSettings.raw()
        path = Path(self.normaliser)
        if not path.exists():
            raise ConfigError(
                f"--normaliser {path}: no such file; expected a JSON file of normaliser settings, such as "
                "the text.json of a bundle, or raw; leave it out for words without case and punctuation"
            )
        return read_normaliser(path).settings

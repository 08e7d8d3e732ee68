"""Describe a list format: its reader and writer, their options, and which parts of a list it can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.formats.common import Write
from rescorer.formats.io.sniff import Sample
from rescorer.formats.word_times import WORDS_FIELD
from rescorer.storage.urls import is_url
from rescorer.types import NBestList

Options = Mapping[str, Callable[[str], Any]]
"""Parsers of option values, by option name; a parser raises ValueError for an invalid value."""
ALL_PARTS = frozenset({"context", "previous", "phrases", "reference", "group", "fields", "streams"})
"""Parts of a list besides ids and texts."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format for n-best lists."""

    name: str
    description: str
    units: str
    """Log base and sign of the scores, and whether the format fixes them."""
    read: Callable[..., Iterator[NBestList | InputError]]
    looks_like: Callable[[Sample], str]
    """Function that returns the evidence that a file has this format, or an empty string."""
    writer: Callable[..., AbstractContextManager[Write]]
    suffix: str | tuple[str, ...] = ()
    """Ends of file names by which the format is detected if no content matches."""
    is_loose: bool = False
    """Whether files of other formats can look like this one, so that any other that matches is meant."""
    read_options: Options = field(default_factory=dict)
    write_options: Options = field(default_factory=dict)
    is_binary: bool = False
    """Whether files are not text, so that they are neither read from a pipe nor compressed as a whole."""
    is_folder: bool = False
    """Whether the format is written as a folder."""
    reads_folders: bool = False
    """Whether the reader takes a folder of files, though the format is written as a file."""
    is_numbered: bool = False
    """Whether the format has no ids, so that a list's position in the file becomes its id."""
    parts: frozenset[str] = frozenset()
    """Parts of a list that the format stores without restrictions: a subset of ``ALL_PARTS``."""
    streams: frozenset[str] = frozenset()
    """Names of the streams that the format can store, if it cannot store arbitrary streams."""
    stream_prefix: str = ""
    """Prefix of the names of further streams that the format can store, if any."""
    list_fields: frozenset[str] = frozenset()
    """Fields of lists that the format can store, if it cannot store arbitrary fields."""
    hypothesis_fields: frozenset[str] = frozenset()
    """Fields of hypotheses that the format can store, if it cannot store arbitrary fields."""
    word_fields: frozenset[str] = frozenset()
    """Keys that the format can store in each object of the hypothesis field ``words``."""
    find_changes: Callable[..., set[str]] | None = None
    """Function that takes a list and the write options, and returns what is lost even from supported
    parts."""
    stream_option: str = ""
    """Write option that adds streams to the output; its value maps the names of these streams."""
    one_best: bool = False
    """Whether the format stores only the first hypothesis of a list."""

    @property
    def takes_folders(self) -> bool:
        """Whether the reader takes a folder as one source."""
        return self.is_folder or self.reads_folders

    def find_losses(self, nbest: NBestList) -> set[str]:
        """Return descriptions of the parts of a list that the format cannot hold."""
        present = {
            "context": nbest.context,
            "previous": nbest.previous,
            "phrases": nbest.phrases,
            "reference": nbest.reference is not None,
            "group": nbest.group,
            "fields": nbest.fields.keys() - self.list_fields,
        }
        losses = {part for part, is_present in present.items() if is_present and part not in self.parts}
        if self.one_best and len(nbest.hypotheses) > 1:
            losses.add("hypotheses after the first")
        losses |= {"id"} if self.is_numbered else set()
        if "streams" not in self.parts:
            losses |= {f"stream {name}" for name in nbest.streams if not self._holds_stream(name)}
        if "fields" not in self.parts:
            names = {name for hypothesis in nbest.hypotheses for name in hypothesis.fields}
            losses |= {f"hypothesis field {name}" for name in names - self.hypothesis_fields}
            if WORDS_FIELD in self.hypothesis_fields:
                losses |= {f"word field {name}" for name in _collect_word_fields(nbest) - self.word_fields}
        return losses

    def _holds_stream(self, name: str) -> bool:
        return name in self.streams or bool(self.stream_prefix and name.startswith(self.stream_prefix))

    def describe_contents(self) -> str:
        """Describe which parts of a list the format can hold, for the table of formats."""
        if self.parts == ALL_PARTS:
            return "everything"
        ids = [] if self.is_numbered else ["ids"]
        texts = "the first text" if self.one_best else "texts"
        streams = "any stream" if "streams" in self.parts else ", ".join(sorted(self.streams))
        streams += f", {self.stream_prefix}*" if self.stream_prefix else ""
        fields = [f"hypothesis field {name}" for name in sorted(self.hypothesis_fields - {WORDS_FIELD})]
        times = ["word times"] if WORDS_FIELD in self.hypothesis_fields else []
        parts = [*sorted(self.parts - {"streams"}), *sorted(self.list_fields)]
        return ", ".join(filter(None, [*ids, texts, streams, *fields, *times, *parts]))


def _collect_word_fields(nbest: NBestList) -> set[str]:
    """Return all keys of the objects in the hypothesis field ``words``."""
    values = (hypothesis.fields.get(WORDS_FIELD) for hypothesis in nbest.hypotheses)
    words = (word for value in values if isinstance(value, list) for word in value if isinstance(word, dict))
    return {name for word in words for name in word}


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """A format with the values of its options, as text."""

    format: Format
    options: Mapping[str, str]

    def read(self, source: str | Path, **further: Any) -> Iterator[NBestList | InputError]:
        """Read lists.

        Args:
            further: arguments of the reader that are no text.

        Raises:
            ConfigError: If an option is unknown or its value is invalid.
            FormatError: If an object of a storage cannot be read in this format.
        """
        if self.format.is_folder and is_url(source):
            message = f"{self.format.name} is read from folders of this machine; copy it to one first"
            raise FormatError(message, file=str(source))
        return self.format.read(source, **self._parse_options(self.format.read_options, "reading"), **further)

    def writer(self, target: str | Path) -> AbstractContextManager[Write]:
        """Open an output for lists.

        Raises:
            ConfigError: As for ``read``; or if the format is a folder and the target is a pipe.
        """
        if self.format.is_folder and str(target) == "-":
            raise ConfigError(f"format {self.format.name} is written as a folder and cannot go to a pipe")
        return self.format.writer(target, **self._parse_options(self.format.write_options, "writing"))

    def find_losses(self, nbest: NBestList) -> set[str]:
        """Return descriptions of what a list loses in a file written with these options.

        Raises:
            ConfigError: As for ``writer``.
        """
        options = self._parse_options(self.format.write_options, "writing")
        further_streams = options.get(self.format.stream_option, ())
        changes = self.format.find_changes(nbest, **options) if self.format.find_changes else set()
        return self.format.find_losses(nbest) - {f"stream {name}" for name in further_streams} | changes

    def _parse_options(self, parsers: Options, purpose: str) -> dict[str, Any]:
        values = {}
        for name, text in self.options.items():
            if name not in parsers:
                known = ", ".join(parsers) or "none"
                raise ConfigError(
                    f"{self.format.name}: unknown option {name!r} for {purpose}; known: {known}"
                )
            try:
                values[name] = parsers[name](text)
            except ValueError as error:
                raise ConfigError(f"{self.format.name}: {name}={text!r}: {error}") from None
        return values

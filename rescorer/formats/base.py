"""Owns what a list format is to the rest: its reader and writer, its options, and what it cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rescorer.errors import ConfigError, InputError
from rescorer.formats.common import Write
from rescorer.formats.io.sniff import Sample
from rescorer.formats.word_times import WORDS_FIELD
from rescorer.types import NBestList

Options = Mapping[str, Callable[[str], Any]]
"""How the text of an option is read, by its name; ValueError where it cannot be."""
ALL_PARTS = frozenset({"context", "reference", "group", "fields", "streams"})


@dataclass(frozen=True, slots=True)
class Format:
    """One way to keep n-best lists in files."""

    name: str
    description: str
    units: str
    """Base and sign of its scores, and whether the format fixes them."""
    read: Callable[..., Iterator[NBestList | InputError]]
    looks_like: Callable[[Sample], str]
    """What says that a file is of this format; empty where nothing does."""
    writer: Callable[..., AbstractContextManager[Write]]
    read_options: Options = field(default_factory=dict)
    write_options: Options = field(default_factory=dict)
    folder: bool = False
    """It is written as a folder."""
    numbered: bool = False
    """It has no ids: lists are called by their places."""
    holds: frozenset[str] = frozenset()
    """Parts of a list, beside ids and texts, that it can hold whole: some of ``ALL_PARTS``."""
    streams: frozenset[str] = frozenset()
    """Streams that it holds, where it does not hold any."""
    further_streams: str = ""
    """What the names of further streams that it holds begin with."""
    list_fields: frozenset[str] = frozenset()
    """Fields of lists that it holds, where it does not hold any."""
    hypothesis_fields: frozenset[str] = frozenset()
    """Fields of hypotheses that it holds, where it does not hold any."""
    word_fields: frozenset[str] = frozenset()
    """What it holds of each object in a hypothesis's field ``words``."""
    changes: Callable[..., set[str]] | None = None
    """What it does not keep of hypotheses that it holds, by the options of writing."""
    stream_option: str = ""
    """The option of writing whose value is a mapping from further streams that it then holds."""
    one_best: bool = False
    """It holds the first hypothesis of a list alone."""

    def find_losses(self, nbest: NBestList) -> set[str]:
        """Parts of a list that it cannot hold."""
        parts = {
            "context": nbest.context,
            "reference": nbest.reference is not None,
            "group": nbest.group,
            "fields": nbest.fields.keys() - self.list_fields,
        }
        lost = {part for part, there in parts.items() if there and part not in self.holds}
        if self.one_best and len(nbest.hypotheses) > 1:
            lost.add("hypotheses after the first")
        lost |= {"id"} if self.numbered else set()
        if "streams" not in self.holds:
            others = nbest.streams.keys() - self.streams
            further = {
                name for name in others if self.further_streams and name.startswith(self.further_streams)
            }
            lost |= {f"stream {name}" for name in others - further}
        if "fields" not in self.holds:
            names = {name for hypothesis in nbest.hypotheses for name in hypothesis.fields}
            lost |= {f"field {name} of hypotheses" for name in names - self.hypothesis_fields}
            if WORDS_FIELD in self.hypothesis_fields:
                lost |= {f"{name} of words" for name in _names_in_words(nbest) - self.word_fields}
        return lost

    def describe_contents(self) -> str:
        """What it can hold of a list, in words."""
        if self.holds == ALL_PARTS:
            return "everything"
        texts = "the first text" if self.one_best else "texts"
        streams = "any stream" if "streams" in self.holds else ", ".join(sorted(self.streams))
        streams += f", {self.further_streams}*" if self.further_streams else ""
        fields = [f"{name} of hypotheses" for name in sorted(self.hypothesis_fields - {WORDS_FIELD})]
        times = ["times of words"] if WORDS_FIELD in self.hypothesis_fields else []
        parts = [*sorted(self.holds - {"streams"}), *sorted(self.list_fields)]
        ids = [] if self.numbered else ["ids"]
        return ", ".join(filter(None, [*ids, texts, streams, *fields, *times, *parts]))


def _names_in_words(nbest: NBestList) -> set[str]:
    """The keys of the objects in the field ``words``."""
    fields = (hypothesis.fields.get(WORDS_FIELD) for hypothesis in nbest.hypotheses)
    words = (word for each in fields if isinstance(each, list) for word in each if isinstance(word, dict))
    return {name for word in words for name in word}


@dataclass(frozen=True, slots=True)
class Choice:
    """A format and the options told with it."""

    format: Format
    options: Mapping[str, str]

    def read(self, source: str | Path) -> Iterator[NBestList | InputError]:
        """Raises ConfigError where an option is not known or does not make sense."""
        return self.format.read(source, **self._parsed(self.format.read_options, "reading"))

    def writer(self, target: str | Path) -> AbstractContextManager[Write]:
        """Raises ConfigError as ``read`` does, and where a folder would go to a pipe."""
        if self.format.folder and str(target) == "-":
            raise ConfigError(f"the format {self.format.name} is written as a folder, not to a pipe")
        return self.format.writer(target, **self._parsed(self.format.write_options, "writing"))

    def find_losses(self, nbest: NBestList) -> set[str]:
        """Parts of a list that a file written with these options does not hold; ConfigError as ``writer``."""
        options = self._parsed(self.format.write_options, "writing")
        further = options.get(self.format.stream_option, ())
        changed = self.format.changes(nbest, **options) if self.format.changes else set()
        return self.format.find_losses(nbest) - {f"stream {name}" for name in further} | changed

    def _parsed(self, known: Options, what: str) -> dict[str, Any]:
        parsed = {}
        for name, text in self.options.items():
            if name not in known:
                names = ", ".join(known) or "none"
                raise ConfigError(f"{self.format.name}: no option {name!r} for {what}; there is {names}")
            try:
                parsed[name] = known[name](text)
            except ValueError as fault:
                raise ConfigError(f"{self.format.name}: {name}={text!r}: {fault}") from None
        return parsed

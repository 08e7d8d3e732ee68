"""Find arrays that look like hypotheses, but that were not read as those of any list.

A reader knows the usual names of hypotheses and keeps fields that it does not know. The beams of a recogniser
under an unknown name are such a field: without a word about them, a list has only the best text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rescorer.errors import pluralise
from rescorer.types import NBestList

TEXT_NAMES = ("text", "transcript", "transcription", "hypothesis", "hyp", "sentence", "generated_text")
"""Names of the texts of hypotheses."""
PART_NAME = re.compile(r"word|token|piece|symbol|char|phone|sentence|paragraph", re.IGNORECASE)
"""Matches the names of arrays that hold the parts of one text."""
MIN_SHARED = 0.5
"""Share of words that a text has in common with the best hypothesis, at least, if it is one of the list."""
MAX_NAME_CHARS = 40
MAX_ITEMS = 100
"""Number of elements of an array that are looked at."""


@dataclass(frozen=True, slots=True)
class UnreadList:
    """A field with an array of texts that are like those of the list that it belongs to."""

    name: str
    size: int
    text_name: str
    """Name of the text in each object; empty if the elements are texts or pairs of text and score."""
    kind: str
    """What the elements are: ``object``, ``text`` or ``pair``."""

    @property
    def description(self) -> str:
        """The field and its elements, for messages: ``a list 'beams' of 4 objects with text``."""
        items = pluralise(self.size, self.kind)
        ending = {"object": f" with {self.text_name}", "pair": " of text and score", "text": ""}[self.kind]
        return f"a list {self.name!r} of {items}{ending}"

    @property
    def map_option(self) -> str:
        """The value of ``--map`` that reads the field from JSON lines."""
        text = f",text={self.text_name}" if self.text_name not in ("", "text") else ""
        return f"hypotheses={self.name}{text}"


def find_unread_lists(lists: Sequence[NBestList]) -> list[UnreadList]:
    """Find the arrays that look like hypotheses in fields of lists and of their first hypotheses.

    An array counts if it has more elements than the list has hypotheses, and half of its texts or more share
    at least half of their words with the first hypothesis, unless they are its parts: its words or sentences.
    """
    found: dict[str, UnreadList] = {}
    for nbest in lists:
        if not nbest.hypotheses:
            continue
        first = nbest.hypotheses[0]
        for name, value in (*_arrays(nbest.fields), *_arrays(first.fields)):
            if name in found or len(value) <= len(nbest.hypotheses):
                continue
            if unread := _describe(name, value, first.text):
                found[name] = unread
    return list(found.values())


def _arrays(fields: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    for name, value in fields.items():
        is_usable = isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()
        is_usable = is_usable and not PART_NAME.search(name)
        if is_usable and isinstance(value, list) and len(value) > 1:
            yield name, value


def _describe(name: str, items: list[Any], best: str) -> UnreadList | None:
    text_name = kind = ""
    if all(isinstance(item, dict) for item in items):
        text_name = next((key for key in TEXT_NAMES if isinstance(items[0].get(key), str)), "")
        texts, kind = [item.get(text_name) for item in items[:MAX_ITEMS]], "object"
    elif all(isinstance(item, list) and len(item) == 2 for item in items):
        texts, kind = [item[0] for item in items[:MAX_ITEMS]], "pair"
    else:
        texts, kind = items[:MAX_ITEMS], "text"
    if (kind == "object" and not text_name) or not all(isinstance(text, str) for text in texts):
        return None
    words = best.lower().split()
    joined = "".join(text.lower() for text in texts)
    if not words or "".join(joined.split()) == "".join(words):  # the parts of the text
        return None
    similar = sum(_shares_words(text.lower().split(), words) for text in texts)
    return UnreadList(name, len(items), text_name, kind) if 2 * similar >= len(texts) else None


def _shares_words(words: list[str], others: list[str]) -> bool:
    shared = len({*words} & {*others})
    return shared >= MIN_SHARED * max(len({*words}), len({*others}))

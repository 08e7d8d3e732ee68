"""Read and write text in which every word has a tag, such as a part of speech.

Two layouts are read, and detected from the first line with text:

    words: the/DT sea/NN was/VBD calm/JJ        columns: the DT
                                                         sea NN
                                                         was VBD
                                                         calm JJ

A line of *words* is a sentence, and the last slash of a word comes before its tag. In *columns*, a line has a
word and its tag, separated by blanks or a tab, and an empty line ends the sentence. Everything else is
refused: other numbers of columns, as in CoNLL's formats, and words without a tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rescorer.errors import ConfigError, FormatError
from rescorer.text import Normaliser
from rescorer_training.corpus import read_lines

LAYOUTS = ("words", "columns")
MAX_SHOWN = 40
MAX_TAG_LENGTH = 200


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """A sentence as it is written, with a tag for each word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(path: Path, layout: str | None = None) -> list[TaggedSentence]:
    """Read all sentences of a file, gzip or plain.

    Args:
        layout: ``words`` or ``columns``; None to detect it.

    Raises:
        ConfigError: the layout is unknown.
        FormatError: the file cannot be read or has no words, or a line does not have the layout; the error
            names the line and what was expected.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"layout is {layout!r:.100}; expected one of {', '.join(LAYOUTS)}")
    sentences: list[TaggedSentence] = []
    pending: list[tuple[str, str]] = []

    def end_sentence() -> None:
        if pending:
            words, tags = zip(*pending, strict=True)
            sentences.append(TaggedSentence(words, tags))
            pending.clear()

    for number, line in enumerate(read_lines(path), start=1):
        tokens = line.split()
        if tokens and layout is None:
            layout = _detect(tokens, path, number)
        try:
            if layout == "columns" and tokens:
                pending.append(_parse_columns(tokens))
            else:
                pending += map(_parse_word, tokens)
                end_sentence()
        except ValueError as error:
            raise FormatError(str(error), file=str(path), line=number) from None
    end_sentence()
    if not sentences:
        raise FormatError("no words; expected words with tags", file=str(path))
    return sentences


def _detect(tokens: Sequence[str], path: Path, number: int) -> str:
    """Return the layout of the first line with words."""
    if all("/" in token for token in tokens):
        return "words"
    if len(tokens) == 2:
        return "columns"
    if len(tokens) > 2 and not any("/" in token for token in tokens):
        found = f"{len(tokens)} columns, or a sentence without tags"
        expected = "expected word/TAG …, or two columns, word TAG (cut -f takes two columns from a table)"
        raise FormatError(f"{found}; {expected}", file=str(path), line=number)
    return "words"  # whose error names the word


def _parse_word(token: str) -> tuple[str, str]:
    word, slash, tag = token.rpartition("/")
    if not (word and slash and tag):
        raise ValueError(f"{token[:MAX_SHOWN]!r} has no tag; expected word/TAG for every word of a line")
    return word, _check_tag(tag)


def _parse_columns(tokens: Sequence[str]) -> tuple[str, str]:
    if len(tokens) != 2:
        shown = " ".join(tokens)[:MAX_SHOWN]
        raise ValueError(f"{len(tokens)} columns in {shown!r}; expected a word and its tag, or an empty line")
    return tokens[0], _check_tag(tokens[1])


def _check_tag(tag: str) -> str:
    if len(tag) > MAX_TAG_LENGTH or not tag.isprintable():
        raise ValueError(f"tag {ascii(tag)[:MAX_SHOWN]}; expected 1 to {MAX_TAG_LENGTH} printable characters")
    return tag


def format_tagged(words: Iterable[str], tags: Iterable[str], layout: str) -> str:
    """Write a sentence in a layout, with the line ends that belong to it.

    >>> format_tagged(["the", "sea"], ["DT", "NN"], "words")
    'the/DT sea/NN\\n'
    """
    pairs = zip(words, tags, strict=True)
    if layout == "words":
        return " ".join(f"{word}/{tag}" for word, tag in pairs) + "\n"
    return "".join(f"{word}\t{tag}\n" for word, tag in pairs) + "\n"


def read_word(word: str, normaliser: Normaliser) -> str:
    """Return how a tagger reads a written word: normalised, or as it is where that leaves no or several
    words.

    So every written word, a punctuation mark too, is one word to the tagger, and has one tag.
    """
    normalised = normaliser.normalise(word)
    return normalised[0] if len(normalised) == 1 else word


def normalise_tagged(
    sentences: Iterable[TaggedSentence], normaliser: Normaliser
) -> Iterator[list[tuple[str, str]]]:
    """Yield the words that language models read, with their tags.

    Written words that the normaliser drops are left out, and all parts of one that it divides get its tag.
    """
    for sentence in sentences:
        yield [
            (part, tag)
            for word, tag in zip(sentence.words, sentence.tags, strict=True)
            for part in normaliser.normalise(word)
        ]

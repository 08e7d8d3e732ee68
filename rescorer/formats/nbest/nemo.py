"""Owns NeMo's beams: ``text<TAB>score`` lines without ids, exactly a beam's size of them an utterance.

The scores are natural log-probabilities; lists are called by their places, from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import Row, Write, build_list, format_texts, parse_number, stream_from_nats
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.score_units import NATURAL
from rescorer.types import NBestList

STREAM = "first_pass"


def read_lists(source: Source, *, beam: int = 0) -> Iterator[NBestList | InputError]:
    """Yields a list for every ``beam`` lines, blank ones counted, with the stream ``first_pass``.

    The last lines, where they are fewer, are a fault: the beam was another, or the file is not whole.

    Raises:
        ConfigError: no beam size is given; nothing in the file tells it.
        FormatError: the source cannot be opened.
    """
    if beam < 1:
        raise ConfigError("NeMo's lists do not tell the beam size: give beam=N")
    return _lists(source, beam)


def _lists(source: Source, beam: int) -> Iterator[NBestList | InputError]:
    file = source_name(source)
    lines = read_lines(source)
    for place in count(1):
        together = list(islice(lines, beam))
        if not together:
            return
        fault = next((text for _, text in together if isinstance(text, FormatError)), None)
        if fault is not None:
            yield fault
        elif len(together) < beam:
            message = f"{len(together)} lines are left for a beam of {beam}: is it another size?"
            yield InvalidList(message, list_id=str(place), file=file, line=together[0][0])
        else:
            rows = [_row(text, line) for line, text in together if isinstance(text, str)]
            yield build_list(str(place), rows, {}, file)


def _row(text: str, line: int) -> Row:
    """A tab in front of the score; a line without one has no score to read."""
    words, _, score = text.rpartition("\t")
    return Row(words, {STREAM: parse_number(score)}, {}, line)


@contextmanager
def writer(target: str | Path, *, beam: int = 0) -> Iterator[Write]:
    """Writes lists of ``beam`` hypotheses, from the stream ``first_pass``.

    Raises:
        ConfigError: no beam size is given.
    """
    if beam < 1:
        raise ConfigError("NeMo's lists are all of one size: give beam=N")
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            if len(nbest.hypotheses) != beam:
                message = f"{len(nbest.hypotheses)} hypotheses; expected {beam}, as in every list"
                raise InvalidList(message, list_id=nbest.id, field="hypotheses")
            format_texts(nbest)  # no line breaks; spaces stay as they are
            scores = stream_from_nats(nbest, STREAM, NATURAL)
            pairs = zip(nbest.hypotheses, scores, strict=True)
            stream.writelines(f"{hypothesis.text}\t{score!r}\n" for hypothesis, score in pairs)

        yield write


def looks_like(sample: Sample) -> str:
    """What says that a file is of this format; empty where nothing does."""
    scores = [line.rpartition("\t")[2] for line in sample.lines if "\t" in line]
    if sample.is_folder or not scores or len(scores) < len(sample.lines):
        return ""
    numbers = all(isinstance(parse_number(score), float) for score in scores)
    return "lines of text, a tab and a number" if numbers else ""

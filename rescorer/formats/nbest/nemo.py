"""Read and write NeMo beams: ``text<TAB>score`` lines without ids, with the beam size as the number of lines
per utterance.

The scores are natural log-probabilities. The id of a list is its position in the file, counted from 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList, pluralise
from rescorer.formats.common import Row, Write, build_list, format_texts, parse_number, stream_from_nats
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.score_units import NATURAL
from rescorer.types import NBestList

STREAM = "first_pass"


def read_lists(source: Source, *, beam: int = 0) -> Iterator[NBestList | InputError]:
    """Yield a list for every ``beam`` lines, including blank ones, with the stream ``first_pass``.

    Yields an error if the last list has too few lines: the beam size is wrong, or the file is truncated.

    Raises:
        ConfigError: If no beam size is given.
        FormatError: If the source cannot be opened.
    """
    if beam < 1:
        raise ConfigError("NeMo files do not state the beam size; give beam=N, as in --format nemo:beam=10")
    return _read_lists(source, beam)


def _read_lists(source: Source, beam: int) -> Iterator[NBestList | InputError]:
    file = source_name(source)
    lines = read_lines(source)
    for position in count(1):
        beam_lines = list(islice(lines, beam))
        if not beam_lines:
            return
        if position == 1 and has_id_column([text for _, text in beam_lines if isinstance(text, str)]):
            found = "its lines have three columns, not text<TAB>score"
            message = f"{found}; give --format table if these are id, text, score"
            raise FormatError(message, file=file, line=beam_lines[0][0])
        error = next((text for _, text in beam_lines if isinstance(text, FormatError)), None)
        if error is not None:
            yield error
        elif len(beam_lines) < beam:
            left = pluralise(len(beam_lines), "line is", "lines are")
            message = f"{left} left for a beam of {beam}; is the beam size right?"
            yield InvalidList(message, list_id=str(position), file=file, line=beam_lines[0][0])
        else:
            rows = [_parse_row(text, line) for line, text in beam_lines if isinstance(text, str)]
            yield build_list(str(position), rows, {}, file)


def _parse_row(text: str, line: int) -> Row:
    words, _, score = text.rpartition("\t")  # a line without a tab is rejected because of its score
    return Row(words, {STREAM: parse_number(score)}, {}, line)


@contextmanager
def writer(target: str | Path, *, beam: int = 0) -> Iterator[Write]:
    """Write lists of exactly ``beam`` hypotheses, with scores from the stream ``first_pass``.

    Raises:
        ConfigError: If no beam size is given.
    """
    if beam < 1:
        raise ConfigError("all lists of a NeMo file have the same size; give beam=N")
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            if len(nbest.hypotheses) != beam:
                expected = pluralise(beam, "hypothesis", "hypotheses")
                message = f"expected {expected} as in every list, got {len(nbest.hypotheses)}"
                raise InvalidList(message, list_id=nbest.id, field="hypotheses")
            format_texts(nbest)  # rejects line breaks; the text is written with its original spaces
            scores = stream_from_nats(nbest, STREAM, NATURAL)
            pairs = zip(nbest.hypotheses, scores, strict=True)
            stream.writelines(f"{hypothesis.text}\t{score!r}\n" for hypothesis, score in pairs)

        yield write


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    scores = [line.rpartition("\t")[2] for line in sample.lines if "\t" in line]
    if sample.is_folder or not scores or len(scores) < len(sample.lines):
        return ""
    all_numbers = all(isinstance(parse_number(score), float) for score in scores) and not has_id_column(
        sample.lines
    )
    return "lines of text, a tab and a number" if all_numbers else ""


def has_id_column(lines: Sequence[str]) -> bool:
    """Whether all lines have a column more than a text, which seldom has a tab, and a score."""
    return bool(lines) and all(line.count("\t") > 1 for line in lines)

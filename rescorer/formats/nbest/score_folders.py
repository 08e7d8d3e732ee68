"""Owns SRILM's extra scores: folders beside the lists, a file an utterance in each, a number a hypothesis.

    lists/u1: -2301.5 -18.42 4 yeah well my sue        rnn/u1: -17.25        durations/u1: 12.5

A line of ``rnn/u1`` belongs to the same line of ``lists/u1`` (nbest-scripts(1): *score-dir*).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rescorer.errors import FormatError
from rescorer.formats.common import parse_finite, stream_from_nats
from rescorer.formats.io.text_io import read_lines_strict
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

LOG10 = Units("10")
"""What SRILM's scores are unless it is said otherwise."""


@dataclass(frozen=True, slots=True)
class ScoreFolder:
    """Where one stream's scores are, and what they mean."""

    folder: Path
    units: Units = LOG10


def score_folders(text: str) -> Mapping[str, ScoreFolder]:
    """Folders by their streams from ``NAME[/BASE[/SIGN]]=DIR;…``, such as ``rnn=rnn;duration/e/cost=dur``.

    Raises:
        ValueError: the text is malformed, names a stream twice, or a base or sign that is none.
    """
    found: dict[str, ScoreFolder] = {}
    for part in text.split(";"):
        said, equals, folder = (piece.strip() for piece in part.partition("="))
        name, *units = said.split("/")
        if not (equals and name and folder) or len(units) > 2 or name in found:
            raise ValueError(f"{part!r}: expected NAME[/BASE[/SIGN]]=DIR;… with each name once")
        found[name] = ScoreFolder(Path(folder), Units(*units) if units else LOG10)  # type: ignore[arg-type]
    return found


def read_scores(scores: Mapping[str, ScoreFolder], list_id: str, size: int) -> dict[str, list[float]]:
    """Each stream of a list, in its folder's units.

    Args:
        size: hypotheses of the list.

    Raises:
        FormatError: a file is missing, has more or fewer numbers, or one that is none.
    """
    return {name: _numbers(each.folder, list_id, size) for name, each in scores.items()}


def _numbers(folder: Path, list_id: str, size: int) -> list[float]:
    path = next((p for p in (folder / list_id, folder / f"{list_id}.gz") if p.is_file()), None)
    if path is None:
        raise FormatError(f"no scores of the list {list_id!r}; expected a file of its name", file=str(folder))
    values: list[float] = []
    for line, text in read_lines_strict(path):
        if not text.strip():
            continue
        try:
            values.append(parse_finite(text.strip()))
        except ValueError:
            message = f"{text.strip()[:40]!r}: expected one finite number"
            raise FormatError(message, file=str(path), line=line) from None
    if len(values) != size:
        raise FormatError(f"{len(values)} numbers for the {size} hypotheses of the list", file=str(path))
    return values


def score_lines(scores: Mapping[str, ScoreFolder], nbest: NBestList) -> dict[Path, list[str]]:
    """The lines of a list's file in each folder.

    Raises:
        InvalidList: the list lacks one of the streams.
    """
    return {
        each.folder: [repr(value) for value in stream_from_nats(nbest, name, each.units)]
        for name, each in scores.items()
    }

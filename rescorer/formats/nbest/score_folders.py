"""Read and write SRILM score folders: additional scores, with one file per utterance in each folder.

    lists/u1: -2301.5 -18.42 4 yeah well my sue        rnn/u1: -17.25        durations/u1: 12.5

The n-th line of ``rnn/u1`` is the score of the n-th hypothesis in ``lists/u1`` (see *score-dir* in
nbest-scripts(1)).
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
"""Default units of SRILM scores."""


@dataclass(frozen=True, slots=True)
class ScoreFolder:
    """Folder with the scores of one stream, and their units."""

    folder: Path
    units: Units = LOG10


def parse_score_folders(text: str) -> Mapping[str, ScoreFolder]:
    """Parse ``NAME[/BASE[/SIGN]]=DIR;…``, such as ``rnn=rnn;duration/e/cost=dur``, into folders by stream.

    Raises:
        ValueError: If the text is malformed, repeats a stream, or names an unknown base or sign.
    """
    folders: dict[str, ScoreFolder] = {}
    for part in text.split(";"):
        stream, equals, folder = (piece.strip() for piece in part.partition("="))
        name, *units = stream.split("/")
        if not (equals and name and folder) or len(units) > 2 or name in folders:
            raise ValueError(f"{part!r}: expected NAME[/BASE[/SIGN]]=DIR;… with each name once")
        folders[name] = ScoreFolder(Path(folder), Units(*units) if units else LOG10)  # type: ignore[arg-type]
    return folders


def read_scores(scores: Mapping[str, ScoreFolder], list_id: str, size: int) -> dict[str, list[float]]:
    """Return the scores of one list by stream, in the units of each folder.

    Args:
        size: Number of hypotheses in the list.

    Raises:
        FormatError: If a file is missing, is not a column of finite numbers, or has the wrong number of
            lines.
    """
    return {name: _read_numbers(score.folder, list_id, size) for name, score in scores.items()}


def _read_numbers(folder: Path, list_id: str, size: int) -> list[float]:
    path = next((p for p in (folder / list_id, folder / f"{list_id}.gz") if p.is_file()), None)
    if path is None:
        raise FormatError(f"no scores for list {list_id!r}; expected a file of that name", file=str(folder))
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
        message = f"expected {size} numbers, one per hypothesis of the list, got {len(values)}"
        raise FormatError(message, file=str(path))
    return values


def format_scores(scores: Mapping[str, ScoreFolder], nbest: NBestList) -> dict[Path, list[str]]:
    """Return the lines of a list's score file in each folder.

    Raises:
        InvalidList: If the list lacks one of the streams.
    """
    return {
        score.folder: [repr(value) for value in stream_from_nats(nbest, name, score.units)]
        for name, score in scores.items()
    }

"""Say what to do when the disk is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rescorer.errors import ScoringError

FEWER_PAIRS = ", or count fewer pairs: a smaller --window or a larger --min-count"


@contextmanager
def report_full_disk(folder: Path, content: str, advice: str = "") -> Iterator[None]:
    """Turn an error in writing to a folder into one that says what to do.

    Args:
        content: what is written, in the plural: ``co-occurrences``.
        advice: continues "choose another folder".

    Raises:
        ScoringError: a file cannot be written, for example because the disk is full.
    """
    try:
        yield
    except OSError as error:
        raise ScoringError(
            f"{folder}: {content} cannot be written: {error.strerror or error}. Free disk space, or choose "
            f"another folder{advice}"
        ) from None

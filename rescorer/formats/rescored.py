"""Owns how re-ranked lists are written: whole, as JSON lines, or the best of each in a one-best format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rescorer.errors import ConfigError, InvalidList
from rescorer.formats.jsonlines import rescored_line
from rescorer.formats.registry import FORMATS, choose
from rescorer.formats.rows import Write
from rescorer.formats.source import open_output
from rescorer.types import Hypothesis, NBestList, RescoredList

WHOLE = "jsonl"
ONE_BEST = tuple(name for name, each in FORMATS.items() if each.one_best)


@contextmanager
def rescored_writer(name: str, target: str | Path) -> Iterator[Callable[[RescoredList], None]]:
    """Writes a re-ranked list a call; raises InvalidList, and writes none of it, where it does not fit.

    A ctm takes the times of the best hypothesis from its field ``words``.

    Args:
        name: ``jsonl``, ``trn`` or ``ctm``.
        target: file, compressed where its name ends in ``.gz``; ``-`` is standard output.

    Raises:
        ConfigError: it is another name.
    """
    if name == WHOLE:
        with open_output(target) as stream:
            yield lambda rescored: print(rescored_line(rescored), file=stream)
    elif name in ONE_BEST:
        with choose(name).writer(target) as write:
            yield lambda rescored: _write_best(rescored, write)
    else:
        raise ConfigError(f"re-ranked lists are written as {', '.join((WHOLE, *ONE_BEST))}, not as {name}")


def _write_best(rescored: RescoredList, write: Write) -> None:
    best = rescored.best
    try:
        write(NBestList(rescored.id, (Hypothesis(best.text, best.fields),)))
    except InvalidList as fault:
        # The writer saw one hypothesis; the client sent a list.
        index = None if fault.hypothesis is None else best.original_rank
        raise InvalidList(fault.message, list_id=rescored.id, hypothesis=index, field=fault.field) from None

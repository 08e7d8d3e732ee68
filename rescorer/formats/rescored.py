"""Owns how re-ranked lists are written: whole, as JSON lines, or the best of each in a one-best format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.errors import ConfigError, InvalidList
from rescorer.formats.common import Write
from rescorer.formats.io.text_io import open_output
from rescorer.formats.nbest.jsonlines_output import encode_rescored_list
from rescorer.formats.registry import FORMATS, choose
from rescorer.types import Hypothesis, NBestList, RescoredList

WHOLE = "jsonl"
TOLD_OF_LISTS, TOLD_OF_HYPOTHESES = {"model", "weights"}, {"total", "components"}
"""What tells lists that were re-ranked, in a file that is read as lists: fields of these names."""
RESCORED_LISTS_MESSAGE = (
    "these lists are what `rescorer rescore` wrote, with totals and components in the place of scores"
)
ONE_BEST = tuple(name for name, each in FORMATS.items() if each.one_best)


class Best(NamedTuple):
    """The best hypothesis of a re-ranked list, as a list of its own."""

    nbest: NBestList
    original_rank: int


def get_renderer(name: str) -> Callable[[RescoredList], Any]:
    """What makes of a re-ranked list that which ``rescored_writer`` of this name takes.

    Raises:
        ConfigError: it is another name.
    """
    if name == WHOLE:
        return encode_rescored_list
    if name in ONE_BEST:
        return extract_best
    raise ConfigError(f"re-ranked lists are written as {', '.join((WHOLE, *ONE_BEST))}, not as {name}")


def extract_best(rescored: RescoredList) -> Best:
    best = rescored.best
    hypotheses = (Hypothesis(best.text, best.fields),)
    alone = NBestList(rescored.id, hypotheses, group=rescored.group, fields=rescored.fields)
    return Best(alone, best.original_rank)


def is_rescored(nbest: NBestList) -> bool:
    """Whether a list was read from a file of re-ranked ones."""
    return nbest.fields.keys() >= TOLD_OF_LISTS and nbest.hypotheses[0].fields.keys() >= TOLD_OF_HYPOTHESES


def check_writable(name: str, lists: Sequence[NBestList]) -> None:
    """Raises ConfigError where none of the lists could be written, whatever hypothesis came to be best."""
    if name == WHOLE:
        return
    fault: InvalidList | None = None
    with rescored_writer(name, os.devnull) as write:
        for nbest in lists:
            for rank, each in enumerate(nbest.hypotheses):
                if each.text.strip():  # no words need no times
                    alone = NBestList(nbest.id, (each,), group=nbest.group, fields=nbest.fields)
                    try:
                        write(Best(alone, rank))
                        return
                    except InvalidList as unfit:
                        fault = fault or unfit
    if fault is not None:
        raise ConfigError(f"{name} can hold none of the first {len(lists)} lists: {fault}")


@contextmanager
def rescored_writer(name: str, target: str | Path) -> Iterator[Callable[[Any], None]]:
    """Writes a rendered list a call; raises InvalidList, and writes none of it, where it does not fit.

    A ctm takes the times of the best hypothesis from its field ``words``, an stm those of the segment from
    the list's fields.

    Args:
        name: ``jsonl``, ``trn``, ``ctm`` or ``stm``.
        target: file, compressed where its name ends in ``.gz``; ``-`` is standard output.
    """
    if name == WHOLE:
        with open_output(target) as stream:
            yield lambda line: print(line, file=stream)
    else:
        with choose(name).writer(target) as write:
            yield lambda best: _write_best(best, write)


def _write_best(best: Best, write: Write) -> None:
    try:
        write(best.nbest)
    except InvalidList as fault:
        # The writer saw one hypothesis; the client sent a list.
        index = None if fault.hypothesis is None else best.original_rank
        raise InvalidList(fault.message, list_id=best.nbest.id, hypothesis=index, field=fault.field) from None

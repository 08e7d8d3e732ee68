"""Write rescored lists: as JSON lines or parquet, or only the best hypothesis of each in another format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.errors import ConfigError, InvalidList
from rescorer.formats import nemo, rescored_tables
from rescorer.formats.common import Write
from rescorer.formats.fields import TIME_DECIMALS, WORDS_FIELD
from rescorer.formats.io.text_io import open_output
from rescorer.formats.jsonlines import CONFIDENCE_DECIMALS, encode_rankings
from rescorer.formats.registry import FORMATS, choose
from rescorer.ranking import Ranking
from rescorer.types import Hypothesis, NBestList, RescoredHypothesis, RescoredList, Weights

JSON_LINES, PARQUET = "jsonl", "parquet"
WHOLE_LISTS = (JSON_LINES, PARQUET)
"""Formats that can hold all hypotheses of a rescored list, with their scores."""
ONE_BEST = tuple(name for name, format_ in FORMATS.items() if format_.one_best)
FILLED_MANIFEST = f"{nemo.FORMAT}:manifest="
"""A format whose name is followed by that of a file: the NeMo manifest to fill with the best hypotheses."""
RESCORED_LIST_FIELDS = frozenset({"model", "weights"})
RESCORED_HYPOTHESIS_FIELDS = frozenset({"total", "components"})
"""Hypothesis fields that, with the list fields above, identify the output of ``rescorer rescore``."""
RESCORED_LISTS_MESSAGE = (
    "these lists are the output of `rescorer rescore`, with totals and components instead of scores"
)


class OneBestList(NamedTuple):
    """The best hypothesis of a rescored list, as a list."""

    nbest: NBestList
    original_rank: int
    """0-based index of the hypothesis in the original list."""


Renderer = Callable[[Sequence[Ranking], Weights, str], Sequence[Any]]
"""Converts ranked lists, their weights and the label of their bundle to what a writer of results takes for
each of them. Many lists at once take less time."""


def get_renderer(name: str, *, best_only: bool = False) -> Renderer:
    """Return the function that converts ranked lists to what the writer of this format takes.

    Args:
        name: the format, as for ``rescored_writer``.
        best_only: whether to leave out all hypotheses but the best one. Formats of ``ONE_BEST`` always do.

    Raises:
        ConfigError: the format cannot hold rescored lists.
    """
    if name in ONE_BEST or name.startswith(FILLED_MANIFEST):
        return render_best
    if name not in WHOLE_LISTS:
        known = ", ".join((*WHOLE_LISTS, *ONE_BEST, f"{FILLED_MANIFEST}FILE"))
        raise ConfigError(f"cannot write rescored lists as {name}; choose {known}")
    render: Renderer = encode_rankings if name == JSON_LINES else rescored_tables.render
    return partial(_render_first, render) if best_only else render


def _render_first(
    render: Renderer, rankings: Sequence[Ranking], weights: Weights, model: str
) -> Sequence[Any]:
    """Render lists with their best hypotheses alone; posteriors are still those among all hypotheses."""
    return render([replace(one, order=one.order[:1]) for one in rankings], weights, model)


def render_best(rankings: Sequence[Ranking], weights: Weights, model: str) -> list[OneBestList]:
    """Return the decision of each ranked list; see ``extract_best``."""
    return [extract_best(one.to_rescored_list(weights, model)) for one in rankings]


def extract_best(rescored: RescoredList) -> OneBestList:
    """Return the decision of a rescored list: the consensus if there is one, or else the best hypothesis.

    The best hypothesis keeps its fields, but not its scores. If the list has calibrated confidences of words,
    these are added to the times of words.
    """
    best = rescored.best
    if rescored.decision is not None and rescored.decision.kind == "confusion_network":
        decided = build_consensus(rescored)
    else:
        decided = Hypothesis(best.text, _add_confidences(best))
    nbest = NBestList(rescored.id, (decided,), group=rescored.group, fields=rescored.fields)
    return OneBestList(nbest, best.original_rank)


def build_consensus(rescored: RescoredList) -> Hypothesis:
    """Return the consensus of a list as a hypothesis, with times and posteriors in the field ``words``.

    If a hypothesis has exactly the words of the consensus, its text is taken. Otherwise each word is spelt as
    in the first hypothesis that has the word at this place.
    """
    same = [h.text for h in rescored.hypotheses if h.original_rank == rescored.consensus_rank]
    words = rescored.consensus
    times = [
        {
            "word": word.surface,
            "start_s": round(word.start_s, TIME_DECIMALS),
            "duration_s": round(word.duration_s, TIME_DECIMALS),
            "confidence": round(word.posterior, TIME_DECIMALS),
        }
        for word in words
        if word.start_s is not None and word.duration_s is not None
    ]
    fields = {WORDS_FIELD: times} if len(times) == len(words) else {}
    return Hypothesis(same[0] if same else " ".join(word.surface for word in words), fields)


def _add_confidences(best: RescoredHypothesis) -> Mapping[str, Any]:
    """Return the fields of a hypothesis. If its field ``words`` fits the text, add confidences there."""
    entries = best.fields.get(WORDS_FIELD)
    written = [word.word for word in best.word_confidences]
    if not written or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return best.fields
    if [entry.get("word") for entry in entries] != written:
        return best.fields
    words = [
        entry
        if word.confidence is None
        else {**entry, "confidence": round(word.confidence, CONFIDENCE_DECIMALS)}
        for entry, word in zip(entries, best.word_confidences, strict=True)
    ]
    return {**best.fields, WORDS_FIELD: words}


def is_rescored(nbest: NBestList) -> bool:
    """Whether a list was read from the output of ``rescorer rescore``."""
    hypothesis_fields = nbest.hypotheses[0].fields.keys()
    return nbest.fields.keys() >= RESCORED_LIST_FIELDS and hypothesis_fields >= RESCORED_HYPOTHESIS_FIELDS


def check_writable(name: str, lists: Sequence[NBestList]) -> None:
    """Check, before anything is scored, that a format can hold at least one hypothesis of the lists.

    Raises:
        ConfigError: the format can hold none of the hypotheses.
    """
    if name in WHOLE_LISTS:
        return
    first_error: InvalidList | None = None
    with rescored_writer(name, os.devnull) as write:
        for nbest in lists:
            for rank, hypothesis in enumerate(nbest.hypotheses):
                if hypothesis.text.strip():  # an empty text needs no times, so it proves nothing
                    candidate = NBestList(nbest.id, (hypothesis,), group=nbest.group, fields=nbest.fields)
                    try:
                        write(OneBestList(candidate, rank))
                        return
                    except InvalidList as error:
                        first_error = first_error or error
    if first_error is not None:
        raise ConfigError(f"{name} cannot hold any of the first {len(lists)} lists: {first_error}")


@contextmanager
def rescored_writer(name: str, target: str | Path) -> Iterator[Callable[[Any], None]]:
    """Open an output for rescored lists; yield the function that writes a list after ``get_renderer(name)``.

    The function raises InvalidList, and writes nothing, if the list does not fit the format. The word times
    of a ctm come from the field ``words`` of the best hypothesis, or from the consensus. The segment times of
    an stm come from the fields of the list.

    Args:
        name: ``jsonl``, ``parquet``, ``trn``, ``ctm``, ``stm``, or ``manifest:manifest=FILE``.
        target: file, compressed if its name ends with ``.gz``; ``-`` is standard output.
    """
    if name == JSON_LINES:
        with open_output(target) as stream:
            yield lambda line: print(line, file=stream)
    elif name == PARQUET:
        with rescored_tables.writer(target) as write_row:
            yield write_row
    else:
        with choose(name).writer(target) as write:
            yield lambda best: _write_best(best, write)


def _write_best(best: OneBestList, write: Write) -> None:
    try:
        write(best.nbest)
    except InvalidList as error:
        # The writer saw a single hypothesis: restore its index in the client's list.
        index = None if error.hypothesis is None else best.original_rank
        raise InvalidList(error.message, list_id=best.nbest.id, hypothesis=index, field=error.field) from None

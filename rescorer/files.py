"""Owns the file command: lists streamed in, batched by a budget of words, re-ranked and streamed out.

Memory is bounded by one batch, whatever the file's length. A list that cannot be read or scored goes to
the rejects with its reason, and the rest goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tqdm import tqdm

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.jsonlines import nbest_line
from rescorer.phases import Phase, phase, timed
from rescorer.pipeline import Rescorer
from rescorer.types import NBestList, RescoredList, Weights


class Writer(Protocol):
    """Takes text; a file, or something that acts like one."""

    def write(self, text: str, /) -> object: ...


@dataclass(slots=True)
class FileSummary:
    """What became of a file."""

    lists: int = 0
    hypotheses: int = 0
    words: int = 0
    """Canonical words of all hypotheses."""
    changed: int = 0
    """Lists whose best hypothesis is not the one that came first."""
    rejected: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def rescore_lists(
    rescorer: Rescorer,
    lists: Iterable[NBestList | InputError],
    write: Callable[[RescoredList], object],
    rejects: Writer,
    weights: Weights | None = None,
    *,
    merge: bool = False,
    progress: bool = False,
) -> FileSummary:
    """Re-ranks a stream of lists.

    Args:
        lists: what a reader yields: lists, and faults in their places.
        write: takes each re-ranked list; where its format cannot hold it, raises InvalidList and writes none
            of it.
        rejects: takes one JSON line a rejected list.
        progress: show a bar on stderr.

    Raises:
        ConfigError: the weights do not fit the bundle.
    """
    summary = FileSummary()
    with tqdm(desc="rescoring", unit=" lists", disable=not progress) as bar:
        for batch in word_batches(timed(lists, Phase.PARSE), rescorer.max_batch_words):
            good = [item for item in batch if isinstance(item, NBestList)]
            answers = iter(rescorer.rescore_each(good, weights, merge=merge))
            for item in batch:
                answer = item if isinstance(item, InputError) else _written(next(answers), write)
                if isinstance(answer, InputError):
                    summary.rejected += 1
                    rejects.write(reject_line(answer, item) + "\n")
                    continue
                summary.lists += 1
                summary.hypotheses += len(answer.hypotheses)
                summary.words += sum(int(h.components["words"]) for h in answer.hypotheses)
                summary.changed += 0 not in (answer.best.merged_ranks or (answer.best.original_rank,))
            bar.update(len(batch))
            bar.set_postfix_str(f"{summary.words:,} words", refresh=False)
    return summary


def _written(
    answer: RescoredList | InputError, write: Callable[[RescoredList], object]
) -> RescoredList | InputError:
    """The answer, or why it could not be written."""
    if isinstance(answer, RescoredList):
        try:
            with phase(Phase.WRITE):
                write(answer)
        except InvalidList as unfit:
            return unfit
    return answer


def word_batches(
    lists: Iterable[NBestList | InputError], max_words: int
) -> Iterator[list[NBestList | InputError]]:
    """Lists in their order, in batches of about ``max_words`` words (one list at least)."""
    batch: list[NBestList | InputError] = []
    words = 0
    for item in lists:
        batch.append(item)
        if isinstance(item, NBestList):
            words += sum(hypothesis.text.count(" ") + 2 for hypothesis in item.hypotheses)
        if words >= max_words or len(batch) >= max_words:
            yield batch
            batch, words = [], 0
    if batch:
        yield batch


def reject_line(fault: InputError, item: NBestList | InputError) -> str:
    """What was wrong and where, and the list itself where it could be read."""
    record: dict[str, Any] = {"reason": str(fault)}
    if isinstance(fault, FormatError):
        record |= {"file": fault.file, "line": fault.line, "field": fault.field}
    if isinstance(fault, InvalidList):
        record |= {"id": fault.list_id, "hypothesis": fault.hypothesis, "field": fault.field}
    line = json.dumps(record, ensure_ascii=False)
    if isinstance(item, NBestList):
        line = f'{line[:-1]}, "list": {nbest_line(item)}}}'
    return line

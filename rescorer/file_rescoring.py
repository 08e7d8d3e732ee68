"""Owns the file command: lists streamed in, batched by a budget of words, re-ranked and streamed out.

Memory is bounded by one batch, whatever the file's length. A list that cannot be read or scored goes to
the rejects with its reason, and the rest goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from rescorer.errors import InputError, InvalidList
from rescorer.formats.nbest.jsonlines_output import encode_list, encode_rescored_list
from rescorer.pipeline import Rescorer
from rescorer.profiling import Phase, phase, time_items
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


@dataclass(frozen=True, slots=True)
class Rendered:
    """An answer as the writer takes it, and what the summary counts of it."""

    content: Any
    hypotheses: int
    words: int
    changed: bool
    """Whether the best hypothesis is not the one that came first."""


Answers = list[Rendered | InvalidList]
"""Of a batch, one a list."""
Batch = list[NBestList | InputError]
"""What a reader yields: lists, and faults in their places."""


@dataclass(frozen=True, slots=True)
class Rescoring:
    """What becomes of each batch of lists, in this process.

    Args:
        render: makes of a re-ranked list what will be written.
    """

    rescorer: Rescorer
    weights: Weights | None = None
    merge: bool = False
    render: Callable[[RescoredList], Any] = encode_rescored_list

    @property
    def batch_words(self) -> int:
        return self.rescorer.max_batch_words

    def __call__(self, lists: Sequence[NBestList]) -> Answers:
        """Raises ConfigError where the weights do not fit the bundle."""
        return [
            each if isinstance(each, InvalidList) else self._rendered(each)
            for each in self.rescorer.rescore_each(lists, self.weights, merge=self.merge)
        ]

    def answered(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Answers]]:
        """Each batch with the answers to its lists."""
        for batch in batches:
            yield batch, self(lists_of(batch))

    def _rendered(self, answer: RescoredList) -> Rendered:
        with phase(Phase.WRITE):
            content = self.render(answer)
        words = sum(int(each.components["words"]) for each in answer.hypotheses)
        changed = 0 not in (answer.best.merged_ranks or (answer.best.original_rank,))
        return Rendered(content, len(answer.hypotheses), words, changed)


class Scorer(Protocol):
    """A ``Rescoring``, or several at work elsewhere."""

    @property
    def batch_words(self) -> int: ...

    def answered(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Answers]]: ...


def rescore_lists(
    scorer: Scorer,
    lists: Iterable[NBestList | InputError],
    write: Callable[[Any], object],
    rejects: Writer,
    *,
    on_batch: Callable[[int, FileSummary], object] = lambda n_items, summary: None,
) -> FileSummary:
    """Re-ranks a stream of lists.

    Args:
        lists: what a reader yields: lists, and faults in their places.
        write: takes the rendered lists, in their order; where its format cannot hold one, raises InvalidList
            and writes none of it.
        rejects: takes one JSON line a rejected list.
        on_batch: called after each batch with its number of items and the summary so far.

    Raises:
        ConfigError: the weights do not fit the bundle.
    """
    summary = FileSummary()
    batches = word_batches(time_items(lists, Phase.PARSE), scorer.batch_words)
    for batch, answers in scorer.answered(batches):
        rest = iter(answers)
        for item in batch:
            answer = item if isinstance(item, InputError) else _written(next(rest), write)
            if isinstance(answer, InputError):
                summary.rejected += 1
                rejects.write(reject_line(answer, item) + "\n")
                continue
            summary.lists += 1
            summary.hypotheses += answer.hypotheses
            summary.words += answer.words
            summary.changed += answer.changed
        on_batch(len(batch), summary)
    return summary


def _written(answer: Rendered | InvalidList, write: Callable[[Any], object]) -> Rendered | InvalidList:
    """The answer, or why it could not be written."""
    if isinstance(answer, Rendered):
        try:
            with phase(Phase.WRITE):
                write(answer.content)
        except InvalidList as unfit:
            return unfit
    return answer


def lists_of(batch: Batch) -> list[NBestList]:
    return [item for item in batch if isinstance(item, NBestList)]


def word_batches(lists: Iterable[NBestList | InputError], max_words: int) -> Iterator[Batch]:
    """Lists in their order, in batches of about ``max_words`` words (one list at least)."""
    batch: Batch = []
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
    """What was wrong and where, and the list itself where it could be read; the same keys in every line."""
    place = {name: getattr(fault, name, None) for name in ("hypothesis", "field", "file", "line")}
    record = {
        "reason": str(fault),
        "id": item.id if isinstance(item, NBestList) else getattr(fault, "list_id", None) or None,
        **{name: None if value == "" else value for name, value in place.items()},
    }
    line = json.dumps(record, ensure_ascii=False)
    return f'{line[:-1]}, "list": {encode_list(item) if isinstance(item, NBestList) else "null"}}}'

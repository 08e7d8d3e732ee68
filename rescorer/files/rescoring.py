"""Re-rank streams of n-best lists: read, batch, rescore and write, with memory bounded by one batch.

A list that cannot be read, scored or written goes to the rejects with the reason; other lists are unaffected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Protocol

from rescorer.errors import InputError, InvalidList
from rescorer.formats.nbest.jsonlines_output import encode_list, encode_ranking
from rescorer.formats.rescored import Renderer
from rescorer.options import RescoreOptions
from rescorer.pipeline import Rescorer
from rescorer.ranking import Ranking, decided_text
from rescorer.runtime.profiling import Phase, phase, time_items
from rescorer.score_combination import WORDS
from rescorer.types import NBestList, Weights


class Writer(Protocol):
    """A text file, or an object with the same ``write`` method."""

    def write(self, text: str, /) -> object: ...


@dataclass(slots=True)
class FileSummary:
    """Counts of what was rescored and rejected."""

    lists: int = 0
    """Number of lists that were written."""
    hypotheses: int = 0
    words: int = 0
    """Number of canonical words in all hypotheses."""
    changed: int = 0
    """Number of lists whose best hypothesis was not the first of the input list."""
    rejected: int = 0
    """Number of lists that could not be read, scored or written."""
    from_lower_half: int = 0
    """Number of lists whose best hypothesis was in the lower half of the input list."""

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RenderedList:
    """A re-ranked list in the form that the writer expects, and its counts for the summary."""

    content: Any
    hypotheses: int
    words: int
    changed: bool
    """Whether the best hypothesis was not the first of the input list."""
    from_lower_half: bool
    """Whether the best hypothesis was in the lower half of the input list."""
    text: str
    """What was decided: the best hypothesis, or the consensus."""
    confidence: float = 1.0
    """Confidence in the best hypothesis; 1 if the weights are not calibrated."""


Batch = list[NBestList | InputError]
"""Items yielded by a reader: lists, and errors in place of unreadable lists."""
BatchResults = list[RenderedList | InvalidList]
"""One result per list of a batch; items of the batch that are errors have no result."""


class BatchRescorer(Protocol):
    """Rescores batches of lists, in this process (``LocalRescorer``) or in others."""

    @property
    def batch_words(self) -> int:
        """Approximate number of words per batch."""

    @property
    def count(self) -> int:
        """Number of batches that are rescored at the same time."""

    def rescore_batches(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, BatchResults]]:
        """Yield each batch with its results, in input order."""


@dataclass(frozen=True, slots=True)
class LocalRescorer:
    """Rescores batches of lists in this process.

    Args:
        render: converts a ranked list to the form that the writer expects.
    """

    rescorer: Rescorer
    options: RescoreOptions = field(default_factory=RescoreOptions)
    render: Renderer = encode_ranking

    @property
    def batch_words(self) -> int:
        return self.rescorer.max_batch_words

    @property
    def count(self) -> int:
        return 1

    def rescore_batches(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, BatchResults]]:
        for batch in batches:
            yield batch, self.rescore(select_lists(batch))

    def rescore(self, lists: Sequence[NBestList]) -> BatchResults:
        """Rescore and render some lists.

        Raises:
            ConfigError: the weights do not fit the bundle.
        """
        bound = self.rescorer.ranker.bind(self.options)
        results = self.rescorer.rank_each(lists, bound)
        with phase(Phase.WRITE):
            return [
                result if isinstance(result, InvalidList) else self._render(result, bound.weights)
                for result in results
            ]

    def _render(self, ranking: Ranking, weights: Weights) -> RenderedList:
        order = list(ranking.order)
        best = ranking.members[order[0]] or (order[0],)
        last = max(chain(order, *ranking.members))
        return RenderedList(
            content=self.render(ranking, weights, self.rescorer.bundle.label),
            hypotheses=len(order),
            words=int(ranking.components[WORDS][order].sum()),
            changed=0 not in best,
            from_lower_half=2 * min(best) > last,
            text=decided_text(ranking),
            confidence=1.0 if ranking.confidence is None else ranking.confidence,
        )


def rescore_lists(
    rescorer: BatchRescorer,
    lists: Iterable[NBestList | InputError],
    write: Callable[[Any], object],
    rejects: Writer,
    *,
    on_batch: Callable[[int, FileSummary], object] = lambda n_items, summary: None,
) -> FileSummary:
    """Re-rank a stream of lists.

    Args:
        lists: items yielded by a reader: lists, and errors in place of unreadable lists.
        write: writes a rendered list; raises InvalidList, and writes nothing, if its format cannot hold it.
            Called in input order.
        rejects: receives one line of JSON per rejected list.
        on_batch: called after each batch with its number of items and the summary so far.

    Raises:
        ConfigError: the weights do not fit the bundle.
    """
    summary = FileSummary()
    batches = cut_batches(time_items(lists, Phase.PARSE), rescorer.batch_words)
    for batch, batch_results in rescorer.rescore_batches(batches):
        results = iter(batch_results)
        for item in batch:
            result = item if isinstance(item, InputError) else _try_write(next(results), write)
            if isinstance(result, InputError):
                summary.rejected += 1
                rejects.write(format_reject(result, item) + "\n")
                continue
            summary.lists += 1
            summary.hypotheses += result.hypotheses
            summary.words += result.words
            summary.changed += result.changed
            summary.from_lower_half += result.from_lower_half
        on_batch(len(batch), summary)
    return summary


def _try_write(
    result: RenderedList | InvalidList, write: Callable[[Any], object]
) -> RenderedList | InvalidList:
    """Write a result unless it is an error; return it, or the error if it cannot be written."""
    if isinstance(result, RenderedList):
        try:
            with phase(Phase.WRITE):
                write(result.content)
        except InvalidList as error:
            return error
    return result


def select_lists(batch: Batch) -> list[NBestList]:
    """Return the lists of a batch without its errors."""
    return [item for item in batch if isinstance(item, NBestList)]


def cut_batches(items: Iterable[NBestList | InputError], max_words: int) -> Iterator[Batch]:
    """Yield the items in batches of about ``max_words`` words, with at least one item each."""
    batch: Batch = []
    words = 0
    for item in items:
        batch.append(item)
        words += count_words(item)
        if words >= max_words or len(batch) >= max_words:
            yield batch
            batch, words = [], 0
    if batch:
        yield batch


def count_words(item: NBestList | InputError) -> int:
    """Number of words and sentence ends of the hypotheses of a list, about; 0 for an error."""
    if isinstance(item, InputError):
        return 0
    return sum(hypothesis.text.count(" ") + 2 for hypothesis in item.hypotheses)


def format_reject(error: InputError, item: NBestList | InputError) -> str:
    """Return a line of JSON with the error, its location, and the list if it could be read.

    All lines have the same keys.
    """
    place = {name: getattr(error, name, None) for name in ("hypothesis", "field", "file", "line")}
    record = {
        "reason": str(error),
        "id": item.id if isinstance(item, NBestList) else getattr(error, "list_id", None) or None,
        **{name: None if value == "" else value for name, value in place.items()},
    }
    line = json.dumps(record, ensure_ascii=False)
    return f'{line[:-1]}, "list": {encode_list(item) if isinstance(item, NBestList) else "null"}}}'

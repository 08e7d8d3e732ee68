"""Work items: parts of lists that wait to be scored, with what only a service knows of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rescorer.errors import DeadlineExceeded
from rescorer.lm.contexts.context_stats import ContextWords
from rescorer.scoring.batch import Batch, Part, ScoredPart
from rescorer.service.observability.timings import PhaseTiming


class ScoredBatch(NamedTuple):
    """A batch that has its scores, and what they took."""

    batch: Batch
    timings: Sequence[PhaseTiming]
    """Phases of the batch, starting with building its trie."""
    context_words: ContextWords
    """Context words that the networks needed."""


class ItemScores(NamedTuple):
    """The scores of one work item."""

    part: ScoredPart
    scored: ScoredBatch
    queue: PhaseTiming
    """Time in the queue, until scoring of the batch began."""


@dataclass(eq=False, slots=True)
class WorkItem:
    """A part of a list that waits to be scored."""

    part: Part
    label: str
    """The bundle that scores it, as ``name/version``."""
    deadline: float
    """Time after which the scores are of no use, in ``time.monotonic`` seconds."""
    models: tuple[str, ...] = ()
    """Names of the models that score the item; empty: all."""
    request_id: str = ""
    queued_at: float = field(default_factory=time.perf_counter)
    """Time of creation, in ``time.perf_counter`` seconds."""
    future: asyncio.Future[ItemScores] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Receives the scores."""
    leave_queue: Callable[[], None] = lambda: None
    """Removes the item from the queue, if it still waits there."""

    @property
    def cost(self) -> int:
        """Number of tokens: words, ends of sentences and context."""
        return self.part.cost

    @property
    def kind(self) -> tuple[str, tuple[str, ...]]:
        """Bundle and models; only items of the same kind can be scored together."""
        return self.label, self.models

    def is_finished(self) -> bool:
        """Whether the item is scored, failed or cancelled; an item past its deadline fails now."""
        if not self.future.done() and time.monotonic() >= self.deadline:
            self.fail(DeadlineExceeded("the deadline passed before scoring began"))
        return self.future.done()

    def fail(self, error: Exception) -> None:
        """Finish the item with an error, unless it is already finished."""
        if not self.future.done():
            self.future.set_exception(error)
            # Mark the exception as retrieved: if the caller is gone, asyncio would log it.
            self.future.exception()

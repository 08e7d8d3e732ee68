"""Keep the shards that are still to run, and give a shard up that ends its workers again and again."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from rescorer.errors import InputError, RescorerError, ScoringError
from rescorer.shards.record import Record
from rescorer.shards.store import OutputError

MAX_DEATHS = 3
"""Number of times that a worker may be killed at one shard before the shard is given up."""


class Finished(NamedTuple):
    """A shard that was committed, by this call or another one, or that failed."""

    shard: int
    result: Record | RescorerError


def is_local(error: RescorerError) -> bool:
    """Whether an error is one of a single shard, so that others may succeed."""
    return isinstance(error, InputError) and not isinstance(error, OutputError)


class DueShards:
    """Shards that no worker has, in the order in which they will be given out."""

    def __init__(self, shards: Iterable[int]) -> None:
        self._shards = deque(shards)
        self._deaths: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._shards)

    def take(self) -> int:
        """Take the next shard."""
        return self._shards.popleft()

    def put_back(self, shard: int) -> Finished | None:
        """Put the shard of a worker that was killed in front of the others, or give it up."""
        self._deaths[shard] += 1
        if self._deaths[shard] < MAX_DEATHS:
            self._shards.appendleft(shard)
            return None
        message = (
            f"shard {shard}: its worker ended unexpectedly {MAX_DEATHS} times, perhaps for want of memory; "
            "each worker has its own copy of the models, so try fewer"
        )
        return Finished(shard, ScoringError(message))

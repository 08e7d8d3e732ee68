"""Owns one client process of a chaos run: callers that check every answer, and change their minds at times.

    python -m tools.chaos.caller

The first line of stdin is the spec, and the end of stdin says that it is enough; lines on stdout tell how
many calls have ended, the last one what was seen.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc

from rescorer.client.connection import Retry, channel_options
from rescorer.client.identity import metadata
from rescorer.protocol import MAX_MESSAGE_BYTES
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from tools.chaos.expected import Expected

DEADLINE_S = 60.0
HANGS_S = 10.0
"""A call that is open so long after its deadline hangs."""
TOLD_EVERY = 20
"""Calls."""
MESSAGES = 4
"""Of a stream."""
LATE_S, CANCELLED_S = (0.0005, 0.03), (0.0, 0.03)
"""Deadlines that are too short, and when callers change their minds."""
KINDS = ("whole", "stream", "late", "cancelled")
OWN_DOING = {
    "late": {"DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED"},
    "cancelled": {"CANCELLED"},
}
"""Ends that callers have brought about; RESOURCE_EXHAUSTED says that the deadline cannot be met."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What the callers of a process do."""

    target: str
    tokens: list[str]
    """One a caller."""
    lists: list[str]
    """NBestList messages in base64."""
    weights: str
    expected: str
    """Folder of what the library makes of the lists."""
    calls: int
    """At least, unless time is over; until stdin ends."""
    seconds: float
    lists_a_call: int = 4
    """At most."""
    streamed: float = 0.1
    """Share of the calls, as are the others."""
    late: float = 0.05
    cancelled: float = 0.05
    seed: int = 0


@dataclass(slots=True)
class Seen:
    """What the callers of a process have seen."""

    calls: int = 0
    """Ended; messages of streams count, too."""
    answered_calls: int = 0
    answered_lists: int = 0
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of calls, by kind and code."""
    models: dict[str, int] = field(default_factory=dict)
    """Answered calls by the model that the answer names."""
    complaints: list[str] = field(default_factory=list)
    """Of answers that are wrong."""
    failures: list[str] = field(default_factory=list)
    """Of calls that ended as callers had no share in."""
    hung: int = 0
    longest_s: float = 0.0


class Callers:
    """The callers of one process."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._lists = [pb.NBestList.FromString(base64.b64decode(each)) for each in spec.lists]
        self._expected = Expected(Path(spec.expected))
        self._rng = random.Random(spec.seed)
        self._number = 0
        self.enough = False
        self.seen = Seen()

    async def run(self) -> Seen:
        await asyncio.gather(*(self._caller(token) for token in self._spec.tokens))
        return self.seen

    async def _caller(self, token: str) -> None:
        """One call after the other, by a connection of its own."""
        spec = self._spec
        options = (*channel_options(Retry(), MAX_MESSAGE_BYTES), ("grpc.use_local_subchannel_pool", 1))
        shares = (1 - spec.streamed - spec.late - spec.cancelled, spec.streamed, spec.late, spec.cancelled)
        until = time.monotonic() + spec.seconds
        async with grpc.aio.insecure_channel(spec.target, options) as channel:
            stub: Any = RescorerServiceStub(channel)  # type: ignore[no-untyped-call]
            while (self.seen.calls < spec.calls and time.monotonic() < until) or not self.enough:
                (kind,) = self._rng.choices(KINDS, shares)
                code, began = "OK", time.monotonic()
                talk = self._streamed if kind == "stream" else self._called
                try:
                    await asyncio.wait_for(talk(stub, kind, metadata(token)), DEADLINE_S + HANGS_S)
                except grpc.aio.AioRpcError as error:
                    code = error.code().name
                    if code not in OWN_DOING.get(kind, ()):
                        self.seen.failures.append(f"{kind}: {code} {error.details()}")
                except TimeoutError:
                    code = "hung"
                    self.seen.hung += 1
                except asyncio.CancelledError:
                    if kind != "cancelled":
                        raise
                    code = "CANCELLED"
                self._ended(kind, code, time.monotonic() - began)

    async def _called(self, stub: Any, kind: str, login: Any) -> None:
        chosen, request = self._request(pb.RescoreRequest)
        timeout = self._rng.uniform(*LATE_S) if kind == "late" else DEADLINE_S
        call = stub.Rescore(request, timeout=timeout, metadata=login)
        if kind == "cancelled":
            asyncio.get_running_loop().call_later(self._rng.uniform(*CANCELLED_S), call.cancel)
        self._answered(chosen, request, await call)

    async def _streamed(self, stub: Any, kind: str, login: Any) -> None:
        sent = [self._request(pb.RescoreStreamRequest) for _ in range(MESSAGES)]

        async def requests() -> AsyncIterator[pb.RescoreStreamRequest]:
            for _, request in sent:
                yield request

        call = stub.RescoreStream(requests(), timeout=DEADLINE_S, metadata=login)
        answers = [each async for each in call]
        if len(answers) != len(sent):
            self.seen.complaints.append(f"{len(sent)} messages of a stream have {len(answers)} answers")
        self.seen.calls += MESSAGES - 1
        for (chosen, request), response in zip(sent, answers, strict=False):
            self._answered(chosen, request, response)

    def _request(self, kind: Any) -> tuple[list[int], Any]:
        """A request of some lists, each with an id that no other has."""
        count = self._rng.randint(1, self._spec.lists_a_call)
        chosen = self._rng.choices(range(len(self._lists)), k=count)
        request = kind(lists=[self._lists[each] for each in chosen], weights_name=self._spec.weights)
        for nbest in request.lists:
            self._number += 1
            nbest.id = f"{self._spec.seed}-{self._number}"
        return chosen, request

    def _answered(self, chosen: Sequence[int], request: Any, response: Any) -> None:
        seen = self.seen
        seen.answered_calls += 1
        seen.answered_lists += len(response.lists)
        seen.models[response.model] = seen.models.get(response.model, 0) + 1
        seen.complaints += self._expected.complaints(chosen, request, response)

    def _ended(self, kind: str, code: str, seconds: float) -> None:
        ends = self.seen.ends.setdefault(kind, {})
        ends[code] = ends.get(code, 0) + 1
        self.seen.longest_s = max(self.seen.longest_s, seconds)
        self.seen.calls += 1
        if self.seen.calls % TOLD_EVERY < MESSAGES:
            print(self.seen.calls, flush=True)


def merged(every: Sequence[Seen]) -> Seen:
    """What all processes have seen."""
    whole = Seen()
    for seen in every:
        for name in ("calls", "answered_calls", "answered_lists", "hung"):
            setattr(whole, name, getattr(whole, name) + getattr(seen, name))
        whole.complaints += seen.complaints
        whole.failures += seen.failures
        whole.longest_s = max(whole.longest_s, seen.longest_s)
        whole.models = dict(Counter(whole.models) + Counter(seen.models))
        for kind, ends in seen.ends.items():
            whole.ends[kind] = dict(Counter(whole.ends.get(kind, {})) + Counter(ends))
    return whole


def main() -> None:
    callers = Callers(Spec(**json.loads(sys.stdin.readline())))

    def wait_for_the_end() -> None:
        sys.stdin.read()
        callers.enough = True

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print(json.dumps(asdict(asyncio.run(callers.run()))), flush=True)


if __name__ == "__main__":
    main()

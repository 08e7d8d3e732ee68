"""A client process of a chaos run, whose callers check every answer and cancel some of their calls.

    python -m tools.chaos.caller

Reads its configuration from the first line of stdin and stops at the end of stdin. Writes the number of ended
calls to stdout from time to time, and its report as the last line.
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

from rescorer.client.connection import ConnectionOptions, auth_metadata, channel_options
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from tools.chaos.versions import AnswerChecker

DEADLINE_S = 60.0
HANG_GRACE_S = 10.0
"""A call counts as hung if it is still open so long after its deadline."""
PROGRESS_INTERVAL_CALLS = 20
MESSAGES_PER_STREAM = 4
LATE_DEADLINE_S = (0.0005, 0.03)
"""Range of deadlines that are too short."""
CANCEL_DELAY_S = (0.0, 0.03)
"""Range of times after which a caller cancels a call."""
KINDS = ("whole", "stream", "late", "cancelled")
EXPECTED_CODES = {
    "late": {"DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED"},
    "cancelled": {"CANCELLED"},
}
"""Status codes that callers provoke on purpose; RESOURCE_EXHAUSTED says that the server cannot meet the
deadline."""


@dataclass(frozen=True, slots=True)
class CallerConfig:
    """Work of the callers of one process."""

    target: str
    tokens: list[str]
    """One bearer token per caller."""
    lists: list[str]
    """``NBestList`` messages in base64."""
    weights: str
    expected: str
    """Folder with the library's answers."""
    calls: int
    """Number of calls. Callers stop once it or ``seconds`` is reached, and stdin has ended."""
    seconds: float
    max_lists_per_call: int = 4
    stream_share: float = 0.1
    """Share of calls that are streams."""
    late_share: float = 0.05
    """Share of calls with a deadline that is too short."""
    cancelled_share: float = 0.05
    seed: int = 0


@dataclass(slots=True)
class CallerReport:
    """Observations of the callers of one process, or of all processes."""

    calls: int = 0
    """Number of ended calls. Each message of a stream counts as a call."""
    answered_calls: int = 0
    answered_lists: int = 0
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of calls by kind and status code."""
    models: dict[str, int] = field(default_factory=dict)
    """Number of answered calls by the model named in the answer."""
    complaints: list[str] = field(default_factory=list)
    """Errors in answers."""
    failures: list[str] = field(default_factory=list)
    """Calls that ended with an unexpected status."""
    hung: int = 0
    longest_s: float = 0.0


class Callers:
    """The concurrent callers of one process."""

    def __init__(self, config: CallerConfig) -> None:
        self._config = config
        self._lists = [pb.NBestList.FromString(base64.b64decode(message)) for message in config.lists]
        self._checker = AnswerChecker(Path(config.expected))
        self._rng = random.Random(config.seed)
        self._next_list_number = 0
        self.stop_requested = False
        self.report = CallerReport()

    async def run(self) -> CallerReport:
        await asyncio.gather(*(self._run_caller(token) for token in self._config.tokens))
        return self.report

    async def _run_caller(self, token: str) -> None:
        """Send one call after the other over a separate connection."""
        config = self._config
        options = (*channel_options(ConnectionOptions()), ("grpc.use_local_subchannel_pool", 1))
        end = time.monotonic() + config.seconds
        async with grpc.aio.insecure_channel(config.target, options) as channel:
            stub: Any = RescorerServiceStub(channel)  # type: ignore[no-untyped-call]
            while (self.report.calls < config.calls and time.monotonic() < end) or not self.stop_requested:
                await self._send_call(stub, auth_metadata(token))

    async def _send_call(self, stub: Any, metadata: Any) -> None:
        """Send a call of a random kind and record how it ends."""
        config = self._config
        special_shares = (config.stream_share, config.late_share, config.cancelled_share)
        (kind,) = self._rng.choices(KINDS, (1 - sum(special_shares), *special_shares))
        code, start = "OK", time.monotonic()
        call = self._call_stream if kind == "stream" else self._call_unary
        try:
            await asyncio.wait_for(call(stub, kind, metadata), DEADLINE_S + HANG_GRACE_S)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            if code not in EXPECTED_CODES.get(kind, ()):
                self.report.failures.append(f"{kind}: {code} {error.details()}")
        except TimeoutError:
            code = "hung"
            self.report.hung += 1
        except asyncio.CancelledError:
            if kind != "cancelled":
                raise
            code = "CANCELLED"
        self._record_end(kind, code, time.monotonic() - start)

    async def _call_unary(self, stub: Any, kind: str, metadata: Any) -> None:
        indices, request = self._make_request(pb.RescoreRequest)
        timeout_s = self._rng.uniform(*LATE_DEADLINE_S) if kind == "late" else DEADLINE_S
        call = stub.Rescore(request, timeout=timeout_s, metadata=metadata)
        if kind == "cancelled":
            asyncio.get_running_loop().call_later(self._rng.uniform(*CANCEL_DELAY_S), call.cancel)
        self._check_answer(indices, request, await call)

    async def _call_stream(self, stub: Any, kind: str, metadata: Any) -> None:
        sent = [self._make_request(pb.RescoreStreamRequest) for _ in range(MESSAGES_PER_STREAM)]

        async def requests() -> AsyncIterator[pb.RescoreStreamRequest]:
            for _, request in sent:
                yield request

        call = stub.RescoreStream(requests(), timeout=DEADLINE_S, metadata=metadata)
        responses = [response async for response in call]
        if len(responses) != len(sent):
            self.report.complaints.append(
                f"a stream of {len(sent)} messages was answered by {len(responses)} messages"
            )
        self.report.calls += MESSAGES_PER_STREAM - 1
        for (indices, request), response in zip(sent, responses, strict=False):
            self._check_answer(indices, request, response)

    def _make_request(self, message_type: Any) -> tuple[list[int], Any]:
        """Make a request of random lists with unique ids; return the indices of the lists and the request."""
        count = self._rng.randint(1, self._config.max_lists_per_call)
        indices = self._rng.choices(range(len(self._lists)), k=count)
        request = message_type(
            lists=[self._lists[index] for index in indices], weights_name=self._config.weights
        )
        for nbest in request.lists:
            self._next_list_number += 1
            nbest.id = f"{self._config.seed}-{self._next_list_number}"
        return indices, request

    def _check_answer(self, indices: Sequence[int], request: Any, response: Any) -> None:
        report = self.report
        report.answered_calls += 1
        report.answered_lists += len(response.lists)
        report.models[response.model] = report.models.get(response.model, 0) + 1
        report.complaints += self._checker.find_errors(indices, request, response)

    def _record_end(self, kind: str, code: str, elapsed_s: float) -> None:
        codes = self.report.ends.setdefault(kind, {})
        codes[code] = codes.get(code, 0) + 1
        self.report.longest_s = max(self.report.longest_s, elapsed_s)
        self.report.calls += 1
        if self.report.calls % PROGRESS_INTERVAL_CALLS < MESSAGES_PER_STREAM:
            print(self.report.calls, flush=True)


def merge_reports(reports: Sequence[CallerReport]) -> CallerReport:
    """Combine the reports of all processes."""
    total = CallerReport()
    for report in reports:
        for name in ("calls", "answered_calls", "answered_lists", "hung"):
            setattr(total, name, getattr(total, name) + getattr(report, name))
        total.complaints += report.complaints
        total.failures += report.failures
        total.longest_s = max(total.longest_s, report.longest_s)
        total.models = dict(Counter(total.models) + Counter(report.models))
        for kind, codes in report.ends.items():
            total.ends[kind] = dict(Counter(total.ends.get(kind, {})) + Counter(codes))
    return total


def main() -> None:
    callers = Callers(CallerConfig(**json.loads(sys.stdin.readline())))

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        callers.stop_requested = True

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    print(json.dumps(asdict(asyncio.run(callers.run()))), flush=True)


if __name__ == "__main__":
    main()

"""Flood a server with one client of each kind next to ten polite callers, and compare the callers' latencies.

Each flood has a stage in which the polite callers are alone, and one in which the flood runs too. The machine
is the same and the stages follow one another, so their ratio says more than either latency. Afterwards the
flood is killed in the middle of its calls: a server that works on has work that outlives its callers.
"""

from __future__ import annotations

import base64
import itertools
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rescorer.bench.load import (
    ClientConfig,
    cpu_time_s,
    encode_requests,
    percentile,
    process_tree,
    run_clients,
    run_server,
    start_client,
)
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import NBestList
from tools.observation import explain_errors, read_logged_errors

POLITE_CALLERS = 10
POLITE_CALLS_PER_S = 1.0
"""Calls per second of each polite caller. All of them together leave most of a worker idle."""
POLITE_DEADLINE_S = 10.0
FLOOD_DEADLINE_S = 30.0
FLOOD_NICENESS = 10
"""Niceness of the flood: it should compete for the server, not for the processor of the polite callers."""
SETTLE_S = 2.0
"""Time for which a flood runs before the polite callers are measured."""
IDLE_SHARE = 0.15
"""A server that uses less than this share of a core has no work."""
SAMPLE_S = 0.25
MAX_BUSY_S = 60.0
STOP_DELAY_S = 0.5
"""Time between the end of the last flood and SIGTERM."""
MAX_RATIO = 3.0
MAX_BUSY_AFTER_S = 5.0
"""Longest time for which a server may work after all callers have gone: one bounded step."""


class Requests:
    """Makes the requests of the floods.

    Args:
        lists: ordinary lists, which polite callers send too.
        weights: name of the weights.
    """

    def __init__(self, lists: Sequence[NBestList], weights: str, seed: int) -> None:
        self._lists, self._weights = [list_to_proto(nbest) for nbest in lists], weights
        self._rng = random.Random(seed)

    def small(self) -> Iterator[pb.RescoreRequest]:
        """One ordinary list a call."""
        yield from (self._request([nbest]) for nbest in self._lists[:50])

    def many(self) -> Iterator[pb.RescoreRequest]:
        """Number of lists of a call: the most that a message may have."""
        yield self._request([self._rng.choice(self._lists) for _ in range(128)])

    def long(self) -> Iterator[pb.RescoreRequest]:
        """A list of long hypotheses that share no words: all the words that a message may have."""
        yield self._request([self._made_list(hypotheses=250, words=990)])

    def tied(self) -> Iterator[pb.RescoreRequest]:
        """A list that costs little to score and much to decide."""
        request = self._request([self._made_list(hypotheses=150, words=60)])
        request.decision.kind = pb.DECISION_KIND_MINIMUM_BAYES_RISK
        yield request

    def generated(self) -> Iterator[pb.RescoreRequest]:
        """Lists with phrases, for which hypotheses are generated."""
        lists = [self._rng.choice(self._lists) for _ in range(16)]
        phrases = [" ".join(nbest.hypotheses[-1].text.split()[:3]) for nbest in lists]
        request = self._request(lists)
        request.phrases.extend(pb.Phrase(text=text) for text in phrases if text)
        request.generate = True
        yield request

    def odd(self) -> Iterator[pb.RescoreRequest]:
        """One word, in a message whose size promises hundreds of thousands."""
        request = self._request([self._made_list(hypotheses=1, words=1)])
        request.lists[0].hypotheses[0].fields["note"] = "n" * 3_500_000
        yield request

    def _request(self, lists: Sequence[pb.NBestList]) -> pb.RescoreRequest:
        return pb.RescoreRequest(lists=lists, weights_name=self._weights)

    def _made_list(self, hypotheses: int, words: int) -> pb.NBestList:
        first = self._lists[0]
        made = pb.NBestList(id="made")
        names = map(letters, itertools.count(1))
        for _ in range(hypotheses):
            made.hypotheses.add(text=" ".join(itertools.islice(names, words)))
        for stream in first.streams:
            made.streams.add(name=stream.name, base=stream.base, sign=stream.sign, values=[-1.0] * hypotheses)
        return made


def letters(number: int) -> str:
    """Return the word with this number, in letters only.

    >>> [letters(number) for number in (1, 26, 27)]
    ['a', 'z', 'aa']
    """
    word = ""
    while number:
        number, digit = divmod(number - 1, 26)
        word = chr(ord("a") + digit) + word
    return word


@dataclass(frozen=True, slots=True)
class Flood:
    """A kind of flood: its requests, and how they are sent."""

    requests: Callable[[Requests], Iterator[pb.RescoreRequest]]
    calls: int
    """Number of calls to keep open, all connections together."""
    connections: int = 1
    deadline_s: float = FLOOD_DEADLINE_S


FLOODS: Mapping[str, Flood] = {
    "small": Flood(Requests.small, 300),
    "connections": Flood(Requests.small, 300, connections=20),
    "many": Flood(Requests.many, 16),
    "long": Flood(Requests.long, 8),
    "impatient": Flood(Requests.long, 8, deadline_s=0.5),
    "tied": Flood(Requests.tied, 32),
    "generated": Flood(Requests.generated, 32),
    "odd": Flood(Requests.odd, 4),
}


@dataclass(frozen=True, slots=True)
class FairnessPlan:
    """Size of a fairness run."""

    floods: tuple[str, ...] = tuple(FLOODS)
    stage_s: float = 10.0
    """Duration of each stage; every flood has two."""
    limit_s: float = 3600.0
    seed: int = 1
    server_options: tuple[str, ...] = ()
    log: Path | None = None


@dataclass(frozen=True, slots=True)
class FloodReport:
    """What a flood did to the polite callers, and to the server."""

    flood: str
    alone_p50_ms: float | None
    alone_p99_ms: float | None
    p50_ms: float | None
    """Latency of the polite callers' answered calls next to the flood."""
    p99_ms: float | None
    ratio: float | None
    """``p99_ms`` divided by ``alone_p99_ms``."""
    answered: int
    unanswered: int
    """Calls of polite callers that were refused or failed."""
    codes: dict[str, int]
    """Statuses of the polite callers' calls."""
    flood_codes: dict[str, int]
    """Statuses of the flood's calls."""
    refused_p99_ms: float | None
    """Latency of the flood's refused calls."""
    busy_after_s: float
    """How long the server worked after the flood was killed."""


@dataclass(frozen=True, slots=True)
class FairnessReport:
    """Outcome of a fairness run."""

    floods: list[FloodReport]
    stop_s: float
    """How long the server took to stop on SIGTERM, soon after the last flood was killed."""
    faults: list[str] = field(default_factory=list)


def run_fairness(
    bundle: Path, lists: Sequence[NBestList], weights: str, plan: FairnessPlan
) -> FairnessReport:
    """Start a server, and measure polite callers alone and next to each flood.

    Raises:
        DeadlineExceeded: the run takes longer than ``plan.limit_s``.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = plan.log or Path(folder) / "log"
        options = ("--bundle", str(bundle), "--threads", "1", *plan.server_options)
        with run_server(options, log) as (target, pid), explain_errors(log, plan.limit_s):
            polite = ClientConfig(
                target,
                encode_requests(lists, weights, 1),
                POLITE_CALLERS * POLITE_CALLS_PER_S,
                plan.stage_s,
                POLITE_DEADLINE_S,
                seed=plan.seed,
                connections=POLITE_CALLERS,
            )
            run_clients([replace(polite, duration_s=SETTLE_S)])  # the first calls are slower
            requests = Requests(lists, weights, plan.seed)
            floods = [measure_flood(name, requests, polite, pid) for name in plan.floods]
            stop_s = measure_stop(flood_config(FLOODS[plan.floods[-1]], requests, polite), pid)
        return FairnessReport(floods, stop_s, [*find_faults(floods, stop_s), *read_logged_errors(log)])


def flood_config(flood: Flood, requests: Requests, polite: ClientConfig) -> ClientConfig:
    messages = [
        base64.b64encode(request.SerializeToString()).decode() for request in flood.requests(requests)
    ]
    return ClientConfig(
        polite.target,
        messages,
        0.0,
        polite.duration_s + SETTLE_S,
        flood.deadline_s,
        flood.calls,
        niceness=FLOOD_NICENESS,
        connections=flood.connections,
    )


def measure_flood(name: str, requests: Requests, polite: ClientConfig, pid: int) -> FloodReport:
    flood = flood_config(FLOODS[name], requests, polite)
    (alone,) = run_clients([polite])
    # The flood's results would come only after its last call has ended: measure it once, then kill it.
    beside, flooding = run_clients([replace(polite, delay_s=SETTLE_S), flood])
    run_and_kill(flood)
    busy_s = measure_busy_s(pid)
    alone_p99_ms, p99_ms = percentile(alone.ok_ms, 99), percentile(beside.ok_ms, 99)
    return FloodReport(
        name,
        percentile(alone.ok_ms, 50),
        alone_p99_ms,
        percentile(beside.ok_ms, 50),
        p99_ms,
        p99_ms / alone_p99_ms if p99_ms and alone_p99_ms else None,
        beside.codes.get("OK", 0),
        sum(beside.codes.values()) - beside.codes.get("OK", 0),
        beside.codes,
        flooding.codes,
        percentile(flooding.refused_ms, 99),
        busy_s,
    )


def run_and_kill(flood: ClientConfig) -> None:
    """Let a flood run for a moment, and kill it in the middle of its calls."""
    with start_client(flood) as client:
        client.read_line()
        client.write_line("start")
        time.sleep(SETTLE_S)


def measure_busy_s(pid: int) -> float:
    """Return how long the processes of a server go on computing, at most ``MAX_BUSY_S``."""
    began = time.monotonic()
    busy_until = began
    before = sum(map(cpu_time_s, process_tree(pid)))
    while (now := time.monotonic()) < began + MAX_BUSY_S and now - busy_until < 4 * SAMPLE_S:
        time.sleep(SAMPLE_S)
        after = sum(map(cpu_time_s, process_tree(pid)))
        if after - before > IDLE_SHARE * SAMPLE_S:
            busy_until = time.monotonic()
        before = after
    return busy_until - began


def measure_stop(flood: ClientConfig, pid: int) -> float:
    """Kill a flood, send SIGTERM to the server, and return how long the server takes to end."""
    run_and_kill(flood)
    time.sleep(STOP_DELAY_S)
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    while cpu_time_s(pid) and not is_zombie(pid) and time.monotonic() < began + MAX_BUSY_S:
        time.sleep(0.02)
    return time.monotonic() - began


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, and its parent has not asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def find_faults(floods: Sequence[FloodReport], stop_s: float) -> Iterator[str]:
    for report in floods:
        if report.unanswered:
            yield f"{report.flood}: {report.unanswered} calls of polite callers were not answered"
        if report.ratio is not None and report.ratio > MAX_RATIO:
            yield f"{report.flood}: polite callers wait {report.ratio:.1f} × as long as alone (p99)"
        if report.busy_after_s > MAX_BUSY_AFTER_S:
            yield f"{report.flood}: the server worked for {report.busy_after_s:.1f} s without a caller"
    if stop_s > MAX_BUSY_AFTER_S:
        yield f"the server took {stop_s:.1f} s to stop although nobody waited for an answer"

"""Measure how long a server takes for lists that come alone and in batches, and keep the times in a file.

Calls are sent one after the other, so that none of them waits for another; the server's answers say how long
its worker took, and the rest is the front end, with what the client and gRPC need to send and receive.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import grpc

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.io.text_io import write_text
from rescorer.load.client import RESCORE_METHOD
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import NBestList

LISTS_PER_CALL = (1, 2, 4, 8)
MAX_FILE_BYTES = 64 << 20
CALL_TIMEOUT_S = 60.0
MIN_CALLS = 3
"""Number of calls of each size, even if they take longer than the stage."""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Measured times in seconds, by the number of lists per call; each call was a batch of its own."""

    worker_s: Mapping[int, Sequence[float]]
    """Time of the worker for each call."""
    front_s: Mapping[int, Sequence[float]]
    """All other time of each call."""


def encode_calls(lists: Sequence[NBestList], weights: str) -> dict[int, list[str]]:
    """Serialise lists as requests in base64, by the number of lists per request; each size has all lists."""
    calls: dict[int, list[str]] = {}
    for size in LISTS_PER_CALL:
        n_calls = -(-len(lists) // size)
        endless = cycle(lists)
        calls[size] = [
            base64.b64encode(
                pb.RescoreRequest(
                    lists=[list_to_proto(nbest) for nbest in islice(endless, size)], weights_name=weights
                ).SerializeToString()
            ).decode()
            for _ in range(n_calls)
        ]
    return calls


def measure_service_times(target: str, calls: Mapping[int, Sequence[str]], seconds: float) -> ServiceTimes:
    """Send calls one after the other, each size for an equal part of the time.

    Args:
        calls: requests in base64 by their number of lists.

    Raises:
        InvalidList: If a list cannot be scored, so that the times would be too short.
    """
    worker_s: dict[int, list[float]] = {size: [] for size in calls}
    front_s: dict[int, list[float]] = {size: [] for size in calls}
    options = (("grpc.max_receive_message_length", -1),)
    with grpc.insecure_channel(target, options=options) as channel:
        rescore: Any = channel.unary_unary(RESCORE_METHOD)
        for size, messages in calls.items():
            end = time.perf_counter() + seconds / len(calls)
            for message in cycle(map(base64.b64decode, messages)):
                start = time.perf_counter()
                if start >= end and len(worker_s[size]) >= MIN_CALLS:
                    break
                answer = rescore(message, timeout=CALL_TIMEOUT_S)
                elapsed_s = time.perf_counter() - start
                response = pb.RescoreResponse.FromString(answer)
                for answered in response.lists:
                    if answered.status.code:
                        raise InvalidList(answered.status.message, list_id=answered.id)
                worker_s[size].append(response.timing.compute_ms / 1e3)
                front_s[size].append(max(0.0, elapsed_s - worker_s[size][-1]))
    return ServiceTimes(worker_s, front_s)


def write_service_times(times: ServiceTimes, path: Path) -> None:
    """Write times as one JSON object; raise FormatError if the file cannot be written."""
    write_text(path, json.dumps(asdict(times)) + "\n")


def read_service_times(path: Path) -> ServiceTimes:
    """Read a file of ``write_service_times``.

    Raises:
        ConfigError: If there is no such file.
        FormatError: If it is not such a file.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
        values = json.loads(data)
        tables = [
            {int(size): [float(value) for value in times] for size, times in values[name].items()}
            for name in ("worker_s", "front_s")
        ]
        times = [value for table in tables for row in table.values() for value in row]
        if not all(0 <= value < float("inf") for value in times):
            raise ValueError("times must be numbers of seconds, not negative")
        if not sum(tables[0].get(1, [])) > 0:
            raise ValueError("lists that come alone (1) must take a worker some time")
        if not all(tables[0].values()) or tables[0].keys() != tables[1].keys():
            raise ValueError("expected times of both parts for each size")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        message = f"not a file of `rescorer load --service-times`: {error}"
        raise FormatError(message, file=str(path)) from None
    return ServiceTimes(*tables)

"""What hostile clients send: they do not read, do not end, or ask for far too much."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from rescorer.protocol.v1 import rescorer_pb2 as pb
from tools.fuzz.http2 import (
    DATA,
    END_HEADERS,
    HEADERS,
    PREFACE,
    SETTINGS,
    call_frames,
    frame,
    grpc_message,
    request_headers,
)

RESCORER_SERVICE = b"/rescorer.v1.RescorerService/"
HEALTH_WATCH = b"/grpc.health.v1.Health/Watch"
NO_WINDOW = struct.pack(">HI", 4, 0)
"""SETTINGS_INITIAL_WINDOW_SIZE 0: the server may not send a byte of an answer."""
FIRST_WINDOW_BYTES = 65_535
"""What a client may send before the server has answered (RFC 9113, section 6.9.2)."""
LONG_NAME_CHARS = (300, 10_000, 500_000)
"""Lengths of names of streams, models, lists and weights."""

Attack = Callable[[pb.NBestList, random.Random], bytes]


def unread_watch(nbest: pb.NBestList, rng: random.Random) -> bytes:
    """Watch the health of the server, from several streams, without ever reading a status."""
    return unread_calls(HEALTH_WATCH, b"", rng.choice((1, 20, 100)))


def unread_answers(nbest: pb.NBestList, rng: random.Random) -> bytes:
    """Have lists rescored without ever reading the answers."""
    request = pb.RescoreRequest(lists=[nbest] * rng.choice((1, 8))).SerializeToString()
    return unread_calls(RESCORER_SERVICE + b"Rescore", request, rng.choice((1, 10, 60)))


def idle_streams(nbest: pb.NBestList, rng: random.Random) -> bytes:
    """Open streams and send nothing on them."""
    path = RESCORER_SERVICE + b"RescoreStream"
    opened = (
        frame(HEADERS, END_HEADERS, 2 * number + 1, request_headers(path))
        for number in range(rng.choice((1, 64, 200)))
    )
    return b"".join((PREFACE, frame(SETTINGS, 0, 0), *opened))


def long_names(nbest: pb.NBestList, rng: random.Random) -> bytes:
    """Name streams, lists, models or weights at a length that would multiply in the answer or in the log."""
    name = "n" * rng.choice(LONG_NAME_CHARS)
    request = pb.RescoreRequest(lists=[nbest])
    place = rng.choice(("stream", "id", "model", "weights", "language model"))
    if place == "stream":
        stream = request.lists[0].streams.add(name=name, base=pb.LOG_BASE_E, sign=pb.SCORE_SIGN_LOG_PROB)
        stream.values.extend([-1.0] * len(nbest.hypotheses))
        request.weights.streams[name] = 1.0
    elif place == "id":
        request.lists[0].id = name
    elif place == "model":
        request.model = name
    elif place == "weights":
        request.weights_name = name
    else:
        request.weights.lm[name] = 1.0
    return request.SerializeToString()


def repeated_hypotheses(nbest: pb.NBestList, rng: random.Random) -> bytes:
    """Send many long hypotheses that are equal, or differ in one word at the start, middle or end."""
    n_hypotheses, n_words = rng.choice(((2000, 20), (200, 200), (60, 1000)))
    words = ["the"] * n_words
    position = rng.choice((None, 0, n_words // 2, n_words - 1))
    request = pb.RescoreRequest(lists=[pb.NBestList(id="repeated")])
    for number in range(n_hypotheses):
        if position is not None:
            words[position] = f"w{number}"
        request.lists[0].hypotheses.add(text=" ".join(words))
    return request.SerializeToString()


def unfinished_request(nbest: pb.NBestList, rng: random.Random) -> bytes:
    """Announce a message and send only its beginning."""
    body = grpc_message(b"", 0, rng.choice((1, 1_000_000, 4_000_000)))
    headers = frame(HEADERS, END_HEADERS, 1, request_headers(RESCORER_SERVICE + b"Rescore"))
    return b"".join((PREFACE, frame(SETTINGS, 0, 0), headers, frame(DATA, 0, 1, body)))


def unfinished_handshake(nbest: pb.NBestList, rng: random.Random) -> bytes:
    """Connect and send a part of the preface."""
    return PREFACE[: rng.randrange(len(PREFACE))]


CONNECTIONS: tuple[Attack, ...] = (
    unread_watch,
    unread_answers,
    idle_streams,
    unfinished_request,
    unfinished_handshake,
)
"""Build what a hostile client sends over one connection, which it leaves open."""
REQUESTS: tuple[Attack, ...] = (long_names, repeated_hypotheses)
"""Build requests of ``Rescore`` that ask for too much."""


def unread_calls(path: bytes, message: bytes, n_calls: int) -> bytes:
    """Build a connection that opens calls and lets the server send nothing.

    There are fewer calls if their messages would exceed what HTTP/2 allows to send at once.
    """
    n_calls = min(n_calls, max(1, FIRST_WINDOW_BYTES // (len(message) + 5)))
    calls = (b"".join(call_frames(path, message, 2 * number + 1)) for number in range(n_calls))
    return b"".join((PREFACE, frame(SETTINGS, 0, 0, NO_WINDOW), *calls))

"""Build valid, malformed and hostile HTTP/2 connections byte by byte (RFC 9113, RFC 7541).

Hostile clients do not read, do not end, or ask for far too much. For some of these, one message is enough.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from rescorer.protocol.v1 import rescorer_pb2 as pb

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
FLOOD_FRAMES = 2000
MAX_FRAME_BYTES = 16_384
"""Largest payload of a frame that every HTTP/2 server accepts."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """Build a frame. ``length`` overrides the length of the payload in the header of the frame."""
    size = len(payload) if length is None else length
    return (
        struct.pack(">I", size)[1:] + bytes((kind & 255, flags & 255)) + struct.pack(">I", stream) + payload
    )


def header(name: bytes, value: bytes) -> bytes:
    """Build a header field without indexing and without Huffman coding."""
    return b"\x00" + string_literal(name) + string_literal(value)


def string_literal(value: bytes) -> bytes:
    """Encode a string literal (RFC 7541, section 5.2).

    >>> string_literal(b"x" * 200)[:4].hex()
    '7f497878'
    """
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    size -= 127
    encoded_size = bytearray(b"\x7f")
    while size > 127:
        encoded_size.append(size % 128 + 128)
        size //= 128
    encoded_size.append(size)
    return bytes(encoded_size) + value


def request_headers(path: bytes, *extra_fields: bytes) -> bytes:
    """Build the header block of a gRPC request."""
    pseudo_fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
    )
    fields = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
    return b"".join(header(*field) for field in (*pseudo_fields, *fields)) + b"".join(extra_fields)


def grpc_message(data: bytes, compressed: int = 0, length: int | None = None) -> bytes:
    """Add gRPC's prefix to a message. ``length`` overrides the length in the prefix."""
    return bytes((compressed,)) + struct.pack(">I", len(data) if length is None else length) + data


def valid_connection(path: bytes, data: bytes) -> list[bytes]:
    """Build a valid connection with one call of one message; return its preface and frames."""
    return [PREFACE, frame(SETTINGS, 0, 0), *call_frames(path, data, 1)]


def call_frames(path: bytes, message: bytes, stream: int) -> list[bytes]:
    """Build the frames of a call with one message."""
    body = grpc_message(message)
    parts = [body[start : start + MAX_FRAME_BYTES] for start in range(0, len(body), MAX_FRAME_BYTES)]
    return [
        frame(HEADERS, END_HEADERS, stream, request_headers(path)),
        *(frame(DATA, END_STREAM if part is parts[-1] else 0, stream, part) for part in parts),
    ]


def malformed_connection(path: bytes, data: bytes, rng: random.Random) -> bytes:
    """Build what a defective or malicious client might send."""
    return rng.choice(MALFORMATIONS)(path, data, rng)


def random_bytes(path: bytes, data: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"", PREFACE)) + rng.randbytes(rng.choice((1, 9, 100, 5000)))


def other_protocol(path: bytes, data: bytes, rng: random.Random) -> bytes:
    http1, tls_hello = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    return rng.choice((http1, tls_hello, PREFACE[:-3], PREFACE.lower()))


def truncated_connection(path: bytes, data: bytes, rng: random.Random) -> bytes:
    complete = b"".join(valid_connection(path, data))
    return complete[: rng.randrange(len(complete))]


def changed_bytes(path: bytes, data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(b"".join(valid_connection(path, data)))
    for _ in range(rng.randint(1, 6)):
        changed[rng.randrange(len(PREFACE), len(changed))] = rng.randrange(256)
    return bytes(changed)


def shuffled_frames(path: bytes, data: bytes, rng: random.Random) -> bytes:
    preface, *frames = valid_connection(path, data)
    return preface + b"".join(rng.choices(frames, k=rng.randint(1, 6)))


def odd_frames(path: bytes, data: bytes, rng: random.Random) -> bytes:
    odd = [
        frame(
            rng.choice((*range(12), 255)),
            rng.randrange(256),
            rng.choice((0, 1, 2, 3, 2**31 - 1, 2**31 + 1)),
            rng.randbytes(rng.choice((0, 1, 4, 5, 8, 100))),
            rng.choice((None, None, 0, 3, 2**14 + 1, 2**24 - 1)),
        )
        for _ in range(rng.randint(1, 8))
    ]
    parts = valid_connection(path, data)
    position = rng.randint(1, len(parts))
    return b"".join((*parts[:position], *odd, *parts[position:]))


def wrong_length(path: bytes, data: bytes, rng: random.Random) -> bytes:
    length = rng.choice((0, 1, len(data) - 1, len(data) + 1, 2**22 + 1, 2**31, 2**32 - 1)) % 2**32
    body = grpc_message(data[:10_000], rng.choice((0, 1, 255)), length)
    return b"".join((*valid_connection(path, data)[:3], frame(DATA, END_STREAM, 1, body)))


def wrong_headers(path: bytes, data: bytes, rng: random.Random) -> bytes:
    extra_field = rng.choice((
        header(b"grpc-timeout", rng.choice((b"", b"0n", b"-1S", b"99999999999H", b"1", b"x"))),
        header(b"grpc-encoding", rng.choice((b"gzip", b"deflate", b"zstd", b"nonsense"))),
        header(b"content-type", b"text/html"),
        header(b"x-request-id", rng.choice((b"", b"\xff\x00", b"a" * 5000, b"a\r\nb: c"))),
        header(b"grpc-trace-bin", b"!!not base64!!"),
        header(b"authorization", b"Bearer " + b"\xc3\x28" * 40),
        header(b"x" * 9000, b"y"),
        header(b":path", b"/again"),
        b"\xff\xff\xff\xff\xff\x0f",
        b"\x80", b"\x3f\xff\xff\xff\xff\x0f", b"\x00\x85\xff\xff\xff\xff\xff\x00",
    ))  # fmt: skip
    service = b"/rescorer.v1.RescorerService/"
    wrong_path = rng.choice((path, b"", b"/", b"*", service, path + b"x", b"\xff" * 20))
    parts = valid_connection(path, data)
    headers = frame(HEADERS, END_HEADERS, 1, request_headers(wrong_path, extra_field))
    return b"".join((*parts[:2], headers, *parts[3:]))


def flood(path: bytes, data: bytes, rng: random.Random) -> bytes:
    """Send many small frames, each of which costs the server something."""
    block = request_headers(path)
    opened = frame(HEADERS, END_HEADERS, 1, block)
    make_frame: Callable[[int], bytes] = rng.choice((
        lambda number: frame(PING, 0, 0, bytes(8)),
        lambda number: frame(SETTINGS, 0, 0, struct.pack(">HI", 4, number)),
        lambda number: frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)),
        lambda number: frame(CONTINUATION, 0, 1, header(b"a", b"b")),
        lambda number: frame(DATA, 0, 1),
        lambda number: frame(PRIORITY, 0, 2 * number + 3, bytes(5)),
        lambda number: frame(HEADERS, END_HEADERS, 2 * number + 3, block)
        + frame(RST_STREAM, 0, 2 * number + 3, struct.pack(">I", 8)),
    ))  # fmt: skip
    return b"".join(
        (PREFACE, frame(SETTINGS, 0, 0), opened, *map(make_frame, range(rng.choice((3, 30, FLOOD_FRAMES)))))
    )


MALFORMATIONS = (
    *(
        random_bytes,
        other_protocol,
        truncated_connection,
        truncated_connection,
        changed_bytes,
        changed_bytes,
        shuffled_frames,
    ),
    *(odd_frames, odd_frames, wrong_length, wrong_headers, wrong_headers, flood),
)


RESCORER_SERVICE = b"/rescorer.v1.RescorerService/"
HEALTH_WATCH = b"/grpc.health.v1.Health/Watch"
NO_WINDOW = struct.pack(">HI", 4, 0)
"""SETTINGS_INITIAL_WINDOW_SIZE 0: the server may not send a byte of an answer."""
FIRST_WINDOW_BYTES = 65_535
"""Number of bytes that a client may send before the server answers (RFC 9113, section 6.9.2)."""
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
    """Give streams, lists, models or weights long names, which would multiply in the answer or in the log."""
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
"""Functions that build what a hostile client sends over one connection. The client leaves it open."""
REQUESTS: tuple[Attack, ...] = (long_names, repeated_hypotheses)
"""Functions that build requests of ``Rescore`` that ask for too much."""


def unread_calls(path: bytes, message: bytes, n_calls: int) -> bytes:
    """Build a connection that opens calls and lets the server send nothing.

    There are fewer calls if their messages would exceed what HTTP/2 allows to send at once.
    """
    n_calls = min(n_calls, max(1, FIRST_WINDOW_BYTES // (len(message) + 5)))
    calls = (b"".join(call_frames(path, message, 2 * number + 1)) for number in range(n_calls))
    return b"".join((PREFACE, frame(SETTINGS, 0, 0, NO_WINDOW), *calls))

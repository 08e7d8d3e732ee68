"""Owns conversations in HTTP/2 that no client would hold: frames by hand, and broken (RFC 9113, RFC 7541)."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
FLOOD = 2000
"""Frames, or headers, that come at once."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """One frame; ``length`` says another than its own."""
    size = len(payload) if length is None else length
    return (
        struct.pack(">I", size)[1:] + bytes((kind & 255, flags & 255)) + struct.pack(">I", stream) + payload
    )


def header(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed, without Huffman's code."""
    return b"\x00" + string(name) + string(value)


def string(value: bytes) -> bytes:
    """RFC 7541, 5.2.

    >>> string(b"x" * 200)[:4].hex()
    '7f497878'
    """
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    size -= 127
    head = bytearray(b"\x7f")
    while size > 127:
        head.append(size % 128 + 128)
        size //= 128
    head.append(size)
    return bytes(head) + value


def request_headers(path: bytes, *more: bytes) -> bytes:
    pairs = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost"))
    plain = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
    return b"".join(header(*each) for each in (*pairs, *plain)) + b"".join(more)


def grpc_message(data: bytes, compressed: int = 0, length: int | None = None) -> bytes:
    """gRPC's own prefix before a message."""
    return bytes((compressed,)) + struct.pack(">I", len(data) if length is None else length) + data


def conversation(path: bytes, data: bytes) -> list[bytes]:
    """A good one: a call with one message, in frames."""
    body = grpc_message(data)
    frames = [body[begin : begin + 16_384] for begin in range(0, len(body), 16_384)]
    return [
        PREFACE,
        frame(SETTINGS, 0, 0),
        frame(HEADERS, END_HEADERS, 1, request_headers(path)),
        *(frame(DATA, END_STREAM if each is frames[-1] else 0, 1, each) for each in frames),
    ]


def broken_conversation(path: bytes, data: bytes, rng: random.Random) -> bytes:
    """What a client might send that is not one, or means harm."""
    return rng.choice(BREAKERS)(path, data, rng)


def noise(path: bytes, data: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"", PREFACE)) + rng.randbytes(rng.choice((1, 9, 100, 5000)))


def other_protocol(path: bytes, data: bytes, rng: random.Random) -> bytes:
    plain, hello = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    return rng.choice((plain, hello, PREFACE[:-3], PREFACE.lower()))


def cut(path: bytes, data: bytes, rng: random.Random) -> bytes:
    whole = b"".join(conversation(path, data))
    return whole[: rng.randrange(len(whole))]


def changed(path: bytes, data: bytes, rng: random.Random) -> bytes:
    whole = bytearray(b"".join(conversation(path, data)))
    for _ in range(rng.randint(1, 6)):
        whole[rng.randrange(len(PREFACE), len(whole))] = rng.randrange(256)
    return bytes(whole)


def shuffled(path: bytes, data: bytes, rng: random.Random) -> bytes:
    head, *frames = conversation(path, data)
    return head + b"".join(rng.choices(frames, k=rng.randint(1, 6)))


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
    whole = conversation(path, data)
    place = rng.randint(1, len(whole))
    return b"".join((*whole[:place], *odd, *whole[place:]))


def wrong_length(path: bytes, data: bytes, rng: random.Random) -> bytes:
    length = rng.choice((0, 1, len(data) - 1, len(data) + 1, 2**22 + 1, 2**31, 2**32 - 1)) % 2**32
    body = grpc_message(data[:10_000], rng.choice((0, 1, 255)), length)
    return b"".join((*conversation(path, data)[:3], frame(DATA, END_STREAM, 1, body)))


def wrong_headers(path: bytes, data: bytes, rng: random.Random) -> bytes:
    more = rng.choice((
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
    where = rng.choice((path, b"", b"/", b"*", b"/rescorer.v1.RescorerService/", path + b"x", b"\xff" * 20))
    whole = conversation(path, data)
    return b"".join((*whole[:2], frame(HEADERS, END_HEADERS, 1, request_headers(where, more)), *whole[3:]))


def flood(path: bytes, data: bytes, rng: random.Random) -> bytes:
    """Many small frames that each cost the other side something."""
    block = request_headers(path)
    opened = frame(HEADERS, END_HEADERS, 1, block)
    one: Callable[[int], bytes] = rng.choice((
        lambda number: frame(PING, 0, 0, bytes(8)),
        lambda number: frame(SETTINGS, 0, 0, struct.pack(">HI", 4, number)),
        lambda number: frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)),
        lambda number: frame(CONTINUATION, 0, 1, header(b"a", b"b")),
        lambda number: frame(DATA, 0, 1),
        lambda number: frame(PRIORITY, 0, 2 * number + 3, bytes(5)),
        lambda number: frame(HEADERS, END_HEADERS, 2 * number + 3, block)
        + frame(RST_STREAM, 0, 2 * number + 3, struct.pack(">I", 8)),
    ))  # fmt: skip
    return b"".join((PREFACE, frame(SETTINGS, 0, 0), opened, *map(one, range(rng.choice((3, 30, FLOOD))))))


BREAKERS = (
    *(noise, other_protocol, cut, cut, changed, changed, shuffled, odd_frames, odd_frames, wrong_length),
    *(wrong_headers, wrong_headers, flood),
)

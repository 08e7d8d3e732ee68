"""A raw HTTP/2 client over a real socket that does what polite gRPC clients never do, such as not reading."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tools.fuzz.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME_BYTES,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    grpc_message,
    header,
    request_headers,
)

HEADER_BYTES = 9

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)
FIRST_WINDOW_BYTES = 65_535
"""What may be sent before the server says more (RFC 9113, section 6.9.2)."""
NO_WINDOW: Mapping[int, int] = MappingProxyType({INITIAL_WINDOW_SIZE: 0})
"""SETTINGS of a client that never lets the server send a byte of an answer."""

RESCORE = "/rescorer.v1.RescorerService/Rescore"
RESCORE_STREAM = "/rescorer.v1.RescorerService/RescoreStream"
SCORE_TEXT = "/rescorer.v1.RescorerService/ScoreText"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"


class Frame(NamedTuple):
    """A frame that the server sent."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def ends_stream(self) -> bool:
        return self.kind == RST_STREAM or (self.kind in (DATA, HEADERS) and bool(self.flags & END_STREAM))


class RawConnection:
    """An HTTP/2 connection that reads only when asked to, or when the server's flow control demands it.

    Args:
        settings: SETTINGS to send, by identifier; ``NO_WINDOW`` keeps the server from sending answers.
        receive_buffer_bytes: size of the socket's receive buffer; 0: as the system chooses. A small one lets
            a server notice early that nobody reads.
        handshake: send the preface and SETTINGS; otherwise the connection stays as TCP leaves it.
    """

    def __init__(
        self,
        port: int,
        settings: Mapping[int, int] = MappingProxyType({}),
        *,
        receive_buffer_bytes: int = 0,
        handshake: bool = True,
        timeout_s: float = 10.0,
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(timeout_s)
        self.socket.connect(("127.0.0.1", port))
        self.frames: list[Frame] = []
        """All frames that were read, in the order in which they arrived."""
        self._unparsed = b""
        self._next_stream = 1
        self._windows: dict[int, int] = {}  # bytes that the server lets us send, by stream; 0: in all
        self._initial_window = FIRST_WINDOW_BYTES
        if handshake:
            self.send(PREFACE, frame(SETTINGS, 0, 0, encode_settings(settings)))

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(b"".join(data))

    def call(
        self,
        path: str,
        *messages: bytes,
        metadata: Mapping[str, str] = MappingProxyType({}),
        token: str = "",
        end: bool = True,
    ) -> int:
        """Open a stream, send serialized messages and return the stream's number.

        Args:
            token: sent as the metadata ``authorization: Bearer TOKEN``.
            end: close the sending half, as unary calls do.
        """
        stream = self._next_stream
        self._next_stream += 2
        if token:
            metadata = {**metadata, "authorization": f"Bearer {token}"}
        fields = (header(key.encode(), value.encode()) for key, value in metadata.items())
        flags = END_HEADERS | (END_STREAM if end and not messages else 0)
        headers = frame(HEADERS, flags, stream, request_headers(path.encode(), *fields))
        self.send(headers)
        self._send_body(stream, messages, end=end)
        return stream

    def send_messages(self, stream: int, *messages: bytes, end: bool = False) -> None:
        """Send more serialized messages on an open stream."""
        self._send_body(stream, messages, end=end)

    def end(self, stream: int) -> None:
        """Close the sending half of a stream."""
        self.send(frame(DATA, END_STREAM, stream))

    def reset(self, stream: int, error: int = 8) -> None:
        """Send RST_STREAM, with CANCEL as the error by default."""
        self.send(frame(RST_STREAM, 0, stream, struct.pack(">I", error)))

    def acknowledge_settings(self) -> None:
        self.send(frame(SETTINGS, ACK, 0))

    def grant(self, size_bytes: int, *streams: int) -> None:
        """Let the server send more bytes, on the connection and on each of the streams."""
        payload = struct.pack(">I", size_bytes)
        self.send(*(frame(WINDOW_UPDATE, 0, stream, payload) for stream in (0, *streams)))

    def read(self, timeout_s: float = 10.0) -> Frame | None:
        """Read the next frame; None if the server has closed the connection.

        Raises:
            TimeoutError: If no complete frame arrives in time.
        """
        header_ = self._read_bytes(HEADER_BYTES, time.monotonic() + timeout_s)
        if header_ is None:
            return None
        size = int.from_bytes(header_[:3], "big")
        payload = self._read_bytes(HEADER_BYTES + size, time.monotonic() + timeout_s)
        if payload is None:
            return None
        self._unparsed = self._unparsed[HEADER_BYTES + size :]
        stream = int.from_bytes(header_[5:9], "big") & 0x7FFF_FFFF
        self.frames.append(Frame(header_[3], header_[4], stream, payload[HEADER_BYTES:]))
        self._note_windows(self.frames[-1])
        return self.frames[-1]

    def read_until_end(self, stream: int, timeout_s: float = 10.0) -> list[Frame]:
        """Read until a stream ends or the connection is closed; return the frames of that stream.

        Raises:
            TimeoutError: If neither happens in time.
        """
        for read in self.read_all(timeout_s):
            if read.stream == stream and read.ends_stream:
                break
        return [read for read in self.frames if read.stream == stream]

    def read_all(self, timeout_s: float = 10.0) -> Iterator[Frame]:
        """Yield frames until the server closes the connection.

        Raises:
            TimeoutError: If it is still open after this time.
        """
        deadline = time.monotonic() + timeout_s
        while (read := self.read(deadline - time.monotonic())) is not None:
            yield read

    def is_closed(self, timeout_s: float = 10.0) -> bool:
        """Whether the server closes the connection in time; reads what it sends before."""
        try:
            for _ in self.read_all(timeout_s):
                pass
        except TimeoutError:
            return False
        return True

    def _read_bytes(self, size: int, deadline: float) -> bytes | None:
        """Return the next ``size`` bytes and keep them; None if the connection is closed before them."""
        while len(self._unparsed) < size:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError(f"{len(self._unparsed)} of {size} bytes arrived in time")
            self.socket.settimeout(remaining_s)
            try:
                received = self.socket.recv(65_536)
            except ConnectionError:
                return None
            if not received:
                return None
            self._unparsed += received
        return self._unparsed[:size]

    def _send_body(self, stream: int, messages: tuple[bytes, ...], *, end: bool) -> None:
        body, start = b"".join(map(grpc_message, messages)), 0
        while start < len(body):
            while (size := min(MAX_FRAME_BYTES, self._window(0), self._window(stream))) <= 0:
                if self.read() is None:
                    raise ConnectionError("the server has closed the connection")
            part = body[start : start + size]
            start += len(part)
            self.send(frame(DATA, END_STREAM if end and start >= len(body) else 0, stream, part))
            for number in (0, stream):
                self._windows[number] = self._window(number) - len(part)

    def _window(self, stream: int) -> int:
        return self._windows.get(stream, self._initial_window if stream else FIRST_WINDOW_BYTES)

    def _note_windows(self, read: Frame) -> None:
        """Note what the server lets us send."""
        if read.kind == WINDOW_UPDATE:
            self._windows[read.stream] = self._window(read.stream) + int.from_bytes(read.payload, "big")
        elif read.kind == SETTINGS:
            for name, value in struct.iter_unpack(">HI", read.payload):
                if name == INITIAL_WINDOW_SIZE:
                    for number in self._windows.keys() - {0}:
                        self._windows[number] += value - self._initial_window
                    self._initial_window = value


def encode_settings(settings: Mapping[int, int]) -> bytes:
    """Encode the payload of a SETTINGS frame."""
    return b"".join(struct.pack(">HI", name, value) for name, value in settings.items())


def trailers_of(frames: list[Frame]) -> str:
    """Return the trailers of a stream as far as they are plain text.

    HPACK replaces fields that the connection has sent before by their numbers, so that codes and messages are
    complete only at their first occurrence.
    """
    trailers = [read.payload for read in frames if read.kind == HEADERS]
    return trailers[-1].decode("latin-1") if trailers else ""


def grpc_code(frames: list[Frame]) -> int | None:
    """Return the status code of the first call of a connection that has ended; None if it has no trailers."""
    found = re.search(r"grpc-status(?:\x01(\d)|\x02(\d\d))", trailers_of(frames))
    return int(found[1] or found[2]) if found else None

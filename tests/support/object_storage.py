"""A server of S3's protocol on loopback, with faults on request."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from rescorer.storage import open_filesystem

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Fault = Callable[[dict[str, Any], Callable[..., Any], Application], Iterable[bytes] | None]
"""Answers a request in place of the server, or returns None."""
ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} by the test</Message></Error>"


class _QuietHandler(MotoRequestHandler):
    def log_request(self, *_: Any) -> None:
        """Print nothing."""


class ObjectStorage:
    """Answers one request at a time, so that conditional requests are atomic, as those of S3 are."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._application: Application = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._server = make_server("127.0.0.1", 0, self._answer, True, request_handler=_QuietHandler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """What clients of the storage have in their environment."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            "NO_PROXY": "127.0.0.1",
        }

    def make_bucket(self) -> str:
        """Make a bucket, and return its URL; clients must have the environment."""
        url = f"s3://bucket-{next(self._numbers)}"
        open_filesystem(url).mkdir(url)
        return url

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        with self._lock:
            for fault in list(self.faults):
                if (answer := fault(environ, start, self._application)) is not None:
                    return list(answer)
            return list(self._application(environ, start))

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[None]:
        """Let a fault answer requests meanwhile."""
        self.faults.append(fault)
        try:
            yield
        finally:
            with suppress(ValueError):
                self.faults.remove(fault)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def put(url: str, content: str | bytes) -> None:
    """Write an object."""
    open_filesystem(url).pipe_file(url, content if isinstance(content, bytes) else content.encode())


def refuse(status: str, code: str, method: str = "", part: str = "", times: int = 1_000_000) -> Fault:
    """A fault that refuses requests.

    Args:
        method: only requests with this method.
        part: only requests with this text in their path.
        times: number of requests that are refused.
    """
    left = [times]

    def answer(environ: dict[str, Any], start: Callable[..., Any], _: Application) -> Iterable[bytes] | None:
        if left[0] == 0 or not _matches(environ, method, part):
            return None
        left[0] -= 1
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        content = b"" if environ["REQUEST_METHOD"] == "HEAD" else ERROR.format(code=code).encode()
        start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(content)))])
        return [content]

    return answer


def lose_answer(method: str, part: str) -> Fault:
    """A fault that does what the first request wants, and answers with an error that clients try again."""
    refusal = refuse("500 Internal Server Error", "InternalError")
    left = [1]

    def answer(environ: dict[str, Any], start: Callable[..., Any], application: Application) -> Any:
        if left[0] == 0 or not _matches(environ, method, part):
            return None
        left[0] -= 1
        list(application(environ, lambda *_: None))
        environ["CONTENT_LENGTH"] = "0"
        return refusal(environ, start, application)

    return answer


def ignore_conditions(environ: dict[str, Any], start: Callable[..., Any], application: Application) -> None:
    """A fault of storages that do not know conditional requests."""
    environ.pop("HTTP_IF_NONE_MATCH", None)


def _matches(environ: dict[str, Any], method: str, part: str) -> bool:
    return environ["REQUEST_METHOD"].startswith(method) and part in environ["PATH_INFO"]

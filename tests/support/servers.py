"""Run a real server in a thread of the test process, with a scorer that can be paused or made to fail."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from rescorer.pipeline import Encoders, TrieScorer
from rescorer.service.server import Server
from rescorer.service.settings import load_settings
from rescorer.service.tracing import Tracing
from rescorer.service.workers.host import WARM_UP
from rescorer.trie import EdgeScores, HypothesisTrie

# By default structlog prints errors with the source and all variables, which takes a second each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


class ControlledScorer(TrieScorer):
    """A real trie scorer that a test can pause or make fail."""

    error: Exception | None = None
    """Error to raise instead of scoring; the warm-up still succeeds."""
    poison = "poison"
    """Word that makes every batch that contains it fail."""
    broken = False
    """Whether all scoring fails, the warm-up included, as on a broken device."""
    calls = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gate = threading.Event()
        """Scoring waits until this event is set."""
        self.gate.set()
        self.entered = threading.Event()
        """Set when scoring begins, before waiting for ``gate``."""

    def score(
        self,
        trie: HypothesisTrie,
        only: Sequence[str] = (),
        encoders: Encoders | None = None,
        *,
        surface: bool = False,
        words: Collection[str] = (),
    ) -> dict[str, EdgeScores]:
        if self.broken:
            raise RuntimeError("the device is broken")
        self.calls += 1
        if trie is not WARM_UP:
            self.entered.set()
            self.gate.wait(20)
            if self.error is not None:
                raise self.error
            if self.poison in trie.words:
                raise RuntimeError("poisoned")
        return super().score(trie, only, encoders, surface=surface, words=words)


class RunningServer:
    """A server whose event loop runs in a thread of its own."""

    def __init__(
        self, bundle: Path, load: Callable | None = None, tracing: Tracing | None = None, **settings: Any
    ) -> None:
        self.scorer: ControlledScorer | None = None
        self._load, self._tracing = load or ControlledScorer.load, tracing
        settings = {"port": 0, "threads": 1, "workers": 0} | settings  # score in this process, under control
        self.settings = load_settings(bundle=bundle, **settings)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.server = self.run(self._create_server())
        self.port = self.run(self.server.start())

    @property
    def in_flight(self) -> int:
        """Number of lists that were accepted and not answered yet."""
        return self.server.engine.admission.lists.held

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def load(self) -> None:
        self.run(self.server.load())

    def submit(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Any) -> Any:
        return self.submit(coroutine).result(30)

    def close(self) -> None:
        self.run(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _create_server(self) -> Server:
        def load(folder: Path, device: str, **options: Any) -> TrieScorer:
            self.scorer = self._load(folder, device, **options)
            return self.scorer

        return Server(self.settings, load, tracing=self._tracing)


@contextmanager
def run_server(
    bundle: Path, *, load: bool = True, load_scorer: Callable | None = None, **settings: Any
) -> Iterator[RunningServer]:
    """Start a server, with its models loaded unless ``load`` is false, and stop it at the end."""
    server = RunningServer(bundle, load_scorer, **settings)
    try:
        if load:
            server.load()
        yield server
    finally:
        server.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Ask every hundredth of a second, or so rarely that asking takes at most half of the time."""
    deadline = time.monotonic() + timeout_s
    asked = time.monotonic()
    while not condition():
        answered = time.monotonic()
        assert answered < deadline, f"the condition did not become true within {timeout_s} s"
        time.sleep(max(0.01, answered - asked))
        asked = time.monotonic()

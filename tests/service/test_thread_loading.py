"""Loading with ``workers = 0``: nothing is answered meanwhile, but nothing is taken for broken either."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rescorer import Hypothesis, NBestList
from rescorer.client import Client
from rescorer.pipeline import TrieScorer
from tests.support.prometheus import get_value, read_samples
from tests.support.repositories import add_version
from tests.support.servers import RunningServer
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow

LISTS = [NBestList("u1", (Hypothesis("the cat sat"), Hypothesis("the mat")), {"acoustic": (-1.0, -2.0)})]


class SlowScorer(TrieScorer):
    """Models of which the second version keeps Python's lock for 3 s while it is loaded, as KenLM does, and
    that take a while for a batch, so that a load begins during one."""

    @classmethod
    def load(cls, folder, device, **options):
        if folder.name == "2":
            ctypes.PyDLL(None).usleep(3_000_000)
        return super().load(folder, device, **options)

    def score(self, trie, only=(), encoders=None, *, surface=False, words=()):
        time.sleep(0.2)
        return super().score(trie, only, encoders, surface=surface, words=words)


def test_a_load_that_blocks_the_process_does_not_end_the_scoring_thread(tmp_path):
    write_bundle(tmp_path / "models", neural=False)
    server = RunningServer(
        None,
        load=SlowScorer.load,
        repository=tmp_path / "models",
        worker_timeout_s=1,
        poll_s=0.2,
        metrics_port=0,
    )
    try:
        server.load()
        with Client(server.target) as client, ThreadPoolExecutor(2) as pool:
            deadline = time.monotonic() + 6

            def call_until_deadline(_: int) -> set[str]:
                models = set()
                while time.monotonic() < deadline:
                    models.add(client.rescore(LISTS, timeout_s=20)[0].model)
                return models

            calls = [pool.submit(call_until_deadline, number) for number in range(2)]
            time.sleep(1)
            add_version(tmp_path / "models", "tiny/2")
            assert set().union(*(call.result() for call in calls)) == {"tiny/1", "tiny/2"}
        samples = read_samples(server.server.metrics_port)
        assert (get_value(samples, "ready"), get_value(samples, "workers_alive")) == (1, 1)
    finally:
        server.close()

"""A polite client is answered although another one floods the server, which scores 100 lists per second."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from rescorer import Hypothesis, NBestList
from rescorer.client import Client
from rescorer.client.connection import NO_RETRY, Retry
from rescorer.errors import RescorerError
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.access import hash_token
from rescorer.service.workers.host import WARM_UP
from rescorer.types import Weights
from tests.support.flood import TEXTS, flood
from tests.support.servers import ControlledScorer, run_server, wait_until
from tests.support.stubs import make_list_message
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow

BATCH_TOKENS = 800
"""Five lists, a twentieth of a second."""
CALLS, CALLS_PER_S, DEADLINE_S = 24, 3, 3.0
NBEST = NBestList("u", tuple(map(Hypothesis, TEXTS)), {"acoustic": (-1.0,) * len(TEXTS)})


class SlowScorer(ControlledScorer):
    """A scorer with a given speed, whatever the machine does."""

    def score(self, trie, only=(), encoders=None, *, surface=False, words=()):
        if trie is not WARM_UP and not only:  # the n-gram model alone takes no time
            time.sleep(len(trie.hypothesis_node) / len(TEXTS) / 100)
        return super().score(trie, only, encoders, surface=surface, words=words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    weights = Weights("default", {"acoustic": 1.0}, {"mixture": 2.0}, 0.1, -1.0, {"ngram": 1.0})
    return write_bundle(tmp_path_factory.mktemp("ngram"), weights, neural=False)


def run_slow_server(folder, **settings):
    limits = {"max_batch_tokens": BATCH_TOKENS, "max_words": 100}
    return run_server(folder, load_scorer=SlowScorer.load, **limits, **settings)


def count_answered(target: str, retry: Retry, token: str = "", deadline_s: float = DEADLINE_S) -> int:
    """Make calls at a steady rate, each with its own deadline, over one connection."""

    def call(client: Client) -> bool:
        try:
            client.rescore([NBEST], timeout_s=deadline_s)
        except RescorerError as error:
            print(error)
            return False
        return True

    with Client(target, retry=retry, token=token) as client, ThreadPoolExecutor(CALLS) as threads:
        client.wait_ready(20)
        calls = []
        for _ in range(CALLS):
            calls.append(threads.submit(call, client))
            time.sleep(1 / CALLS_PER_S)
        return sum(call.result() for call in calls)


def wait_until_flooded(server) -> None:
    wait_until(lambda: server.in_flight > 100, 30)
    time.sleep(2)  # until the server knows how fast it is


@pytest.mark.parametrize(
    ("connections", "calls", "retry"), [(1, 400, Retry()), (10, 8, NO_RETRY)], ids=["retries", "no-retries"]
)
def test_answers_a_polite_connection_beside_flooding_ones(folder, connections, calls, retry):
    with run_slow_server(folder) as server, flood(server.target, connections, calls):
        wait_until_flooded(server)
        assert count_answered(server.target, retry) >= 0.95 * CALLS


def test_answers_a_polite_client_beside_one_with_many_connections(folder, tmp_path):
    access = tmp_path / "clients.toml"
    access.write_text(
        "".join(
            f'[[client]]\nname = "{name}"\nroles = ["score"]\ntoken_sha256 = ["{hash_token(name)}"]\n'
            for name in ("flooding", "polite")
        )
    )
    access.chmod(0o600)
    with run_slow_server(folder, access=access) as server, flood(server.target, 10, 8, token="flooding"):
        wait_until_flooded(server)
        assert count_answered(server.target, NO_RETRY, "polite") >= 0.95 * CALLS


def test_large_message_of_a_stream_is_answered_beside_many_small_calls(folder):
    """Forty connections fill what each finished call leaves, which is never enough for eight lists."""
    request = pb.RescoreStreamRequest(lists=[make_list_message(texts=TEXTS)] * 8)
    with (
        run_slow_server(folder, max_in_flight_lists=16, max_lists=16) as server,
        flood(server.target, 40, 1, 1),
    ):
        wait_until(lambda: server.in_flight == 16, 30)
        with grpc.insecure_channel(server.target) as channel:
            for _ in range(3):
                (response,) = RescorerServiceStub(channel).RescoreStream(iter([request]), timeout=10)
                assert [answer.status.code for answer in response.lists] == [0] * 8


def test_fallbacks_of_a_flooding_client_do_not_keep_others_from_being_served(folder):
    """Fallbacks take the machine's time, not that of a scorer with a given speed; hence the long deadline."""
    with run_slow_server(folder) as server, flood(server.target, 1, 128, 8, fallback=pb.FALLBACK_NGRAM):
        wait_until_flooded(server)
        assert count_answered(server.target, NO_RETRY, deadline_s=4 * DEADLINE_S) >= 0.95 * CALLS

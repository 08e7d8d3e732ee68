"""The requests that cost most within all limits keep a front end below 1 GB, several at once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from rescorer.extensions import make_ranker
from rescorer.models.bundle import read_bundle
from rescorer.service.settings import load_settings
from tests.support.serve_command import run_serve_command
from tests.support.small_dictionary import write_dictionary
from tools.fuzz.worst import Shape, find_slowest, find_worst, measure

CALLS = 12
WORST = (
    Shape(lists=16, hypotheses=100, words=30, differs="first", streams=250, fields=6),
    Shape(lists=16, hypotheses=2000, words=1, differs="first", streams=1),
    Shape(lists=1, hypotheses=2000, words=900, differs="last"),
    Shape(lists=8, hypotheses=250, words=16, differs="first", streams=110),
    Shape(lists=8, hypotheses=2000, words=1, fields=6),
)
"""The shape that ``python -m tools.fuzz.worst`` found, and others that are extreme in one of their sizes."""


@pytest.mark.slow
def test_a_front_end_stays_below_1_gb(ngram_bundle, tmp_path):
    with run_serve_command(ngram_bundle, tmp_path) as (process, client), ThreadPoolExecutor(CALLS) as pool:
        target = f"127.0.0.1:{(tmp_path / 'port').read_text().strip()}"

        def send(data: bytes) -> str:
            options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(target, options) as channel:
                call = channel.unary_unary("/rescorer.v1.RescorerService/Rescore")
                try:
                    return "answered" if call(data, timeout=60) else ""
                except grpc.RpcError as error:
                    return error.code().name

        for shape in WORST:
            outcomes = set(pool.map(send, [shape.make_request().SerializeToString()] * CALLS))
            assert "answered" in outcomes, (shape, outcomes)
            assert outcomes <= {"answered", "RESOURCE_EXHAUSTED"}
        assert peak_bytes(process.pid) < 1e9
        client.wait_ready(10)


def peak_bytes(pid: int) -> int:
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0])


def test_search_finds_the_larger_of_allowed_requests(ngram_bundle):
    settings = load_settings(bundle=ngram_bundle, max_message_bytes=20_000, max_response_bytes=100_000)
    ranker = make_ranker(read_bundle(ngram_bundle))
    small, large = Shape(hypotheses=300, words=5), Shape(hypotheses=300, words=20)
    too_large, too_long = Shape(hypotheses=300, words=500), Shape(hypotheses=2000, words=2)
    worst = find_worst([large, too_large, small, too_long], ranker, settings)
    assert [cost.shape for cost in worst] == [small, large]
    assert measure(too_long, ranker, settings) is None


def test_search_measures_small_requests_in_which_something_is_searched(ngram_bundle, tmp_path):
    settings = load_settings(bundle=ngram_bundle, max_previous=20)
    ranker = make_ranker(read_bundle(ngram_bundle), write_dictionary(tmp_path))
    searched = Shape(words=20, word="rust", phrases=3, phrase_words=2, spellings=5, generate=True)
    dropped, refused, small = Shape(previous=20), Shape(previous=21), Shape(words=20)
    found = find_slowest([searched, dropped, refused, small], ranker, settings)
    assert {cost.shape for cost in found} == {searched, dropped}
    assert all(cost.seconds > 0 for cost in found)
    (nbest,) = searched.make_request().lists
    assert [len(phrase.spellings) for phrase in nbest.phrases] == [5] * 3
    assert len({way for phrase in nbest.phrases for way in (phrase.text, *phrase.spellings)}) == 18

"""The commands ``python -m tools``: a hundredth of each run on a real server, and what judges answers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rescorer import Rescorer
from rescorer.errors import DeadlineExceeded, ServiceError
from rescorer.load.client import Spec
from rescorer.load.crowd import client
from rescorer.load.server import judged
from rescorer.protocol.v1 import rescorer_pb2 as pb
from tests.support.clients import make_list
from tools.chaos.expected import Expected, write_expected
from tools.chaos.versions import Versions


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "lists.jsonl"
    words = ("the cat sat", "the mat", "a zebra on the mat", "the cat sat on the mat", "on")
    with path.open("w") as stream:
        for i in range(12):
            texts = [{"text": f"{words[(i + j) % 5]} {j}", "scores": {"acoustic": -j}} for j in range(2 + i)]
            print(json.dumps({"id": f"u{i}", "hypotheses": texts}), file=stream)
    return path


def stress(name, lists, bundle, *options):
    command = (sys.executable, "-m", "tools", name, lists, "--bundle", bundle, "--json")
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_exchanged_models_and_killed_scorers_are_not_seen_by_callers(lists, ngram_bundle):
    options = ("--calls", "1000", "--processes", "2", "--reloads", "4", "--kills", "2", "--limit-s", "120")
    report = stress("chaos", lists, ngram_bundle, *options)
    seen = report["seen"]
    assert (report["faults"], seen["complaints"], seen["failures"]) == ([], [], [])
    assert seen["calls"] >= 1000
    assert len(seen["models"]) >= 3
    assert report["restarts"] == 2
    assert set(seen["ends"]["whole"]) == set(seen["ends"]["stream"]) == {"OK"}


def test_nonsense_is_refused_or_answered_and_the_server_goes_on(lists, ngram_bundle):
    report = stress("fuzz", lists, ngram_bundle, "--requests", "2000", "--limit-s", "120")
    assert report["faults"] == []
    assert sum(report["kinds"].values()) == 2000
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"} <= set(report["codes"])
    assert set(report["list_codes"]) == {"OK", "INVALID_ARGUMENT"}
    assert report["health_max_ms"] < 20_000


def test_a_soak_tells_what_has_grown(lists, ngram_bundle, tmp_path):
    options = ("--lists", "2000", "--seconds", "20", "--limit-s", "60", "--log", tmp_path / "log")
    report = stress("soak", lists, ngram_bundle, *options)
    assert report["faults"] == []
    assert 0 < report["p50_ms"] <= report["p99_ms"] <= report["longest_ms"]
    assert '"event": "stopped"' in (tmp_path / "log").read_text()
    assert report["lists"] == 2000
    assert {each["process"] for each in report["grown"]["end"]} == {"server", "scorer"}
    assert report["grown"]["rss_mb_end"] > 10
    assert abs(report["more_descriptors"]) <= 8
    assert abs(report["more_threads"]) <= 4


def test_a_run_that_takes_too_long_is_given_up(tmp_path):
    with pytest.raises(DeadlineExceeded, match=r"longer than 0\.2 s"), judged(tmp_path / "log", 0.2):
        client(Spec("127.0.0.1:1", [], 0.0, 60.0, 60.0), limit_s=0.2)


def test_a_run_that_cannot_go_on_tells_what_the_server_has_logged(tmp_path):
    log = tmp_path / "log"
    log.write_text('{"event": "broken", "level": "critical"}\n{"event": "serving", "level": "info"}\nnoise\n')
    with pytest.raises(ServiceError, match=r"refused.*broken") as told, judged(log, 1.0):
        raise ConnectionRefusedError("refused")
    assert "serving" not in str(told.value)


@pytest.fixture
def answer(ngram_bundle, tmp_path):
    """A request and the library's own answer to it, and who looks for faults in that."""
    rescorer = Rescorer.load(ngram_bundle)
    sent = [make_list("a"), make_list("b", "the cat sat", "on the mat", "on")]
    write_expected(tmp_path, rescorer, sent, "default")
    request = pb.RescoreRequest(
        lists=[
            pb.NBestList(id=x.id, hypotheses=[pb.Hypothesis(text=h.text) for h in x.hypotheses]) for x in sent
        ]
    )
    response = pb.RescoreResponse(model=rescorer.bundle.label)
    for each in rescorer.rescore(sent):
        listed = response.lists.add(id=each.id)
        for rank, got in enumerate(each.hypotheses, start=1):
            listed.hypotheses.add(
                text=got.text,
                rank=rank,
                original_rank=got.original_rank + 1,
                total=got.total,
                components=dict(got.components),
            )
    return request, response, Expected(tmp_path)


def test_the_library_s_own_answer_has_no_faults(answer):
    request, response, expected = answer
    assert list(expected.complaints([0, 1], request, response)) == []


def another_id(response):
    response.lists[0].id = "c"


def another_score(response):
    response.lists[1].hypotheses[0].components["ngram"] += 0.01


def another_total(response):
    response.lists[1].hypotheses[2].total = float("nan")


def another_order(response):
    response.lists[1].hypotheses[0].rank = 2


def another_text(response):
    response.lists[0].hypotheses[0].text = "the dog"


def another_model(response):
    response.model = "tiny/7"


def a_hypothesis_less(response):
    del response.lists[0].hypotheses[0]


def a_list_twice(response):
    response.lists.add().CopyFrom(response.lists[0])


def a_list_refused(response):
    response.lists[1].status.code = 13


@pytest.mark.parametrize(
    "wrong",
    [
        another_id,
        another_score,
        another_total,
        another_order,
        another_text,
        another_model,
        a_hypothesis_less,
        a_list_twice,
        a_list_refused,
    ],
)
def test_a_wrong_answer_is_found(answer, wrong):
    request, response, expected = answer
    wrong(response)
    assert len(list(expected.complaints([0, 1], request, response))) == 1


def test_versions_of_a_bundle_score_differently(bundle, tmp_path):
    versions = Versions(tmp_path, bundle, [make_list()], "default")
    labels = [versions.add() for _ in range(3)]
    assert labels == ["tiny/1", "tiny/2", "tiny/3"]
    assert versions.take_back() == "tiny/2"
    first, second = (Rescorer.load(each).rescore([make_list()])[0].best for each in versions.present)
    assert abs(first.components["neural"] - second.components["neural"]) > 1e-3
    assert abs(first.total - second.total) > 1e-3
    assert len(list(versions.expected.iterdir())) == 3
    versions.keep(1)
    assert [each.name for each in versions.present] == ["2"]

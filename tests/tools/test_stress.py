"""Tests of the commands ``python -m tools``: short runs against a real server, and the checks they make."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from rescorer import Rescorer
from rescorer.bench.load import ClientConfig, run_client
from rescorer.errors import DeadlineExceeded, ServiceError
from rescorer.protocol.v1 import rescorer_pb2 as pb
from tests.support.clients import make_list
from tools.chaos.versions import AnswerChecker, VersionRepository, write_expected
from tools.observation import explain_errors

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "lists.jsonl"
    words = ("the cat sat", "the mat", "a zebra on the mat", "the cat sat on the mat", "on")
    with path.open("w") as stream:
        for i in range(12):
            texts = [{"text": f"{words[(i + j) % 5]} {j}", "scores": {"acoustic": -j}} for j in range(2 + i)]
            print(json.dumps({"id": f"u{i}", "hypotheses": texts}), file=stream)
    return path


def run_command(name, lists, bundle, *options):
    command = (sys.executable, "-m", "tools", name, lists, "--bundle", bundle, "--json")
    process = subprocess.run([*command, *options], capture_output=True, text=True, timeout=200)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_reloads_and_killed_workers_do_not_affect_callers(lists, ngram_bundle):
    options = ("--calls", "600", "--processes", "2", "--reloads", "3", "--kills", "2", "--limit-s", "120")
    report = run_command("chaos", lists, ngram_bundle, *options)
    callers = report["seen"]
    assert (report["faults"], callers["complaints"], callers["failures"]) == ([], [], [])
    assert callers["calls"] >= 600
    assert len(callers["models"]) >= 3
    assert 1 <= report["restarts"] <= 2  # the second kill may hit the process that replaces the first one's
    assert set(callers["ends"]["whole"]) == set(callers["ends"]["stream"]) == {"OK"}


def test_malformed_requests_are_refused_or_answered(lists, ngram_bundle):
    report = run_command("fuzz", lists, ngram_bundle, "--requests", "1200", "--limit-s", "120")
    assert report["faults"] == []
    assert sum(report["kinds"].values()) == 1200
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"} <= set(report["codes"])
    assert set(report["list_codes"]) == {"OK", "INVALID_ARGUMENT"}
    assert report["health_max_ms"] < 20_000


def test_soak_reports_growth(lists, ngram_bundle, tmp_path):
    options = ("--seconds", "8", "--reloads", "2", "--limit-s", "60")
    report = run_command("soak", lists, ngram_bundle, *options, "--log", tmp_path / "log")
    assert report["faults"] == []
    assert 0 < report["p50_ms"] <= report["p99_ms"] <= report["longest_ms"]
    assert '"event": "stopped"' in (tmp_path / "log").read_text()
    assert report["lists"] > 0
    assert report["loaded"] in {2, 3}
    assert {usage["process"] for usage in report["grown"]["end"]} == {"server", "worker"}
    assert report["grown"]["rss_mb_end"] > 10
    assert abs(report["more_descriptors"]) <= 8
    assert abs(report["more_threads"]) <= 4


def test_run_that_takes_too_long_fails(tmp_path):
    config = ClientConfig("127.0.0.1:1", [], 0.0, 60.0, 60.0)
    with pytest.raises(DeadlineExceeded, match=r"longer than 0\.2 s"), explain_errors(tmp_path / "log", 0.2):
        asyncio.run(asyncio.wait_for(run_client(config), 0.2))


def test_error_of_a_run_quotes_the_log(tmp_path):
    log = tmp_path / "log"
    log.write_text('{"event": "broken", "level": "critical"}\n{"event": "serving", "level": "info"}\nnoise\n')
    with pytest.raises(ServiceError, match=r"refused.*broken") as caught, explain_errors(log, 1.0):
        raise ConnectionRefusedError("refused")
    assert "serving" not in str(caught.value)


@pytest.fixture
def checked_answer(ngram_bundle, tmp_path):
    """A request, the library's answer to it, and a checker."""
    rescorer = Rescorer.load(ngram_bundle)
    lists = [make_list("a"), make_list("b", "the cat sat", "on the mat", "on")]
    write_expected(tmp_path, rescorer, lists, "default")
    request = pb.RescoreRequest(
        lists=[
            pb.NBestList(
                id=nbest.id,
                hypotheses=[pb.Hypothesis(text=hypothesis.text) for hypothesis in nbest.hypotheses],
            )
            for nbest in lists
        ]
    )
    response = pb.RescoreResponse(model=rescorer.bundle.label)
    for answer in rescorer.rescore(lists):
        message = response.lists.add(id=answer.id)
        for rank, hypothesis in enumerate(answer.hypotheses, start=1):
            message.hypotheses.add(
                text=hypothesis.text,
                rank=rank,
                original_rank=hypothesis.original_rank + 1,
                total=hypothesis.total,
                components=dict(hypothesis.components),
            )
    return request, response, AnswerChecker(tmp_path)


def test_accepts_the_answer_of_the_library(checked_answer):
    request, response, checker = checked_answer
    assert list(checker.find_errors([0, 1], request, response)) == []


def change_id(response):
    response.lists[0].id = "c"


def change_component(response):
    response.lists[1].hypotheses[0].components["ngram"] += 0.01


def change_total(response):
    response.lists[1].hypotheses[2].total = float("nan")


def change_rank(response):
    response.lists[1].hypotheses[0].rank = 2


def change_text(response):
    response.lists[0].hypotheses[0].text = "the dog"


def change_model(response):
    response.model = "tiny/7"


def remove_hypothesis(response):
    del response.lists[0].hypotheses[0]


def repeat_list(response):
    response.lists.add().CopyFrom(response.lists[0])


def fail_list(response):
    response.lists[1].status.code = 13


@pytest.mark.parametrize(
    "change",
    [
        change_id,
        change_component,
        change_total,
        change_rank,
        change_text,
        change_model,
        remove_hypothesis,
        repeat_list,
        fail_list,
    ],
)
def test_detects_a_wrong_answer(checked_answer, change):
    request, response, checker = checked_answer
    change(response)
    assert len(list(checker.find_errors([0, 1], request, response))) == 1


def test_versions_of_a_bundle_score_differently(bundle, tmp_path):
    repository = VersionRepository(tmp_path, bundle, [make_list()], "default")
    labels = [repository.publish_next() for _ in range(3)]
    assert labels == ["tiny/1", "tiny/2", "tiny/3"]
    assert repository.remove_newest() == "tiny/2"
    first, second = (Rescorer.load(folder).rescore([make_list()])[0].best for folder in repository.versions)
    assert abs(first.components["neural"] - second.components["neural"]) > 1e-3
    assert abs(first.total - second.total) > 1e-3
    assert len(list(repository.expected.iterdir())) == 3
    repository.remove_all_but_newest(1)
    assert [folder.name for folder in repository.versions] == ["2"]

"""The search for requests that take more processor time than they are admitted for."""

from __future__ import annotations

import json
import random
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from rescorer.extensions import make_ranker
from rescorer.models.bundle import read_bundle
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.engine.census import count_reading
from rescorer.service.settings import load_settings
from tests.support.small_dictionary import write_dictionary
from tools.__main__ import app
from tools.fuzz import costs
from tools.fuzz.costs import TEXTS, Excess, RandomRequest, search_costs, time_jobs


def test_random_requests_have_every_feature():
    rng = random.Random(1)
    for feature in RandomRequest(rng, 1.0).features():
        request = pb.RescoreRequest(lists=[pb.NBestList(hypotheses=[pb.Hypothesis(text="a b")])])
        before = request.SerializeToString()
        feature(request)
        assert request.SerializeToString() != before
    made = [RandomRequest(rng, 1.0) for _ in range(120)]
    requests = [one.make() for one in made]
    assert {one.kinds[0] for one in made} == set(TEXTS)
    assert len({len(request.lists) for request in requests}) > 2


def test_jobs_end_where_a_request_is_refused(ngram_bundle, tmp_path):
    ranker = make_ranker(read_bundle(ngram_bundle), write_dictionary(tmp_path))
    settings = load_settings(bundle=ngram_bundle, max_lists=1)
    nbest = pb.NBestList(hypotheses=[pb.Hypothesis(text="the cat")], phrases=[pb.Phrase(text="cat")])
    message = pb.RescoreRequest(lists=[nbest], weights=pb.Weights(lm={"mixture": 1}))
    job, write = time_jobs(message.SerializeToString(), ranker, None, settings)
    assert (job.name, write.name) == ("read", "write")
    assert job.tokens > count_reading(message.SerializeToString())  # searches are admitted before they begin
    message.lists.append(nbest)
    (refused,) = time_jobs(message.SerializeToString(), ranker, None, settings)
    assert refused.tokens == count_reading(message.SerializeToString())


def test_report_names_jobs_that_took_too_long(ngram_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "N_CALIBRATIONS", 1)
    monkeypatch.setattr(costs, "LEAST_S", 0.0)
    monkeypatch.setattr(costs, "MAX_EXCESS", -1.0)  # whatever they took
    report = search_costs(ngram_bundle, 3, 1, 60, write_dictionary(tmp_path), shown=2)
    assert report.requests == asdict(report)["jobs"]["read"] == 3
    assert len(report.worst) == 2
    assert all(isinstance(one, Excess) and one.seconds >= 0 for one in report.worst)
    assert report.worst[0].times >= report.worst[1].times
    assert len(report.faults) >= 2
    assert "times as long as those of ordinary requests" in report.faults[0]


@pytest.mark.parametrize("faults", [[], ["commas: read took 9 s"]])
def test_command_fails_if_a_job_took_too_long(faults, monkeypatch, tmp_path):
    monkeypatch.setattr(
        costs,
        "search_costs",
        lambda *_, **__: costs.CostReport(
            3, {"read": 3}, faults=faults, worst=[Excess("a", "read", 1, 1, 0.5, 2.0)]
        ),
    )
    result = CliRunner().invoke(app, ["worst", str(tmp_path), "--json"])
    report = json.loads(result.output)
    assert (report["requests"], report["jobs"]) == (3, {"read": 3})
    assert (result.exception is not None) == bool(faults)

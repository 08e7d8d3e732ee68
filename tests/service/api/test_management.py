"""Models of a running server are described, and replaced without failing requests."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from rescorer import Hypothesis, NBestList, Rescorer
from rescorer.client import Client
from rescorer.errors import ModelNotFound
from rescorer.protocol.v1 import models_pb2 as pb
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from tests.support.servers import run_server, wait_until
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def add(original, folder):
    """Return a function that adds a version to the repository atomically, by one rename."""

    def add(version: int, name: str = "tiny") -> Path:
        partial = folder / name / f".{version}.partial"
        shutil.copytree(original, partial)
        manifest = json.loads((partial / "manifest.json").read_text())
        manifest |= {"name": name, "version": version, "training": {"text": "by hand"}}
        manifest["measured"] = {
            "test": {
                "text": "t.txt",
                "tokens": 9,
                "unknown_words": 1,
                "perplexity": {"ngram": 8.5, "mixture": 7.0},
            }
        }
        (partial / "manifest.json").write_text(json.dumps(manifest))
        return partial.rename(folder / name / str(version))

    return add


ODD_VALUES = (
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    -1,
    10**17,
    True,
    None,
    "many",
    "9" * 100_000,
    [],
    {"a": [1]},
)


def test_odd_facts_of_a_manifest_do_not_break_its_description(add, folder):
    manifest_file = add(1) / "manifest.json"
    manifest = json.loads(manifest_file.read_text())
    entries = [
        {"text": value, "tokens": value, "unknown_words": value, "perplexity": {"ngram": value, "mixture": 7}}
        for value in ODD_VALUES
    ]
    manifest["measured"] |= {f"odd {i}": entry for i, entry in enumerate(entries)}
    manifest["measured"] |= {f"bare {i}": value for i, value in enumerate(ODD_VALUES)}
    manifest["measured"] |= {f"half {i}": {"perplexity": value} for i, value in enumerate(ODD_VALUES)}
    manifest["training"] = {f"fact {i}": value for i, value in enumerate(ODD_VALUES)}
    manifest_file.write_text(json.dumps(manifest))
    with run_server(None, repository=folder) as server, grpc.insecure_channel(server.target) as channel:
        model = ModelServiceStub(channel).GetModel(pb.GetModelRequest(), timeout=20).model
    measured = {measurement.name: measurement for measurement in model.measurements}
    assert measured["test"].tokens == 9
    for i, value in enumerate(ODD_VALUES):
        odd = measured[f"odd {i}"]
        assert odd.tokens == odd.unknown_words == (value if value == 10**17 else 0)
        assert odd.perplexity["mixture"] == 7
        assert len(odd.text) <= 100
    assert set(model.training) == set(manifest["training"])


def make_lists(count: int) -> list[NBestList]:
    texts = ("the cat sat", "the mat sat", "a zebra ran fast")
    return [
        NBestList(f"u{i}", tuple(map(Hypothesis, texts)), {"acoustic": (-1.0, -1.1 - 0.01 * i, -0.5)})
        for i in range(count)
    ]


def test_lists_and_describes_models(folder, add):
    add(1)
    (add(2) / "text.json").write_text("{}")
    add(7, "other")
    with (
        run_server(None, repository=folder, models=("tiny", "other")) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        stub = ModelServiceStub(channel)
        first, second, refused = stub.ListModels(pb.ListModelsRequest()).models
        assert (first.model, first.state, first.is_default) == ("tiny/1", pb.MODEL_STATE_SERVING, True)
        assert (second.model, second.state, second.is_default) == ("other/7", pb.MODEL_STATE_SERVING, False)
        assert (refused.model, refused.state) == ("tiny/2", pb.MODEL_STATE_REFUSED)
        assert refused.reason.startswith("tiny/2/text.json: corrupt")
        assert first.memory_bytes > 0
        model = stub.GetModel(pb.GetModelRequest()).model
        assert model.summary == first
        ngram, neural = model.language_models
        assert (ngram.name, ngram.kind, ngram.vocabulary_size, ngram.parameters) == ("ngram", "ngram", 6, 17)
        assert (neural.kind, neural.vocabulary_size) == ("neural", 8)
        (measured,) = model.measurements
        assert (measured.name, measured.tokens, dict(measured.perplexity)["mixture"]) == ("test", 9, 7.0)
        assert [weights.name for weights in model.weights] == ["default"]
        assert dict(model.training) == {"text": "by hand"}
        assert "ngram/model.arpa" in model.files
        assert "drop" in dict(model.normaliser)
        assert stub.GetModel(pb.GetModelRequest(model="other")).model.summary.model == "other/7"
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetModel(pb.GetModelRequest(model="tiny/2"))
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "model 'tiny/2' cannot be loaded: tiny/2/text.json: corrupt" in caught.value.details()


@pytest.mark.parametrize("workers", [0, 1])
def test_replaces_models_under_load_without_failing_requests(folder, add, workers):
    expected = Rescorer.load(add(1)).rescore(make_lists(4))
    stop = threading.Event()
    seen: tuple[list[str], ...] = ([], [], [])
    with run_server(None, repository=folder, workers=workers) as server:

        def call_repeatedly(seen: list[str]) -> None:
            with Client(server.target) as client:
                while not stop.is_set():
                    answers = client.rescore(make_lists(4), timeout_s=60)
                    seen.append(answers[0].model)
                    for answer, wanted in zip(answers, expected, strict=True):
                        assert [hypothesis.text for hypothesis in answer.hypotheses] == [
                            hypothesis.text for hypothesis in wanted.hypotheses
                        ]
                        assert answer.best.total == pytest.approx(wanted.best.total, abs=1e-4)
                    time.sleep(0.03)  # leaves the processor to what loads the models

        with ThreadPoolExecutor(3) as callers:
            calls = [callers.submit(call_repeatedly, models) for models in seen]
            try:
                for version in (2, 3, 4, 5):
                    add(version)
                    changes = server.run(server.server.reloader.reload())
                    assert changes.loaded == [f"tiny/{version}"]
                    assert changes.retired == [f"tiny/{version - 1}"]
                (add(6) / "manifest.json").unlink()
                assert "tiny/6" in server.run(server.server.reloader.reload()).refused
                # a call that began before the last model was loaded may still be under way
                wait_until(lambda: all(models[-1:] == ["tiny/5"] for models in seen), 60)
            finally:
                stop.set()
            for call in calls:
                call.result(60)
        for models in seen:
            assert models == sorted(models)
        wait_until(lambda: [version.label for version in server.server.models.versions] == ["tiny/5"])


def test_polls_for_new_versions_if_configured(folder, add):
    add(1)
    with run_server(None, repository=folder, poll_s=0.1) as server, Client(server.target) as client:
        assert client.rescore(make_lists(1))[0].model == "tiny/1"
        add(2)
        wait_until(lambda: client.rescore(make_lists(1))[0].model == "tiny/2", 60)
        with Client(server.target, model="tiny/1") as pinned, pytest.raises(ModelNotFound):
            pinned.rescore(make_lists(1))

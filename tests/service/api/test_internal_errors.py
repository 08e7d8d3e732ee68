"""Reasons of unexpected errors: the request's id and nothing else, wherever the error is raised."""

from __future__ import annotations

import json

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from rescorer.frames import error_from_header, error_header
from rescorer.protocol.messages import status_from_error
from rescorer.protocol.v1 import models_pb2
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from rescorer.scoring.ranker import ListRanker
from rescorer.service.api import rescoring
from tests.support.servers import run_server
from tests.support.stubs import make_list_message
from tests.support.tiny_models import write_bundle

SECRET = "/secret/path of the server"
ERRORS = [MemoryError(), KeyError(SECRET), RuntimeError(SECRET), OSError(28, SECRET), AttributeError(SECRET)]
IDS = [type(error).__name__ for error in ERRORS]


def expect_internal_error(call, request) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, metadata=(("x-request-id", "mine"),))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert caught.value.details() == "internal error; look for request mine in the server's log"
    (detail,) = rpc_status.from_call(caught.value).details
    info = ErrorInfo.FromString(detail.value)
    assert dict(info.metadata) == {"request_id": "mine"}
    assert info.reason in ("INTERNAL", "SCORING_FAILED")


@pytest.fixture(scope="module")
def served_bundle(ngram_bundle):
    return ngram_bundle


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
@pytest.mark.parametrize("stage", ["prepare", "score", "rank", "respond"])
def test_a_reason_never_quotes_an_unexpected_error(server, stub, monkeypatch, stage, error):
    def fail(*args, **options):
        raise error

    if stage == "prepare":
        monkeypatch.setattr(ListRanker, "prepare", fail)
    elif stage == "score":
        monkeypatch.setattr(server.scorer, "error", error)
    elif stage == "rank":
        monkeypatch.setattr(rescoring, "rank_list", fail)
    else:
        monkeypatch.setattr(rescoring, "make_timing", fail)
    expect_internal_error(stub.Rescore, pb.RescoreRequest(lists=[make_list_message()]))
    if stage in ("score", "respond"):
        expect_internal_error(stub.ScoreText, pb.ScoreTextRequest(texts=["the cat"]))


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_an_error_in_a_worker_reaches_the_log_only(error):
    try:
        raise error
    except Exception as raised:
        received = error_from_header(error_header(raised))
    assert type(error).__name__ in "".join(received.__notes__)
    for text in (str(received), str(status_from_error(received, "mine", "lists[0]"))):
        assert SECRET not in text
        assert "Error" not in text.replace("ErrorInfo", "")


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_a_refused_model_does_not_quote_an_unexpected_error(tmp_path, monkeypatch, error):
    folder = tmp_path / "models"
    write_bundle(folder, neural=False)
    with run_server(None, repository=folder) as server, grpc.insecure_channel(server.target) as channel:

        def fail(*args, **options):
            raise error

        monkeypatch.setattr(server, "_load", fail)
        (folder / "tiny" / "1").rename(folder / "tiny" / "2")
        manifest = folder / "tiny" / "2" / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 2}))
        server.run(server.server.reloader.reload())
        models = ModelServiceStub(channel)
        (refused,) = [
            model
            for model in models.ListModels(models_pb2.ListModelsRequest()).models
            if model.state == models_pb2.MODEL_STATE_REFUSED
        ]
    assert SECRET not in refused.reason
    if isinstance(error, OSError):
        assert refused.reason.endswith("cannot be read: No space left on device")
    elif isinstance(error, MemoryError):
        assert refused.reason == "tiny/2: needs more memory than there is on cpu"
    else:
        assert refused.reason == "tiny/2: unexpected error while loading; the server's log has the details"

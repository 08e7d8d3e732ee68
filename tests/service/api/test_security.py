"""Authentication and authorisation of real servers by tokens, and what clients can reach or make them log."""

from __future__ import annotations

import sys

import grpc
import pytest
import structlog
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rescorer import ConfigError, Hypothesis, NBestList
from rescorer.client import Client, Tls
from rescorer.errors import ModelNotFound, PermissionDenied, RescorerError, ScoringError, Unauthenticated
from rescorer.protocol.v1 import admin_pb2, models_pb2
from rescorer.protocol.v1.admin_pb2_grpc import AdminServiceStub
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from rescorer.service.logs import log_to_stderr
from tests.support.guarded_servers import LISTS, rescore, run_guarded_server
from tests.support.servers import run_server

pytestmark = pytest.mark.slow


def test_authenticates_clients_by_token_and_checks_their_roles(ngram_bundle, tmp_path):
    with (
        run_guarded_server(ngram_bundle, tmp_path) as (server, _),
        grpc.insecure_channel(server.target) as channel,
    ):
        assert rescore(server, token="old") == rescore(server, token=lambda: "new") == "the cat"
        with pytest.raises(Unauthenticated, match="no token"):
            rescore(server)
        with pytest.raises(Unauthenticated, match="unknown token"):
            rescore(server, token="unknown")
        with pytest.raises(PermissionDenied, match="'operators' does not have the role 'score'"):
            rescore(server, token="root")
        with Client(server.target) as client, pytest.raises(Unauthenticated):
            list(client.rescore_stream(LISTS))
        for metadata, code in (
            ((), grpc.StatusCode.UNAUTHENTICATED),
            ((("authorization", "Basic old"),), grpc.StatusCode.UNAUTHENTICATED),
            (
                (("authorization", "Bearer old"), ("authorization", "Bearer root")),
                grpc.StatusCode.UNAUTHENTICATED,
            ),
            ((("authorization", "Bearer old"),), grpc.StatusCode.PERMISSION_DENIED),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                AdminServiceStub(channel).Reload(admin_pb2.ReloadRequest(), metadata=metadata)
            assert caught.value.code() == code
        # Health checks need no credentials, reflection does.
        assert HealthStub(channel).Check(HealthCheckRequest()).status == HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError):
            ProtoReflectionDescriptorDatabase(channel).get_services()


def test_administration_is_off_by_default(ngram_bundle):
    with run_server(ngram_bundle) as server, grpc.insecure_channel(server.target) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            AdminServiceStub(channel).Reload(admin_pb2.ReloadRequest())
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        names = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert not [name for name in names if "Admin" in name]


def test_client_does_not_send_tokens_in_plain_text_to_other_machines():
    for target in ("example.org:1", "dns:///10.0.0.1:1", "127.0.0.1:1,10.0.0.1:1", "[2001:db8::1]:1"):
        with pytest.raises(ConfigError, match="plain text"):
            Client(target, token="secret")
    for target in ("localhost:1", "127.0.0.1:1", "[::1]:1", "unix:/tmp/socket", "ipv4:127.0.0.1:1"):
        Client(target, token="secret").close()
    with pytest.raises(ConfigError, match="expected both certificate and key"):
        Client("localhost:1", tls=Tls(certificate="a.pem"))
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        Client("localhost:1", tls=Tls(ca="nowhere.pem"))


def test_strings_from_clients_never_reach_the_file_system(ngram_bundle):
    opened: list[str] = []
    watching = False

    def watch(event: str, arguments: tuple) -> None:
        if watching and event.split(".")[0] in ("open", "os", "shutil", "glob"):
            opened.append(f"{event} {arguments!r}")

    sys.addaudithook(watch)
    canary = "canary"
    with run_server(ngram_bundle) as server, grpc.insecure_channel(server.target) as channel:
        rescore(server)
        watching = True
        for model in (f"../{canary}", f"/etc/{canary}", f"tiny/../{canary}", f"{canary}\0"):
            with Client(server.target, model=model) as client, pytest.raises(ModelNotFound):
                client.rescore(LISTS)
            with pytest.raises(grpc.RpcError):
                ModelServiceStub(channel).GetModel(models_pb2.GetModelRequest(model=model))
        with Client(server.target) as client:
            with pytest.raises(RescorerError):
                client.rescore(LISTS, f"../{canary}")
            client.rescore([NBestList(f"../{canary}", (Hypothesis(f"/etc/{canary}"),), {"acoustic": (0.0,)})])
        watching = False
    assert not [event for event in opened if canary in event]


@pytest.mark.parametrize("log_texts", [False, True])
def test_logs_texts_only_if_configured(ngram_bundle, capfd, log_texts):
    secret = NBestList("u1", (Hypothesis("canary"),), {"acoustic": (-1.0,)}, context="the canary")
    invalid = NBestList("u2", (Hypothesis("canary"),), {})
    log_to_stderr()  # like the command line
    with run_server(ngram_bundle, log_texts=log_texts) as server, Client(server.target) as client:
        client.rescore_each([secret, invalid])
        client.score_text(["canary"])
        with pytest.raises(RescorerError):
            client.rescore([secret], "other")
        server.scorer.error = RuntimeError("broken")
        with pytest.raises(ScoringError):
            client.rescore([secret])
    structlog.reset_defaults()
    logged = capfd.readouterr().err
    assert "call answered" in logged
    assert ("canary" in logged) is log_texts

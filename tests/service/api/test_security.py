"""Authentication and authorisation of real servers, by certificates and tokens."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager

import grpc
import pytest
import structlog
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from typer.testing import CliRunner

from rescorer import ConfigError, Hypothesis, NBestList
from rescorer.cli import app
from rescorer.client import NO_RETRY, Client, Tls
from rescorer.errors import (
    ModelNotFound,
    PermissionDenied,
    RescorerError,
    ScoringError,
    Unauthenticated,
    Unavailable,
)
from rescorer.protocol.v1 import admin_pb2, models_pb2
from rescorer.protocol.v1.admin_pb2_grpc import AdminServiceStub
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from rescorer.service.net.clients_file import hash_token
from rescorer.service.net.tls import Certificates
from rescorer.service.observability.logs import log_to_stderr
from rescorer.service.preflight import load_settings
from tests.support.certificates import Authority
from tests.support.servers import run_server

pytestmark = pytest.mark.slow

LISTS = [NBestList("u1", (Hypothesis("the cat"), Hypothesis("the mat")), {"acoustic": (-1.0, -1.5)})]


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def other(tmp_path):
    """A certificate authority that the server does not trust."""
    return Authority(tmp_path, "other")


def rescore(server, **options) -> str:
    """Return the text of the best hypothesis, over a new connection."""
    with Client(server.target, retry=NO_RETRY, **options) as client:
        (answer,) = client.rescore(LISTS, timeout_s=20)
        return answer.best.text


def entry(name: str, roles: str, *tokens: str, certificates: str = "[]") -> str:
    hashes = [hash_token(token) for token in tokens]
    credentials = f"token_sha256 = {hashes}\ncertificates = {certificates}\n"
    return f'[[client]]\nname = "{name}"\nroles = {roles}\n{credentials}'


def test_accepts_only_clients_that_trust_the_certificate(ngram_bundle, authority, other):
    pair = authority.issue("server")
    with run_server(ngram_bundle, tls_certificate=pair.certificate, tls_key=pair.key) as server:
        assert rescore(server, tls=Tls(ca=authority.certificate)) == "the cat"
        assert rescore(server, tls=Tls(ca=authority.certificate, server_name="server")) == "the cat"
        for tls in (Tls(ca=other.certificate), Tls(ca=authority.certificate, server_name="unknown"), None):
            with pytest.raises(Unavailable):
                rescore(server, tls=tls)


def test_client_rejects_an_expired_server_certificate(ngram_bundle, authority):
    pair = authority.issue("server", days_ago=3)
    with run_server(ngram_bundle, tls_certificate=pair.certificate, tls_key=pair.key) as server:  # noqa: SIM117
        with pytest.raises(Unavailable):
            rescore(server, tls=Tls(ca=authority.certificate))


def test_authenticates_clients_by_certificate(ngram_bundle, authority, other, tmp_path):
    pair = authority.issue("server")
    access = tmp_path / "access.toml"
    access.write_text(entry("captions", '["score"]', certificates='["captions.example.org"]'))

    def tls(client=None) -> Tls:
        credentials = {"certificate": client.certificate, "key": client.key} if client else {}
        return Tls(ca=authority.certificate, **credentials)

    options = {
        "tls_certificate": pair.certificate,
        "tls_key": pair.key,
        "tls_client_ca": authority.certificate,
    }
    with run_server(ngram_bundle, access=access, **options) as server:
        assert rescore(server, tls=tls(authority.issue("captions.example.org"))) == "the cat"
        with pytest.raises(Unauthenticated, match="unknown client certificate"):
            rescore(server, tls=tls(authority.issue("stranger.example.org")))
        expired = authority.issue("captions.example.org", days_ago=3)
        forged = other.issue("captions.example.org")
        for client in (None, expired, forged):
            with pytest.raises(Unavailable):
                rescore(server, tls=tls(client))


def test_reloads_certificates_while_the_server_runs(ngram_bundle, authority, other, capfd):
    pair, new = authority.issue("server"), other.issue("new")
    with run_server(ngram_bundle, tls_certificate=pair.certificate, tls_key=pair.key) as server:
        open_client = Client(server.target, tls=Tls(ca=authority.certificate))
        assert open_client.rescore(LISTS)
        pair.key.write_bytes(new.key.read_bytes())  # the pair is inconsistent: the old one stays in use
        assert rescore(server, tls=Tls(ca=authority.certificate)) == "the cat"
        pair.certificate.write_bytes(new.certificate.read_bytes())
        assert rescore(server, tls=Tls(ca=other.certificate)) == "the cat"
        with pytest.raises(Unavailable):
            rescore(server, tls=Tls(ca=authority.certificate))
        assert open_client.rescore(LISTS)  # an open connection is not affected
        open_client.close()
    assert "certificates refused" in capfd.readouterr().out


@contextmanager
def run_guarded_server(bundle, folder, **settings):
    """Run a server with two clients: one with the role score and two tokens, and one with the role admin."""
    access = folder / "access.toml"
    access.write_text(entry("captions", '["score"]', "old", "new") + entry("operators", '["admin"]', "root"))
    with run_server(bundle, access=access, admin=True, **settings) as server:
        yield server, access


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


def test_reloads_tokens_while_the_server_runs(ngram_bundle, tmp_path):
    with (
        run_guarded_server(ngram_bundle, tmp_path) as (server, access),
        grpc.insecure_channel(server.target) as channel,
    ):
        admin = AdminServiceStub(channel)

        def reload(token: str) -> dict[str, str]:
            answer = admin.Reload(
                admin_pb2.ReloadRequest(), metadata=(("authorization", f"bearer {token}"),), timeout=20
            )
            return dict(answer.refused)

        access.write_text(entry("captions", '["score"]', "new") + entry("operators", '["admin"]', "root2"))
        assert reload("root") == {}
        assert rescore(server, token="new") == "the cat"
        with pytest.raises(Unauthenticated):
            rescore(server, token="old")
        access.write_text("[[client]]\nname = 'a b'\nroles = ['king']\n")
        refused = reload("root2")["access"]
        assert "client.0.name" in refused
        assert "client.0.roles" in refused
        assert rescore(server, token="new") == "the cat"


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
        client.rescore([secret, invalid])
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


def test_reports_invalid_certificates_and_clients_at_start(authority, other, tmp_path):
    pair, stranger = authority.issue("server"), other.issue("stranger")
    access = tmp_path / "access.toml"
    access.write_text(entry("a", '["score"]', "t", certificates='["x"]') + entry("a", '["score"]', "t"))

    def load_error(**options) -> str:
        with pytest.raises(ConfigError) as caught:
            load_settings(bundle="b", **options)
        return str(caught.value)

    both = load_error(tls_certificate=pair.certificate, tls_key=stranger.key, access=access, admin=True)
    assert "expected a certificate and its key" in both
    assert "name a occurs twice" in both
    assert "expected both or neither" in load_error(tls_key=pair.key)
    assert "no such certificate or key file" in load_error(
        tls_certificate=pair.certificate, tls_key=tmp_path / "none"
    )
    assert "expected certificates of authorities" in load_error(
        tls_certificate=pair.certificate, tls_key=pair.key, tls_client_ca=pair.key
    )
    assert "expected tls_certificate as well" in load_error(tls_client_ca=authority.certificate)
    access.write_text(entry("a", '["score"]', "t", certificates='["x"]'))
    assert "client certificates need tls_client_ca" in load_error(access=access)
    access.write_text(entry("a", '["score"]', "t"))
    assert "no client has the role admin" in load_error(access=access, admin=True)
    assert "expected access" in load_error(admin=True)
    access.write_text(entry("a", '["score"]'))
    assert "expected token_sha256 or certificates" in load_error(access=access)
    assert load_settings(bundle="b", host="0.0.0.0", tls_certificate=pair.certificate, tls_key=pair.key)


def test_token_command_prints_the_token_and_stores_only_its_hash(tmp_path):
    result = CliRunner().invoke(app, ["token", "captions", "--role", "score", "--role", "admin"])
    token = result.stderr.strip().removeprefix("token: ")
    (tmp_path / "access.toml").write_text(result.stdout)
    settings = load_settings(bundle="b", access=tmp_path / "access.toml", admin=True)
    assert settings.admin
    assert hash_token(token) in result.stdout
    assert token not in result.stdout
    assert len(token) >= 43
    for arguments in (["a b"], ["a", "--role", "king"], ['a"\nroles = []']):
        result = CliRunner().invoke(app, ["token", *arguments])
        assert isinstance(result.exception, ConfigError)
        assert not result.stdout


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_refuses_a_clients_file_that_others_may_write(ngram_bundle, tmp_path, mode):
    access, link = tmp_path / "access.toml", tmp_path / "link.toml"
    access.write_text(entry("captions", '["score"]', "t"))
    link.symlink_to(access)
    access.chmod(mode)
    for path in (access, link):
        with pytest.raises(ConfigError, match=rf"permissions are {mode:04o}.*chmod go-w {access}"):
            load_settings(bundle=ngram_bundle, access=path)
    access.chmod(0o640)
    load_settings(bundle=ngram_bundle, access=link)


def test_clients_file_that_is_a_fifo_blocks_neither_start_nor_reload(ngram_bundle, tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigError, match=r"fifo: is a FIFO .* expected a regular file"):
        load_settings(bundle=ngram_bundle, access=tmp_path / "fifo")
    with run_guarded_server(ngram_bundle, tmp_path) as (server, access):
        access.unlink()
        os.mkfifo(access, 0o600)
        changes = server.run(server.server.reloader.reload())
        assert "is a FIFO" in changes.refused["access"]
        assert rescore(server, token="old") == "the cat"


def test_keeps_the_former_clients_if_others_may_write_the_file(ngram_bundle, tmp_path, capfd):
    with run_guarded_server(ngram_bundle, tmp_path) as (server, access):
        access.write_text(entry("intruder", '["score", "admin"]', "mine"))
        access.chmod(0o666)
        for _ in range(3):
            changes = server.run(server.server.reloader.reload(retry_refused=False))
            assert "chmod go-w" in changes.refused["access"]
        assert capfd.readouterr().out.count("a file is refused") == 1
        with Client(server.target, token="mine") as client, pytest.raises(Unauthenticated):
            client.rescore(LISTS)
        with Client(server.target, token="new") as client:
            client.rescore(LISTS)
        access.chmod(0o600)
        assert "access" not in server.run(server.server.reloader.reload()).refused
        with Client(server.target, token="mine") as client:
            client.rescore(LISTS)


def test_warns_about_a_private_key_that_everybody_may_read(authority, capfd):
    pair = authority.issue("127.0.0.1")
    for mode, warnings in ((0o640, 0), (0o644, 1)):
        pair.key.chmod(mode)
        Certificates(pair.certificate, pair.key)
        assert capfd.readouterr().out.count("may read or write the private key") == warnings

"""Who is let in: real servers, certificates and tokens; wrong ones are refused, changed ones taken."""

from __future__ import annotations

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
    """An authority that nobody trusts."""
    return Authority(tmp_path, "other")


def ask(server, **options) -> str:
    """Text of the best hypothesis, asked over a connection of its own."""
    with Client(server.target, retry=NO_RETRY, **options) as client:
        (answer,) = client.rescore(LISTS, timeout_s=20)
        return answer.best.text


def entry(name: str, roles: str, *tokens: str, certificates: str = "[]") -> str:
    hashes = [hash_token(token) for token in tokens]
    shown = f"token_sha256 = {hashes}\ncertificates = {certificates}\n"
    return f'[[client]]\nname = "{name}"\nroles = {roles}\n{shown}'


def test_with_a_certificate_only_who_trusts_it_gets_through(ngram_bundle, authority, other):
    pair = authority.issue("server")
    with run_server(ngram_bundle, tls_certificate=pair.certificate, tls_key=pair.key) as server:
        assert ask(server, tls=Tls(ca=authority.certificate)) == "the cat"
        assert ask(server, tls=Tls(ca=authority.certificate, server_name="server")) == "the cat"
        for wrong in (Tls(ca=other.certificate), Tls(ca=authority.certificate, server_name="else"), None):
            with pytest.raises(Unavailable):
                ask(server, tls=wrong)


def test_an_expired_certificate_of_the_server_is_refused(ngram_bundle, authority):
    pair = authority.issue("server", days_ago=3)
    with run_server(ngram_bundle, tls_certificate=pair.certificate, tls_key=pair.key) as server:  # noqa: SIM117
        with pytest.raises(Unavailable):
            ask(server, tls=Tls(ca=authority.certificate))


def test_clients_are_known_by_their_certificates(ngram_bundle, authority, other, tmp_path):
    pair = authority.issue("server")
    access = tmp_path / "access.toml"
    access.write_text(entry("captions", '["score"]', certificates='["captions.example.org"]'))

    def tls(client=None) -> Tls:
        shown = {"certificate": client.certificate, "key": client.key} if client else {}
        return Tls(ca=authority.certificate, **shown)

    options = {
        "tls_certificate": pair.certificate,
        "tls_key": pair.key,
        "tls_client_ca": authority.certificate,
    }
    with run_server(ngram_bundle, access=access, **options) as server:
        assert ask(server, tls=tls(authority.issue("captions.example.org"))) == "the cat"
        with pytest.raises(Unauthenticated, match="of no client"):
            ask(server, tls=tls(authority.issue("stranger.example.org")))
        expired = authority.issue("captions.example.org", days_ago=3)
        forged = other.issue("captions.example.org")
        for wrong in (None, expired, forged):
            with pytest.raises(Unavailable):
                ask(server, tls=tls(wrong))


def test_certificates_are_exchanged_while_the_server_runs(ngram_bundle, authority, other, capfd):
    pair, new = authority.issue("server"), other.issue("new")
    with run_server(ngram_bundle, tls_certificate=pair.certificate, tls_key=pair.key) as server:
        kept = Client(server.target, tls=Tls(ca=authority.certificate))
        assert kept.rescore(LISTS)
        pair.key.write_bytes(new.key.read_bytes())  # half of the exchange: the old pair goes on
        assert ask(server, tls=Tls(ca=authority.certificate)) == "the cat"
        pair.certificate.write_bytes(new.certificate.read_bytes())
        assert ask(server, tls=Tls(ca=other.certificate)) == "the cat"
        with pytest.raises(Unavailable):
            ask(server, tls=Tls(ca=authority.certificate))
        assert kept.rescore(LISTS)  # its connection stays
        kept.close()
    assert "certificates refused" in capfd.readouterr().out


@contextmanager
def guarded(bundle, folder, **settings):
    """A server with two clients: one that scores, with two tokens, and one that administers."""
    access = folder / "access.toml"
    access.write_text(entry("captions", '["score"]', "old", "new") + entry("operators", '["admin"]', "root"))
    with run_server(bundle, access=access, admin=True, **settings) as server:
        yield server, access


def test_clients_are_known_by_their_tokens_and_may_do_what_their_roles_say(ngram_bundle, tmp_path):
    with guarded(ngram_bundle, tmp_path) as (server, _), grpc.insecure_channel(server.target) as channel:
        assert ask(server, token="old") == ask(server, token=lambda: "new") == "the cat"
        with pytest.raises(Unauthenticated, match="no token"):
            ask(server)
        with pytest.raises(Unauthenticated, match="not known"):
            ask(server, token="else")
        with pytest.raises(PermissionDenied, match="'operators' does not have the role 'score'"):
            ask(server, token="root")
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
        # Who restarts servers has no login; who wants to look around needs one.
        assert HealthStub(channel).Check(HealthCheckRequest()).status == HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError):
            ProtoReflectionDescriptorDatabase(channel).get_services()


def test_tokens_are_exchanged_while_the_server_runs(ngram_bundle, tmp_path):
    with guarded(ngram_bundle, tmp_path) as (server, access), grpc.insecure_channel(server.target) as channel:
        admin = AdminServiceStub(channel)

        def reload(token: str) -> dict[str, str]:
            answer = admin.Reload(
                admin_pb2.ReloadRequest(), metadata=(("authorization", f"bearer {token}"),), timeout=20
            )
            return dict(answer.refused)

        access.write_text(entry("captions", '["score"]', "new") + entry("operators", '["admin"]', "root2"))
        assert reload("root") == {}
        assert ask(server, token="new") == "the cat"
        with pytest.raises(Unauthenticated):
            ask(server, token="old")
        access.write_text("[[client]]\nname = 'a b'\nroles = ['king']\n")
        refused = reload("root2")["access"]
        assert "client.0.name" in refused
        assert "client.0.roles" in refused
        assert ask(server, token="new") == "the cat"


def test_administration_is_off_unless_asked_for(ngram_bundle):
    with run_server(ngram_bundle) as server, grpc.insecure_channel(server.target) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            AdminServiceStub(channel).Reload(admin_pb2.ReloadRequest())
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        names = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert not [name for name in names if "Admin" in name]


def test_a_token_is_not_sent_in_plain_text_beyond_this_machine():
    for target in ("example.org:1", "dns:///10.0.0.1:1", "127.0.0.1:1,10.0.0.1:1", "[2001:db8::1]:1"):
        with pytest.raises(ConfigError, match="plain text"):
            Client(target, token="secret")
    for target in ("localhost:1", "127.0.0.1:1", "[::1]:1", "unix:/tmp/socket", "ipv4:127.0.0.1:1"):
        Client(target, token="secret").close()
    with pytest.raises(ConfigError, match="certificate and its key"):
        Client("localhost:1", tls=Tls(certificate="a.pem"))
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        Client("localhost:1", tls=Tls(ca="nowhere.pem"))


def test_no_string_of_a_client_reaches_the_file_system(ngram_bundle):
    opened: list[str] = []
    watching = False

    def watch(event: str, arguments: tuple) -> None:
        if watching and event.split(".")[0] in ("open", "os", "shutil", "glob"):
            opened.append(f"{event} {arguments!r}")

    sys.addaudithook(watch)
    mark = "canary"
    with run_server(ngram_bundle) as server, grpc.insecure_channel(server.target) as channel:
        ask(server)
        watching = True
        for model in (f"../{mark}", f"/etc/{mark}", f"tiny/../{mark}", f"{mark}\0"):
            with Client(server.target, model=model) as client, pytest.raises(ModelNotFound):
                client.rescore(LISTS)
            with pytest.raises(grpc.RpcError):
                ModelServiceStub(channel).GetModel(models_pb2.GetModelRequest(model=model))
        with Client(server.target) as client:
            with pytest.raises(RescorerError):
                client.rescore(LISTS, f"../{mark}")
            client.rescore([NBestList(f"../{mark}", (Hypothesis(f"/etc/{mark}"),), {"acoustic": (0.0,)})])
        watching = False
    assert not [each for each in opened if mark in each]


@pytest.mark.parametrize("asked", [False, True])
def test_texts_are_in_the_log_only_where_that_is_asked_for(ngram_bundle, capfd, asked):
    secret = NBestList("u1", (Hypothesis("canary"),), {"acoustic": (-1.0,)}, context="the canary")
    unusable = NBestList("u2", (Hypothesis("canary"),), {})
    log_to_stderr()  # as the command does
    with run_server(ngram_bundle, log_texts=asked) as server, Client(server.target) as client:
        client.rescore([secret, unusable])
        client.score_text(["canary"])
        with pytest.raises(RescorerError):
            client.rescore([secret], "other")
        server.scorer.error = RuntimeError("broken")
        with pytest.raises(ScoringError):
            client.rescore([secret])
    structlog.reset_defaults()
    logged = capfd.readouterr().err
    assert "call answered" in logged
    assert ("canary" in logged) is asked


def test_what_is_wrong_with_certificates_and_clients_is_told_at_once(authority, other, tmp_path):
    pair, stranger = authority.issue("server"), other.issue("stranger")
    access = tmp_path / "access.toml"
    access.write_text(entry("a", '["score"]', "t", certificates='["x"]') + entry("a", '["score"]', "t"))

    def told(**given) -> str:
        with pytest.raises(ConfigError) as caught:
            load_settings(bundle="b", **given)
        return str(caught.value)

    both = told(tls_certificate=pair.certificate, tls_key=stranger.key, access=access, admin=True)
    assert "expected a certificate and its key" in both
    assert "name a is there twice" in both
    assert "expected both or neither" in told(tls_key=pair.key)
    assert "no such file" in told(tls_certificate=pair.certificate, tls_key=tmp_path / "none")
    assert "expected certificates of authorities" in told(
        tls_certificate=pair.certificate, tls_key=pair.key, tls_client_ca=pair.key
    )
    assert "only to a server" in told(tls_client_ca=authority.certificate)
    access.write_text(entry("a", '["score"]', "t", certificates='["x"]'))
    assert "only where tls_client_ca is set" in told(access=access)
    access.write_text(entry("a", '["score"]', "t"))
    assert "nobody has the role admin" in told(access=access, admin=True)
    assert "expected access" in told(admin=True)
    access.write_text(entry("a", '["score"]'))
    assert "expected token_sha256 or certificates" in told(access=access)
    assert load_settings(bundle="b", host="0.0.0.0", tls_certificate=pair.certificate, tls_key=pair.key)


def test_the_command_makes_a_token_of_which_only_the_hash_is_kept(tmp_path):
    done = CliRunner().invoke(app, ["token", "captions", "--role", "score", "--role", "admin"])
    token = done.stderr.strip().removeprefix("token: ")
    (tmp_path / "access.toml").write_text(done.stdout)
    settings = load_settings(bundle="b", access=tmp_path / "access.toml", admin=True)
    assert settings.admin
    assert hash_token(token) in done.stdout
    assert token not in done.stdout
    assert len(token) >= 43
    for wrong in (["a b"], ["a", "--role", "king"], ['a"\nroles = []']):
        done = CliRunner().invoke(app, ["token", *wrong])
        assert isinstance(done.exception, ConfigError)
        assert not done.stdout

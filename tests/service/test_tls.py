"""TLS of real servers: certificates of servers and of clients, and their renewal."""

from __future__ import annotations

import pytest

from rescorer import ConfigError
from rescorer.client import Client, Tls
from rescorer.errors import Unauthenticated, Unavailable
from rescorer.service.access import Certificates
from rescorer.service.settings import load_settings
from tests.support.certificates import Authority
from tests.support.guarded_servers import LISTS, entry, rescore
from tests.support.servers import run_server

pytestmark = pytest.mark.slow


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def other(tmp_path):
    """A certificate authority that the server does not trust."""
    return Authority(tmp_path, "other")


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


def test_warns_about_a_private_key_that_everybody_may_read(authority, capfd):
    pair = authority.issue("127.0.0.1")
    for mode, warnings in ((0o640, 0), (0o644, 1)):
        pair.key.chmod(mode)
        Certificates(pair.certificate, pair.key)
        assert capfd.readouterr().out.count("may read or write the private key") == warnings

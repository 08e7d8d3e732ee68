"""The file of clients: tokens that change, permissions, and what is not a file."""

from __future__ import annotations

import os

import grpc
import pytest
from typer.testing import CliRunner

from rescorer import ConfigError
from rescorer.cli import app
from rescorer.client import Client
from rescorer.errors import Unauthenticated
from rescorer.protocol.v1 import admin_pb2
from rescorer.protocol.v1.admin_pb2_grpc import AdminServiceStub
from rescorer.service.access import hash_token
from rescorer.service.settings import load_settings
from tests.support.guarded_servers import LISTS, entry, rescore, run_guarded_server

pytestmark = pytest.mark.slow


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

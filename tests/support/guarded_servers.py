"""Servers with a clients file, and calls to them over new connections."""

from __future__ import annotations

from contextlib import contextmanager

from rescorer import Hypothesis, NBestList
from rescorer.client import NO_RETRY, Client
from rescorer.service.access import hash_token
from tests.support.servers import run_server

LISTS = [NBestList("u1", (Hypothesis("the cat"), Hypothesis("the mat")), {"acoustic": (-1.0, -1.5)})]


def rescore(server, **options) -> str:
    """Return the text of the best hypothesis, over a new connection."""
    with Client(server.target, retry=NO_RETRY, **options) as client:
        (answer,) = client.rescore(LISTS, timeout_s=20)
        return answer.best.text


def entry(name: str, roles: str, *tokens: str, certificates: str = "[]") -> str:
    """Write an entry of a clients file."""
    hashes = [hash_token(token) for token in tokens]
    credentials = f"token_sha256 = {hashes}\ncertificates = {certificates}\n"
    return f'[[client]]\nname = "{name}"\nroles = {roles}\n{credentials}'


@contextmanager
def run_guarded_server(bundle, folder, **settings):
    """Run a server with two clients: one with the role score and two tokens, and one with the role admin."""
    access = folder / "access.toml"
    access.write_text(entry("captions", '["score"]', "old", "new") + entry("operators", '["admin"]', "root"))
    with run_server(bundle, access=access, admin=True, **settings) as server:
        yield server, access

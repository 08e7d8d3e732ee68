"""Images are pinned by digest or listed; digests come from a registry, here a small server on loopback."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from tests.conftest import REPOSITORY
from tools.release.images import (
    UNPINNED,
    Image,
    RegistryError,
    find_images,
    find_problems,
    main,
    resolve_digest,
)

DEPLOY = REPOSITORY / "deploy"
MANIFEST = b'{"schemaVersion": 2, "manifests": []}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
TOKEN = "read-only"


class Registry(BaseHTTPRequestHandler):
    """Answers like Docker Hub: manifests only with a token, which anyone gets for a repository."""

    stated_digest = DIGEST

    def do_GET(self) -> None:
        url = urlparse(self.path)
        if url.path == "/token":
            scopes = parse_qs(url.query)["scope"]
            assert parse_qs(url.query)["service"] == ["registry.example"]
            self._send(200, json.dumps({"token": TOKEN + scopes[0]}).encode())
            return
        repository = url.path.removeprefix("/v2/").partition("/manifests/")[0]
        scope = f"repository:{repository}:pull"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}{scope}":
            host = f"http://127.0.0.1:{self.server.server_address[1]}"
            challenge = f'Bearer realm="{host}/token",service="registry.example",scope="{scope}"'
            self._send(401, b"{}", {"WWW-Authenticate": challenge})
        elif "missing" in repository:
            self._send(404, b"{}")
        else:
            assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"]
            self._send(200, MANIFEST, {"Docker-Content-Digest": self.stated_digest})

    def _send(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of a registry on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """A copy of the folder deploy/."""
    return shutil.copytree(DEPLOY, tmp_path / "deploy")


def test_images_are_pinned_or_listed():
    assert find_problems() == []


def test_finds_the_images_of_the_dockerfile_and_the_compose_file():
    names = {image.name for image in find_images()}
    assert names == {
        "docker/dockerfile", "python", "envoyproxy/envoy", "prom/prometheus", "grafana/grafana",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("python:3.11", Image("python", "3.11", "")),
        ("host:5000/a/b", Image("host:5000/a/b", "", "")),
        ("host:5000/a/b:1@sha256:ab", Image("host:5000/a/b", "1", "sha256:ab")),
    ],
)
def test_parses_references(text, image):
    assert Image.parse(text) == image


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("prom/prometheus", "compose.yaml: prom/prometheus has no tag"),
        ("prom/prometheus:v9", "prom/prometheus:v9 has no digest, and is not in unpinned-images.txt"),
        ("prom/prometheus:v9@sha256:12", "prom/prometheus:v9: expected sha256 and 64 digits, got sha256:12"),
    ],
)  # fmt: skip
def test_finds_an_image_that_is_neither_pinned_nor_listed(deploy, image, problem):
    compose = deploy / "compose.yaml"
    (pinned,) = (found for found in find_images(deploy) if found.name == "prom/prometheus")
    written = pinned.tagged + (f"@{pinned.digest}" if pinned.digest else "")
    compose.write_text(compose.read_text().replace(written, image))
    assert any(problem in line for line in find_problems(deploy))
    with pytest.raises(SystemExit, match="prom/prometheus"):
        main(["--check", "--deploy", str(deploy)])


def test_an_entry_of_the_list_that_is_not_needed_is_a_problem(deploy):
    (deploy / UNPINNED).write_text((deploy / UNPINNED).read_text() + "alpine:3\n")
    assert find_problems(deploy) == ["unpinned-images.txt: alpine:3 is pinned or not used"]


def test_pins_every_image_with_the_registrys_digest(deploy, registry, capsys):
    main(["--deploy", str(deploy), "--docker-hub", registry])
    assert {image.digest for image in find_images(deploy)} == {DIGEST}
    assert f"ARG PYTHON_IMAGE=python:3.11-slim-bookworm@{DIGEST}\n" in (deploy / "Dockerfile").read_text()
    assert "image: rescorer:${DEVICE:-cpu}\n" in (deploy / "compose.yaml").read_text()
    assert find_problems(deploy) == []
    assert (deploy / UNPINNED).read_text().count("\n") == 1
    assert f"python:3.11-slim-bookworm@{DIGEST}" in capsys.readouterr().out
    main(["--deploy", str(deploy), "--docker-hub", registry])  # the second time nothing changes
    assert {image.digest for image in find_images(deploy)} == {DIGEST}


def test_a_dry_run_writes_nothing(deploy, registry, capsys):
    before = {path: path.read_bytes() for path in deploy.rglob("*") if path.is_file()}
    main(["--dry-run", "--deploy", str(deploy), "--docker-hub", registry])
    assert {path: path.read_bytes() for path in deploy.rglob("*") if path.is_file()} == before
    assert capsys.readouterr().out.count(DIGEST) == 5


def test_an_image_that_the_registry_lacks_stays_listed_and_fails(deploy, registry):
    compose = deploy / "compose.yaml"
    compose.write_text(compose.read_text().replace("grafana/grafana:", "grafana/missing:"))
    with pytest.raises(SystemExit, match=r"^grafana/missing:\S+: http\S+ answers 404, also with a token$"):
        main(["--deploy", str(deploy), "--docker-hub", registry])
    assert [image.name for image in find_images(deploy) if not image.digest] == ["grafana/missing"]
    assert find_problems(deploy) == []


def test_a_digest_that_the_manifest_does_not_have_is_refused(registry, monkeypatch):
    monkeypatch.setattr(Registry, "stated_digest", "sha256:" + "0" * 64)
    with pytest.raises(RegistryError, match=r"states the digest sha256:000.* but its manifest has sha256:"):
        resolve_digest("python", "3.11", docker_hub=registry)


def test_names_a_registry_that_cannot_be_reached():
    with pytest.raises(RegistryError, match=r"http://127.0.0.1:9/v2/library/python/\S+ cannot be reached: "):
        resolve_digest("python", "3.11", docker_hub="http://127.0.0.1:9")
    with pytest.raises(RegistryError, match="expected https"):
        resolve_digest("python", "3.11", docker_hub="http://192.0.2.1")

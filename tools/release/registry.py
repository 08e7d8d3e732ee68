"""Ask a container registry for the digest of an image, with its HTTP API (version 2)."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPMessage

DOCKER_HUB = "https://registry-1.docker.io"
MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Lists of an image's platforms first, so that one digest serves all of them."""

MAX_MANIFEST_BYTES = 4 * 2**20
TIMEOUT_S = 30.0


class RegistryError(Exception):
    """A registry that cannot be reached, or whose answer cannot be used."""


def resolve_digest(name: str, tag: str, docker_hub: str = DOCKER_HUB) -> str:
    """Return the digest of an image, computed from the manifest that the registry sends.

    Raises:
        RegistryError: the registry refuses, cannot be reached, or names another digest than its manifest has.
    """
    registry, repository = _locate(name, docker_hub)
    address = f"{registry}/v2/{repository}/manifests/{urllib.parse.quote(tag)}"
    headers = {"Accept": ", ".join(MANIFEST_TYPES)}
    try:
        manifest, answer = _get(address, headers)
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise RegistryError(f"{address} answers {error.code}") from None
        token = _fetch_token(error.headers.get("WWW-Authenticate", ""), repository)
        try:
            manifest, answer = _get(address, {**headers, "Authorization": f"Bearer {token}"})
        except urllib.error.HTTPError as second:
            raise RegistryError(f"{address} answers {second.code}, also with a token") from None
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    stated = answer.get("Docker-Content-Digest", digest)
    if stated != digest:
        raise RegistryError(f"{address} states the digest {stated}, but its manifest has {digest}")
    return digest


def _locate(name: str, docker_hub: str) -> tuple[str, str]:
    """Return a registry's address and the repository's name there; names without a host are Docker Hub's."""
    host, _, repository = name.partition("/")
    if not repository:
        return docker_hub, f"library/{name}"
    if host == "docker.io":
        return docker_hub, repository if "/" in repository else f"library/{repository}"
    if "." in host or ":" in host:
        return f"https://{host}", repository
    return docker_hub, name


def _fetch_token(challenge: str, repository: str) -> str:
    """Fetch a token for reading a repository without an account, where the registry's challenge says."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.startswith("Bearer ") or "realm" not in fields:
        raise RegistryError(f"expected a challenge for a token, got {challenge[:200]!r}")
    query = {"scope": fields.get("scope", f"repository:{repository}:pull")}
    if "service" in fields:
        query["service"] = fields["service"]
    address = f"{fields['realm']}?{urllib.parse.urlencode(query)}"
    try:
        body, _ = _get(address, {})
        answer = json.loads(body)
        return answer.get("token") or answer["access_token"]
    except urllib.error.HTTPError as error:
        raise RegistryError(f"{fields['realm']} answers {error.code}") from None
    except (ValueError, KeyError):
        raise RegistryError(f"{fields['realm']} sends no token") from None


def _get(address: str, headers: dict[str, str]) -> tuple[bytes, HTTPMessage]:
    if not address.startswith(("https://", "http://127.0.0.1:")):
        raise RegistryError(f"{address[:200]}: expected https")
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=TIMEOUT_S
        ) as answer:
            body = answer.read(MAX_MANIFEST_BYTES + 1)
            if len(body) > MAX_MANIFEST_BYTES:
                raise RegistryError(f"{address} sends more than {MAX_MANIFEST_BYTES} bytes")
            return body, answer.headers
    except urllib.error.HTTPError:
        raise
    except (urllib.error.URLError, TimeoutError) as error:
        raise RegistryError(f"{address} cannot be reached: {getattr(error, 'reason', error)}") from None

"""Pin the container images that deploy/ uses to digests, or check that they are pinned.

    python -m tools.release.images             asks the registries and writes name:tag@sha256:… into the files
    python -m tools.release.images --dry-run   asks the registries and only prints the digests
    python -m tools.release.images --check     fails if an image is neither pinned nor listed as unpinned

Writing asks the HTTP API (version 2) of the images' registries; checking works offline. If a tag has moved
since, its new digest is written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNPINNED = "unpinned-images.txt"
UNPINNED_HEADER = "# Images whose digest is not known yet; `python -m tools.release.images` pins them.\n"
IMAGE = re.compile(
    r"^(?P<before># syntax=|ARG \w*IMAGE=|FROM |\s*(?:- )?image:\s+)(?P<image>[^\s$\"']+)(?=\s|$)",
    re.MULTILINE,
)
"""Pattern of an image in a Dockerfile, a compose file or a manifest; or of a variable set to an image."""

OWN_IMAGE = re.compile(r"(?:.*/)?rescorer(?::.*)?")
"""The image that is built from this repository."""


@dataclass(frozen=True)
class Image:
    """A container image, as written in a file."""

    name: str
    tag: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> Image:
        """Parse ``name:tag@digest``; tag and digest may be missing."""
        rest, _, digest = text.partition("@")
        name, colon, tag = rest.rpartition(":")
        return cls(name, tag, digest) if colon and "/" not in tag else cls(rest, "", digest)

    @property
    def tagged(self) -> str:
        return f"{self.name}:{self.tag}"


def find_images(deploy: Path = DEPLOY) -> dict[Image, list[str]]:
    """Find the images in the files of a folder, except our own, and the files that name each image."""
    found: dict[Image, list[str]] = {}
    for path in _image_files(deploy):
        for match in _other_images(path.read_text(encoding="utf-8")):
            found.setdefault(Image.parse(match["image"]), []).append(str(path.relative_to(deploy)))
    return found


def find_problems(deploy: Path = DEPLOY) -> list[str]:
    """Find images without a tag, or with neither a digest nor an entry in the list of unpinned images."""
    images = find_images(deploy)
    unpinned = read_unpinned(deploy)
    problems = []
    for image, files in images.items():
        where = ", ".join(dict.fromkeys(files))
        if not image.tag:
            problems.append(f"{where}: {image.name} has no tag")
        elif image.digest and not re.fullmatch(r"sha256:[0-9a-f]{64}", image.digest):
            problems.append(f"{where}: {image.tagged}: expected sha256 and 64 digits, got {image.digest}")
        elif not image.digest and image.tagged not in unpinned:
            problems.append(f"{where}: {image.tagged} has no digest, and is not in {UNPINNED}")
    waiting = {image.tagged for image in images if not image.digest}
    problems.extend(
        f"{UNPINNED}: {tagged} is pinned or not used" for tagged in unpinned if tagged not in waiting
    )
    return problems


def read_unpinned(deploy: Path) -> list[str]:
    lines = (deploy / UNPINNED).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def write_digests(digests: Mapping[str, str], deploy: Path = DEPLOY) -> None:
    """Write digests into the files. Images without a digest go to the list of unpinned images."""

    def pin(match: re.Match[str]) -> str:
        image = Image.parse(match["image"])
        if OWN_IMAGE.fullmatch(match["image"]) or image.tagged not in digests:
            return match[0]
        return f"{match['before']}{image.tagged}@{digests[image.tagged]}"

    for path in _image_files(deploy):
        text = path.read_text(encoding="utf-8")
        if (pinned := IMAGE.sub(pin, text)) != text:
            path.write_text(pinned, encoding="utf-8")
    waiting = sorted({image.tagged for image in find_images(deploy) if not image.digest})
    (deploy / UNPINNED).write_text(UNPINNED_HEADER + "".join(f"{tagged}\n" for tagged in waiting), "utf-8")


def _image_files(deploy: Path) -> list[Path]:
    return [deploy / "Dockerfile", deploy / "compose.yaml", *sorted((deploy / "kubernetes").glob("*.yaml"))]


def _other_images(text: str) -> Iterator[re.Match[str]]:
    """Yield the images in a text that are neither our own nor stages of the same Dockerfile."""
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    for match in IMAGE.finditer(text):
        if not OWN_IMAGE.fullmatch(match["image"]) and match["image"] not in stages:
            yield match


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.release.images",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="Check the files, without a network.")
    mode.add_argument("--dry-run", action="store_true", help="Print the digests, write nothing.")
    parser.add_argument("--deploy", type=Path, default=DEPLOY, help="Folder with the files.")
    parser.add_argument(
        "--docker-hub", default=DOCKER_HUB, help="Address of Docker Hub or of a mirror of it."
    )
    options = parser.parse_args(arguments)
    if options.check:
        if problems := find_problems(options.deploy):
            raise SystemExit("\n".join(problems))
        return
    digests, errors = {}, []
    for tagged in sorted({image.tagged for image in find_images(options.deploy) if image.tag}):
        name, _, tag = tagged.rpartition(":")
        try:
            digests[tagged] = resolve_digest(name, tag, docker_hub=options.docker_hub)
            print(f"{tagged}@{digests[tagged]}")
        except RegistryError as error:
            errors.append(f"{tagged}: {error}")
    if not options.dry_run:
        write_digests(digests, options.deploy)
    if errors:
        raise SystemExit("\n".join(errors))


DOCKER_HUB = "https://registry-1.docker.io"
MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Accepted media types. Lists of platforms come first, so that one digest serves all platforms."""

MAX_MANIFEST_BYTES = 4 * 2**20
TIMEOUT_S = 30.0


class RegistryError(Exception):
    """A registry cannot be reached, or its answer cannot be used."""


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
    """Return the address of an image's registry, and its name there. Without a host, it is Docker Hub."""
    host, _, repository = name.partition("/")
    if not repository:
        return docker_hub, f"library/{name}"
    if host == "docker.io":
        return docker_hub, repository if "/" in repository else f"library/{repository}"
    if "." in host or ":" in host:
        return f"https://{host}", repository
    return docker_hub, name


def _fetch_token(challenge: str, repository: str) -> str:
    """Fetch a token for reading a repository without an account, from the address that the registry names."""
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


if __name__ == "__main__":
    main()

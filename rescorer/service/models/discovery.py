"""Discover bundles and their versions on disk, select those to serve, and detect changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rescorer.bundle import MANIFEST, read_manifest
from rescorer.errors import BundleError

Fingerprint = tuple[tuple[str, int, int], ...]
"""Path, size and modification time of every file of a folder."""


NO_BUNDLES = (
    f"no bundles; expected folders NAME/VERSION with a {MANIFEST}, or the setting bundle for a single one"
)


class FoundVersion(NamedTuple):
    """A version on disk, valid or not."""

    name: str
    version: int
    folder: Path
    strict: bool = True
    """Whether the manifest must state the same name and version as the folders."""

    @property
    def label(self) -> str:
        return f"{self.name}/{self.version}"


def find_versions(folder: Path, single: bool) -> list[FoundVersion]:
    """Find the versions in a folder.

    Args:
        single: whether the folder is one bundle, or holds the versions of one bundle.

    Raises:
        BundleError: If the folder, or the manifest of a single bundle, cannot be read.
    """
    try:
        if not single:
            bundles = [path for path in sorted(folder.iterdir()) if path.is_dir()]
            return [version for path in bundles for version in _versions_in(path, path.name)]
        is_bundle = (folder / MANIFEST).exists() or not folder.is_dir()
        found = [] if is_bundle else _versions_in(folder, folder.resolve().name)
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read as a folder of bundles: {error.strerror}") from None
    if found:
        return found
    manifest = read_manifest(folder)
    return [FoundVersion(manifest["name"], manifest["version"], folder, strict=False)]


def _versions_in(folder: Path, name: str) -> list[FoundVersion]:
    """Find the folders named by numbers; bundles with hidden names are still being written."""
    if name.startswith("."):
        return []
    numbers = [path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()]
    return [FoundVersion(name, int(path.name), path) for path in numbers]


def select_versions(found: Sequence[FoundVersion], models: Sequence[str]) -> dict[str, list[FoundVersion]]:
    """Return the versions to try for each model to serve, newest first; for a pinned model only that version.

    Args:
        models: ``name`` or ``name/version``; empty: all names found.
    """
    newest_first = sorted(found, key=lambda version: -version.version)
    return {
        model: [version for version in newest_first if model in (version.name, version.label)]
        for model in models or sorted({version.name for version in found})
    }


def fingerprint(folder: Path) -> Fingerprint:
    """Fingerprint a folder, to detect changes; empty if it is being removed."""
    try:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        seen = [(path.relative_to(folder).as_posix(), path.stat()) for path in files]
    except OSError:
        return ()
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in seen)

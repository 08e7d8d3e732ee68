"""Discover bundles and their versions on disk, select those to serve, and detect changes."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rescorer.bundle import MANIFEST, read_manifest
from rescorer.errors import BundleError
from rescorer.safe_input.files import SealedFolder

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


class Discovery(NamedTuple):
    """The versions on disk, and the folders of models that cannot be listed."""

    versions: list[FoundVersion]
    unreadable: dict[str, str]
    """Why a model's folder cannot be listed, by the name of the model."""

    def why_missing(self, label: str) -> str:
        """Explain why a version is not among those on disk; empty if it is."""
        if any(version.label == label for version in self.versions):
            return ""
        return self.unreadable.get(label.split("/")[0]) or f"{label}: no such bundle folder"


def find_versions(folder: Path, single: bool) -> Discovery:
    """Find the versions in a folder. A model's folder that cannot be listed does not hide the other models.

    Args:
        single: whether the folder is one bundle, or holds the versions of one bundle.

    Raises:
        BundleError: If the folder, or the manifest of a single bundle, cannot be read.
    """
    try:
        if not single:
            return _find_models(folder)
        is_bundle = (folder / MANIFEST).exists() or not folder.is_dir()
        found = [] if is_bundle else _versions_in(folder, folder.resolve().name)
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read as a folder of bundles: {error.strerror}") from None
    if not found:
        manifest = read_manifest(folder)
        found = [FoundVersion(manifest["name"], manifest["version"], folder, strict=False)]
    return Discovery(found, {})


def _find_models(folder: Path) -> Discovery:
    """Find the versions of every model in a repository; raises OSError if the repository cannot be listed."""
    discovery = Discovery([], {})
    for path in sorted(folder.iterdir()):
        try:
            if stat.S_ISDIR(path.stat().st_mode):
                discovery.versions.extend(_versions_in(path, path.name))
        except FileNotFoundError:
            pass  # removed since it was listed, or a link that leads nowhere
        except OSError as error:
            discovery.unreadable[path.name] = f"{path}: cannot be listed: {error.strerror}"
    return discovery


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
    """Fingerprint a folder, to detect changes; partial if it is being removed or is not like a bundle."""
    seen: list[tuple[str, int, int]] = []
    with suppress(OSError, BundleError):
        for name, status in SealedFolder(folder).list_files():
            seen.append((name, status.st_size, status.st_mtime_ns))
    return tuple(seen)

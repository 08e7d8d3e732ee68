"""Owns what lies in a folder of bundles: names, versions, what was changed, and which of them are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rescorer.bundle import MANIFEST, read_manifest
from rescorer.errors import BundleError

Print = tuple[tuple[str, int, int], ...]
"""Path, size and time of change of every file of a folder."""


NO_BUNDLES = f"no bundles; expected folders NAME/VERSION with a {MANIFEST} in it, or `bundle` for one alone"


class Found(NamedTuple):
    """A version on disk, sound or not."""

    name: str
    version: int
    folder: Path
    strict: bool = True
    """Its manifest must say the same name and version."""

    @property
    def label(self) -> str:
        return f"{self.name}/{self.version}"


def find(folder: Path, single: bool) -> list[Found]:
    """The versions in a folder.

    Args:
        single: the folder is of one bundle, or of one bundle's versions.

    Raises:
        BundleError: the folder cannot be read, or is of one bundle and its manifest cannot.
    """
    try:
        if not single:
            names = [each for each in sorted(folder.iterdir()) if each.is_dir()]
            return [each for name in names for each in versions(name, name.name)]
        alone = (folder / MANIFEST).exists() or not folder.is_dir()
        found = [] if alone else versions(folder, folder.resolve().name)
    except OSError as fault:
        raise BundleError(f"{folder}: cannot be read as a folder of bundles: {fault.strerror}") from None
    if found:
        return found
    manifest = read_manifest(folder)
    return [Found(manifest["name"], manifest["version"], folder, strict=False)]


def versions(folder: Path, name: str) -> list[Found]:
    """The folders called by numbers in it; hidden ones are still being made."""
    if name.startswith("."):
        return []
    numbers = [each for each in folder.iterdir() if each.name.isdecimal() and each.is_dir()]
    return [Found(name, int(each.name), each) for each in numbers]


def wanted(found: Sequence[Found], models: Sequence[str]) -> dict[str, list[Found]]:
    """For everything that is to be served the versions to try, the newest first; a pinned one alone."""
    newest_first = sorted(found, key=lambda each: -each.version)
    names = models or sorted({each.name for each in found})
    return {each: [one for one in newest_first if each in (one.name, one.label)] for each in names}


def fingerprint(folder: Path) -> Print:
    """Tells a folder that has changed from one that has not; nothing of one that is going away."""
    try:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        seen = [(path.relative_to(folder).as_posix(), path.stat()) for path in files]
    except OSError:
        return ()
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in seen)

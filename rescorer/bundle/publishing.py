"""Publish a bundle in one step, and list the files that were added to one."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rescorer.bundle.manifest import MANIFEST, PHRASES, TEXT, WEIGHTS, required_schema
from rescorer.errors import BundleError, ConfigError
from rescorer.formats.io.targets import make_folder
from rescorer.safe_input.files import SealedFolder, sha256


def publish(folder: Path, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Write a bundle atomically: fill a temporary folder next to it, then rename that folder.

    Several processes may write the same bundle at once: one of them publishes it, the others fail. What a
    killed process leaves is hidden, has no version as its name, and is in nobody's way.

    Args:
        fill: writes every file into the given folder and returns the manifest without the key ``files``.

    Raises:
        ConfigError: the folder exists, perhaps only since another process has published it.
    """
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} exists, and bundles are immutable; choose another version")
    make_folder(folder.parent)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.partial")
    partial.mkdir()
    try:
        manifest = fill(partial)
        rules = SealedFolder(partial).read_json(TEXT).get("rules", 1) if (partial / TEXT).exists() else 1
        schema = required_schema(manifest, rules)
        _write_manifest(partial, {"schema": schema, **manifest, "files": hash_files(partial)})
        _rename_to_new(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _rename_to_new(partial: Path, folder: Path) -> None:
    """Rename a folder; raises ConfigError if another process has published a bundle there meanwhile."""
    try:
        os.replace(partial, folder)  # never replaces a folder that has files
    except OSError:
        if not folder.exists():
            raise
        raise ConfigError(
            f"{folder} was written by another process meanwhile, and bundles are immutable; choose another "
            "version"
        ) from None


def seal(folder: Path) -> list[str]:
    """List and hash new files of a bundle, and its weights and phrases that have changed or are gone.

    Returns:
        The names of the files whose entries were added, changed or removed.

    Raises:
        BundleError: the manifest cannot be read, a file is not a regular file inside the bundle, or a file
            other than weights and phrases is missing or has changed.
    """
    manifest = SealedFolder(folder).read_json(MANIFEST)
    listed = manifest.setdefault("files", {})
    if not isinstance(listed, dict):
        raise BundleError(f"{folder / MANIFEST}: 'files' is not an object; expected hashes by name")
    found = hash_files(folder)
    for name in listed:
        if not name.startswith((f"{WEIGHTS}/", f"{PHRASES}/")) and found.get(name) != listed[name]:
            problem = "has changed" if name in found else "is missing"
            raise BundleError(
                f"{folder / name}: {problem} since the bundle was published; publish it as a new version"
            )
    changed = sorted(name for name in {*listed, *found} if listed.get(name) != found.get(name))
    if changed:
        _write_manifest(folder, {**manifest, "files": found})
    return changed


def hash_files(folder: Path) -> dict[str, str]:
    """Hash every file below a folder except the manifest; raises BundleError for other than regular files."""
    files = SealedFolder(folder)
    names = (name for name, _ in files.list_files() if name != MANIFEST)
    hashes = {}
    for name in names:
        with files.open(name) as stream:
            hashes[name] = sha256(stream)
    return dict(sorted(hashes.items()))


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    partial = folder / f".{MANIFEST}.partial"
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, folder / MANIFEST)

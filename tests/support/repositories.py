"""Add versions to a repository of tiny bundles, as an operator does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def add_version(repository: Path, label: str, original: Path | None = None) -> Path:
    """Add a version by one rename.

    Args:
        original: the bundle to copy; None: tiny/1 of the repository.
    """
    name, version = label.split("/")
    partial = repository / f".{name}"
    shutil.copytree(original or repository / "tiny" / "1", partial)
    manifest = json.loads((partial / "manifest.json").read_text()) | {"name": name, "version": int(version)}
    (partial / "manifest.json").write_text(json.dumps(manifest))
    (repository / name).mkdir(exist_ok=True)
    return partial.rename(repository / label)

"""Add versions to a repository of tiny bundles, as an operator does, and record what is loaded from it."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

from rescorer.service.repository import ModelRepository


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


class RecordingHost:
    """A host that only records what is loaded and unloaded."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.log: list[str] = []
        self.error: Exception | None = None
        self.lost: dict[str, str] = {}

    def why_lost(self, label: str) -> str:
        return self.lost.get(label, "")

    async def load(self, label: str, folder: Path) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        assert label not in self.held
        self.held.append(label)
        self.log.append(f"load {label}")

    async def unload(self, label: str) -> None:
        await asyncio.sleep(0)
        self.held.remove(label)
        self.log.append(f"unload {label}")


def make_repository(folder: Path, **options: Any) -> ModelRepository:
    return ModelRepository(RecordingHost(), folder, **({"single": False} | options))

"""Model repository of a chaos run: publish and remove versions of a bundle that score differently."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from rescorer.bundle import MANIFEST, WEIGHTS, newest_version, publish, read_manifest
from rescorer.pipeline import Rescorer
from rescorer.types import NBestList
from tools.chaos.expected import write_expected

DISTINCT_VERSIONS = 4
"""Scores repeat after this number of versions; versions that a server could confuse always differ."""
NETWORK_SCALE_STEP = 0.05
"""Increase of the scale of a network's parameters from version to version."""
WORD_WEIGHT_STEP = 0.1
"""Increase of the word insertion penalty (``word`` weight) from version to version, in nats."""


class VersionRepository:
    """Versions in ``folder``/repository, and the library's answers for each in ``folder``/expected.

    Args:
        source: Bundle to derive the versions from.
        lists: Lists to rescore with each version.
        weights: Name of the weights set to use.
    """

    def __init__(self, folder: Path, source: Path, lists: Sequence[NBestList], weights: str) -> None:
        self.repository, self.expected = folder / "repository", folder / "expected"
        self._staging = folder / "staging"
        for subfolder in (self.repository, self.expected, self._staging):
            subfolder.mkdir()
        self._source = newest_version(source)
        self._manifest = read_manifest(self._source)
        self._lists, self._weights = lists, weights
        self._newest = 0

    @property
    def versions(self) -> list[Path]:
        """Folders of the published versions, oldest first."""
        return sorted(self.repository.glob("*/[0-9]*"), key=lambda folder: int(folder.name))

    def publish_next(self) -> str:
        """Publish the next version and return its label; its expected answers are written first."""
        self._newest += 1
        name = self._manifest["name"]
        staged = self._staging / name / str(self._newest)
        publish(staged, self._fill)
        write_expected(self.expected, Rescorer.load(staged), self._lists, self._weights)
        (self.repository / name).mkdir(exist_ok=True)
        staged.rename(self.repository / name / staged.name)
        return f"{name}/{staged.name}"

    def remove_newest(self) -> str:
        """Remove the newest version; return the label of the version before it."""
        newest = self.versions[-1]
        shutil.rmtree(newest)
        return f"{newest.parent.name}/{self.versions[-1].name}"

    def remove_all_but_newest(self, count: int) -> None:
        """Remove all versions except the ``count`` newest ones."""
        for folder in self.versions[:-count]:
            shutil.rmtree(folder)

    def _fill(self, partial: Path) -> dict[str, Any]:
        shutil.copytree(self._source, partial, dirs_exist_ok=True)
        (partial / MANIFEST).unlink()
        step = self._newest % DISTINCT_VERSIONS
        for path in partial.rglob("*.safetensors"):
            scale_tensors(path, 1 + NETWORK_SCALE_STEP * step)
        for path in (partial / WEIGHTS).glob("*.json"):
            weights = json.loads(path.read_text(encoding="utf-8"))
            weights["word"] = weights.get("word", 0.0) + WORD_WEIGHT_STEP * step
            path.write_text(json.dumps(weights), encoding="utf-8")
        return {**self._manifest, "version": self._newest}


def scale_tensors(path: Path, factor: float) -> None:
    """Multiply all floating-point tensors in a file by a factor."""
    with safe_open(path, "np") as tensors:
        metadata = tensors.metadata()
        values = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118  # not a mapping
    for name, value in values.items():
        if np.issubdtype(value.dtype, np.floating):
            values[name] = (value * factor).astype(value.dtype)
    save_file(values, path, metadata)

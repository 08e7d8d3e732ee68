"""Owns the repository of a chaos run: versions of one bundle that score differently, put there and taken."""

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

KINDS = 4
"""After so many versions scores are the same again: two that a server may mistake are never alike."""
NETWORK_STEP, WORD_STEP = 0.05, 0.1
"""By which a network's numbers grow, and nats that a word gets more, from version to version."""


class Versions:
    """Versions in ``folder``/repository, and what the library makes of lists by each, in ``folder``/expected.

    Args:
        source: the bundle that they are made of.
        lists: to score by each.
        weights: the set of weights to score with.
    """

    def __init__(self, folder: Path, source: Path, lists: Sequence[NBestList], weights: str) -> None:
        self.repository, self.expected = folder / "repository", folder / "expected"
        self._aside = folder / "aside"
        for each in (self.repository, self.expected, self._aside):
            each.mkdir()
        self._source = newest_version(source)
        self._manifest = read_manifest(self._source)
        self._lists, self._weights = lists, weights
        self._newest = 0

    @property
    def present(self) -> list[Path]:
        """On disk, the oldest first."""
        return sorted(self.repository.glob("*/[0-9]*"), key=lambda each: int(each.name))

    def add(self) -> str:
        """Publishes the next version; its label. What it scores is known before anybody can load it."""
        self._newest += 1
        name = self._manifest["name"]
        made = self._aside / name / str(self._newest)
        publish(made, self._fill)
        write_expected(self.expected, Rescorer.load(made), self._lists, self._weights)
        (self.repository / name).mkdir(exist_ok=True)
        made.rename(self.repository / name / made.name)
        return f"{name}/{made.name}"

    def take_back(self) -> str:
        """Takes the newest version away; the label of the one before."""
        newest = self.present[-1]
        shutil.rmtree(newest)
        return f"{newest.parent.name}/{self.present[-1].name}"

    def keep(self, count: int) -> None:
        """Takes away all but the newest."""
        for each in self.present[:-count]:
            shutil.rmtree(each)

    def _fill(self, partial: Path) -> dict[str, Any]:
        shutil.copytree(self._source, partial, dirs_exist_ok=True)
        (partial / MANIFEST).unlink()
        step = self._newest % KINDS
        for path in partial.rglob("*.safetensors"):
            scale(path, 1 + NETWORK_STEP * step)
        for path in (partial / WEIGHTS).glob("*.json"):
            weights = json.loads(path.read_text(encoding="utf-8"))
            weights["word"] = weights.get("word", 0.0) + WORD_STEP * step
            path.write_text(json.dumps(weights), encoding="utf-8")
        return {**self._manifest, "version": self._newest}


def scale(path: Path, factor: float) -> None:
    """Multiplies all floating-point numbers of a file of tensors."""
    with safe_open(path, "np") as tensors:
        metadata = tensors.metadata()
        values = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118  # no mapping
    for name, value in values.items():
        if np.issubdtype(value.dtype, np.floating):
            values[name] = (value * factor).astype(value.dtype)
    save_file(values, path, metadata)

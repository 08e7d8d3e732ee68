"""Versions of a bundle that score differently, and the library's answers for each.

The model repository of a chaos run publishes and removes the versions. The answers of a server are checked
against those of the library.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from rescorer.models.bundle import MANIFEST, WEIGHTS, newest_version, publish, read_manifest
from rescorer.pipeline import Rescorer
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import NBestList
from rescorer.weights import WORDS

DISTINCT_VERSIONS = 4
"""Number of versions until scores repeat. Versions that a server could confuse always differ."""
NETWORK_SCALE_STEP = 0.05
"""Increase of the scale of a network's parameters from version to version."""
WORD_WEIGHT_STEP = 0.1
"""Increase of the word insertion penalty (``word`` weight) from version to version, in nats."""


class VersionRepository:
    """Versions in ``folder``/repository, and the library's answers for each in ``folder``/expected.

    Args:
        source: bundle from which the versions are derived.
        lists: lists to rescore with each version.
        weights: name of the weights set to use.
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
        """Publish the next version, after writing its expected answers; return its label."""
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


TOLERANCE = 1e-4
"""Largest allowed difference of a score, in nats per token. Scores depend slightly on the other lists."""


def write_expected(folder: Path, rescorer: Rescorer, lists: Sequence[NBestList], weights: str) -> None:
    """Rescore lists with the library and write the scores to a file for ``AnswerChecker``."""
    used_weights = rescorer.ranker.effective_weights(rescorer.bundle.weights[weights])
    answers = [
        {
            str(hypothesis.original_rank): {"total": hypothesis.total, **hypothesis.components}
            for hypothesis in answer.hypotheses
        }
        for answer in rescorer.rescore(lists, used_weights)
    ]
    text = json.dumps({"lm_weight": sum(map(abs, used_weights.lm.values())), "lists": answers})
    expected_path(folder, rescorer.bundle.label).write_text(text, encoding="utf-8")


def expected_path(folder: Path, label: str) -> Path:
    return folder / f"{label.replace('/', '-')}.json"


class AnswerChecker:
    """Checks answers against the files of ``write_expected``, each of which is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions: dict[str, Mapping[str, Any]] = {}

    def find_errors(
        self, indices: Sequence[int], request: pb.RescoreRequest, response: pb.RescoreResponse
    ) -> Iterator[str]:
        """Describe every error in an answer.

        Args:
            indices: for each list of the request, its index among the lists given to ``write_expected``.
        """
        sent_ids = [nbest.id for nbest in request.lists]
        answered_ids = [answer.id for answer in response.lists]
        if sent_ids != answered_ids:
            yield f"expected answers to the lists {sent_ids}, got {answered_ids}"
            return
        if response.model not in self._versions:
            path = expected_path(self._folder, response.model)
            if not path.exists():
                yield f"the answer names {response.model!r}, which was never published"
                return
            self._versions[response.model] = json.loads(path.read_text(encoding="utf-8"))
        version = self._versions[response.model]
        for index, nbest, answer in zip(indices, request.lists, response.lists, strict=True):
            where = f"list {nbest.id} by {response.model}"
            if answer.status.code:
                yield f"{where}: {answer.status.code} {answer.status.message}"
            elif error := find_list_error(
                answer, nbest, version["lists"][index], max(1.0, version["lm_weight"])
            ):
                yield f"{where}: {error}"


def find_list_error(
    answer: pb.RescoredList, nbest: pb.NBestList, expected: Mapping[str, Any], lm_weight: float
) -> str:
    """Describe the first error in the answer to one list; empty if the answer is correct."""
    expected_ranks = list(range(1, len(nbest.hypotheses) + 1))
    if sorted(hypothesis.original_rank for hypothesis in answer.hypotheses) != expected_ranks:
        return "expected each hypothesis exactly once"
    if [hypothesis.rank for hypothesis in answer.hypotheses] != expected_ranks:
        return "ranks are not 1, 2, …"
    for hypothesis in answer.hypotheses:
        if hypothesis.text != nbest.hypotheses[hypothesis.original_rank - 1].text:
            return f"{hypothesis.text!r} is not the text that was sent"
        expected_scores = expected[str(hypothesis.original_rank - 1)]
        scores = {"total": hypothesis.total, **hypothesis.components}
        if expected_scores.keys() != scores.keys():
            return f"expected the components {sorted(expected_scores)}, got {sorted(scores)}"
        tolerance = TOLERANCE * (expected_scores[WORDS] + 1)
        for name, value in expected_scores.items():
            if not abs(scores[name] - value) <= tolerance * (lm_weight if name == "total" else 1):
                return f"{name} of {hypothesis.text!r}: expected {value}, got {scores[name]}"
    return ""

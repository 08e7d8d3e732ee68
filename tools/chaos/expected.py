"""Write the library's answers for each version of a bundle, and check a server's answers against them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rescorer.pipeline import Rescorer
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.score_combination import WORDS
from rescorer.types import NBestList

TOLERANCE = 1e-4
"""Largest difference of a score in nats per token; scores depend a little on the other lists in the batch."""


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
    """Checks answers against the files that ``write_expected`` wrote; reads each file once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions: dict[str, Mapping[str, Any]] = {}

    def find_errors(
        self, indices: Sequence[int], request: pb.RescoreRequest, response: pb.RescoreResponse
    ) -> Iterator[str]:
        """Describe every error in an answer.

        Args:
            indices: For each list of the request, its position among the lists given to ``write_expected``.
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
    """Describe the first error in the answer to one list; empty if it is correct."""
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

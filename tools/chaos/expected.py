"""Owns what a server ought to answer: the library's own scores by model version, and answers held to them."""

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
"""Nats a word and end, by which a score may depend on the company that its list was scored in."""


def write_expected(folder: Path, rescorer: Rescorer, lists: Sequence[NBestList], weights: str) -> None:
    """Scores lists by the library, for ``Expected`` to read wherever it is."""
    used = rescorer.ranker.effective_weights(rescorer.bundle.weights[weights])
    answers = [
        {str(each.original_rank): {"total": each.total, **each.components} for each in answer.hypotheses}
        for answer in rescorer.rescore(lists, used)
    ]
    text = json.dumps({"lm_weight": sum(map(abs, used.lm.values())), "lists": answers})
    place_of(folder, rescorer.bundle.label).write_text(text, encoding="utf-8")


def place_of(folder: Path, label: str) -> Path:
    return folder / f"{label.replace('/', '-')}.json"


class Expected:
    """Reads what ``write_expected`` wrote, once a version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions: dict[str, Mapping[str, Any]] = {}

    def complaints(
        self, chosen: Sequence[int], request: pb.RescoreRequest, response: pb.RescoreResponse
    ) -> Iterator[str]:
        """What is wrong with an answer.

        Args:
            chosen: which of the lists that were written the request is made of.
        """
        sent, got = [each.id for each in request.lists], [each.id for each in response.lists]
        if sent != got:
            yield f"lists {sent} were answered by {got}"
            return
        if response.model not in self._versions:
            path = place_of(self._folder, response.model)
            if not path.exists():
                yield f"the answer names {response.model!r}, which there never was"
                return
            self._versions[response.model] = json.loads(path.read_text(encoding="utf-8"))
        version = self._versions[response.model]
        for index, nbest, answer in zip(chosen, request.lists, response.lists, strict=True):
            where = f"list {nbest.id} by {response.model}"
            if answer.status.code:
                yield f"{where}: {answer.status.code} {answer.status.message}"
            elif wrong := wrong_in(answer, nbest, version["lists"][index], max(1.0, version["lm_weight"])):
                yield f"{where}: {wrong}"


def wrong_in(
    answer: pb.RescoredList, nbest: pb.NBestList, expected: Mapping[str, Any], lm_weight: float
) -> str:
    """What is wrong with the answer to one list; empty: nothing."""
    if sorted(each.original_rank for each in answer.hypotheses) != list(range(1, len(nbest.hypotheses) + 1)):
        return "not every hypothesis came back once"
    if [each.rank for each in answer.hypotheses] != list(range(1, len(nbest.hypotheses) + 1)):
        return "ranks are not 1, 2, …"
    for each in answer.hypotheses:
        if each.text != nbest.hypotheses[each.original_rank - 1].text:
            return f"{each.text!r} is not the text that was sent"
        ours = expected[str(each.original_rank - 1)]
        theirs = {"total": each.total, **each.components}
        if ours.keys() != theirs.keys():
            return f"components are {sorted(theirs)}; expected {sorted(ours)}"
        bound = TOLERANCE * (ours[WORDS] + 1)
        for name, value in ours.items():
            if not abs(theirs[name] - value) <= bound * (lm_weight if name == "total" else 1):
                return f"{name} of {each.text!r} is {theirs[name]}; the library gives {value}"
    return ""

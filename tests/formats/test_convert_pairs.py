"""Every format converts to every other; lists that the other cannot hold are rejected with the reason."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from rescorer.cli import app
from rescorer.formats.registry import FORMATS, choose
from rescorer.types import Hypothesis, NBestList
from tests.support.format_samples import CHOICES_WITH_OPTIONS

pytestmark = pytest.mark.slow

WORDS = (("a", 0.5), ("b", 0.75))
CHOICES = {name: CHOICES_WITH_OPTIONS.get(name, name) for name in FORMATS} | {
    "alternatives": "alternatives:score=score,base=e"
}
MISSING_PART = re.compile(
    "the format needs this stream|the format needs at least one feature|the words with their times"
    "|expected 2 hypotheses as in every list|group: expected the speaker"
    "|expected a non-empty id without white space"
)
"""Reasons for rejection: no scores, times, number of hypotheses, speaker or id as the format needs it."""


@pytest.fixture
def complete_list() -> NBestList:
    """A list with all parts that any format needs."""
    times = [{"word": word, "start_s": start, "duration_s": 0.25} for word, start in WORDS]
    hypotheses = (Hypothesis("a b", {"words": times}), Hypothesis("b", {"words": times[1:]}))
    scores = dict.fromkeys(("acoustic", "lm", "graph", "first_pass"), (-1.0, -2.0))
    segment = {"file": "u1", "channel": "1", "start_s": 0.0, "end_s": 1.0}
    return NBestList("u1", hypotheses, scores, group="ann", fields=segment)


@pytest.mark.parametrize("source", FORMATS)
def test_converts_to_every_other_format(tmp_path, complete_list, source):
    with choose(CHOICES_WITH_OPTIONS.get(source, source)).writer(tmp_path / "source") as write:
        write(complete_list)
    rejected_by = set()
    for target in FORMATS:
        command = ["convert", str(tmp_path / "source"), str(tmp_path / target), "--from", CHOICES[source]]
        result = CliRunner().invoke(app, [*command, "--to", CHOICES_WITH_OPTIONS.get(target, target)])
        if result.exit_code == 1:
            assert MISSING_PART.search(result.stderr), (target, result.stderr)
            rejected_by.add(target)
            continue
        assert result.exit_code == 0, (target, result.output)
        (found,) = choose(CHOICES[target]).read(tmp_path / target)
        one_best = FORMATS[source].one_best or FORMATS[target].one_best
        texts = [hypothesis.text for hypothesis in found.hypotheses]
        # Lattices order hypotheses by their scores.
        assert sorted(texts) == (["a b"] if one_best else ["a b", "b"]), target
    assert source != "jsonl" or not rejected_by

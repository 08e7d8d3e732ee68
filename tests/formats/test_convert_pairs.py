"""Any format converts to any other: what both hold arrives, and where it cannot go the reason is told."""

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
LACKS = re.compile(
    "the format needs this stream|the format needs at least one feature|the words with their times"
    "|expected 2 hypotheses as in every list|group: expected the speaker"
    "|expected a non-empty id without white space"
)
"""What a list may lack and another format needs: scores, times, hypotheses, a speaker, a plain id."""


@pytest.fixture
def rich() -> NBestList:
    """A list with everything that one format or another asks for."""
    times = [{"word": word, "start_s": start, "duration_s": 0.25} for word, start in WORDS]
    hypotheses = (Hypothesis("a b", {"words": times}), Hypothesis("b", {"words": times[1:]}))
    scores = dict.fromkeys(("acoustic", "lm", "graph", "first_pass"), (-1.0, -2.0))
    place = {"file": "u1", "channel": "1", "start_s": 0.0, "end_s": 1.0}
    return NBestList("u1", hypotheses, scores, group="ann", fields=place)


@pytest.mark.parametrize("source", FORMATS)
def test_a_format_converts_to_every_other(tmp_path, rich, source):
    with choose(CHOICES_WITH_OPTIONS.get(source, source)).writer(tmp_path / "source") as write:
        write(rich)
    refused = set()
    for target in FORMATS:
        command = ["convert", str(tmp_path / "source"), str(tmp_path / target), "--from", CHOICES[source]]
        done = CliRunner().invoke(app, [*command, "--to", CHOICES_WITH_OPTIONS.get(target, target)])
        if done.exit_code == 1:
            assert LACKS.search(done.stderr), (target, done.stderr)
            refused.add(target)
            continue
        assert done.exit_code == 0, (target, done.output)
        (found,) = choose(CHOICES[target]).read(tmp_path / target)
        one = FORMATS[source].one_best or FORMATS[target].one_best
        texts = [each.text for each in found.hypotheses]
        # Lattices have the order of their scores, not of their lists.
        assert sorted(texts) == (["a b"] if one else ["a b", "b"]), target
    assert source != "jsonl" or not refused

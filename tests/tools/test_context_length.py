"""Lists follow the last utterances of their call; weights have the fewest errors on the other calls."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import typer

from rescorer.pipeline import Rescorer
from tools.context_length import (
    NOTHING,
    RANK,
    SCALES,
    WEIGHTS,
    WORD_SCALES,
    Errors,
    Span,
    add_previous,
    main,
)
from tools.conversations import read_dialogues, score

CALLS = {"sw1": 12, "sw2": 5, "sw3": 2}
TEXTS = "the ship sailed", "the ship sailed away", "a ship failed", "ship"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "switchboard").mkdir()
    with (tmp_path / "switchboard/rank-only-tenbest.jsonl").open("w", encoding="utf-8") as file:
        for call, n_lists in CALLS.items():
            for turn in range(n_lists):
                hypotheses = [f"{call} {turn}", *TEXTS[: 1 + turn % 4]]
                row = {"id": f"{call}-{turn}", "ref_norm": TEXTS[turn % 3], "hyps_norm": hypotheses}
                print(json.dumps(row), file=file)
    return tmp_path


@pytest.fixture
def dialogues(folder):
    return read_dialogues(folder, "Switchboard")


def said(dialogues, span, offset=0):
    """Return the texts before each list, by call."""
    lists = itertools.chain.from_iterable(add_previous(dialogues, Span.parse(span), offset))
    found = {}
    for nbest in lists:
        found.setdefault(nbest.group, []).append([utterance.text for utterance in nbest.previous])
    return found


def test_blocks_do_not_cross_calls(dialogues):
    blocks = list(add_previous(dialogues, NOTHING))
    assert [len(block) for block in blocks] == [10, 2, 5, 2]
    assert not any(nbest.previous for block in blocks for nbest in block)


def test_lists_follow_so_many_utterances_of_their_call(dialogues):
    assert said(dialogues, "2")["sw2"] == [
        [],
        ["sw2 0"],
        ["sw2 0", "sw2 1"],
        ["sw2 1", "sw2 2"],
        ["sw2 2", "sw2 3"],
    ]


def test_of_a_range_the_oldest_utterance_stays_for_some_lists(dialogues):
    lengths = [len(texts) for texts in said(dialogues, "3-5")["sw1"]]
    assert lengths == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5]
    assert said(dialogues, "3-5")["sw1"][8][0] == said(dialogues, "3-5")["sw1"][6][0] == "sw1 3"


def test_the_control_repeats_another_call_that_is_too_short(dialogues):
    assert said(dialogues, "3", 1)["sw2"][4] == ["sw3 1", "sw3 0", "sw3 1"]
    assert said(dialogues, "1", 1)["sw3"][1] == ["sw1 0"]


@pytest.mark.parametrize("text", ["", "five", "3-", "4-2", "1-2-3"])
def test_a_span_that_is_no_span_is_refused(text):
    with pytest.raises(typer.BadParameter, match="'"):
        Span.parse(text)


def test_weights_of_a_call_have_the_fewest_errors_on_the_others(dialogues, bundle):
    rescorer = Rescorer.load(bundle)
    lists = itertools.chain.from_iterable(add_previous(dialogues, NOTHING))
    scored = score(list(lists), rescorer, rescorer.ranker.effective_weights(WEIGHTS))
    measured = Errors(scored)
    errors, _ = measured.hold_out([measured.column("mixture")])

    def count(item, point):
        parts = item.components
        totals = parts[RANK] + point[0] * parts["mixture"] + point[1] * parts["words"]
        return item.evaluated.hypotheses[int(np.argmax(np.round(totals, 4)))].errors

    points = list(itertools.product(SCALES, WORD_SCALES))
    for call in CALLS:
        rest = [item for item in scored if item.evaluated.group != call]
        best = min(points, key=lambda point: sum(count(item, point) for item in rest))
        own = [count(item, best) for item in scored if item.evaluated.group == call]
        assert errors[measured.calls == call].tolist() == own


def test_rows_and_gains_are_printed(folder, bundle, capsys, tmp_path):
    app = typer.Typer()
    app.command()(main)
    arguments = [str(folder), "-b", str(bundle), "--baseline", str(bundle), "--last", "1", "--last", "2-3"]
    app([*arguments, "--cache", str(tmp_path / "cache")], standalone_mode=False)
    out, err = capsys.readouterr()
    assert out.startswith("19 lists, 64 words, 3 calls\nfirst pass: ")
    rows = [line.split(":")[0] for line in out.splitlines()[1:] if not line.startswith(" ")]
    assert rows == ["first pass", "baseline", "nothing", "another call", "last 1", "last 2-3", "oracle"]
    assert err.count("s of processor time a list") == 5

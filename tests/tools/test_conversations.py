"""Dialogues are cut where a system greets or a group ends, and lists get what was said before them."""

from __future__ import annotations

import json

import pytest

from tools.conversations import add_past, read_dialogues

TURNS = [
    ("Hello , which food ?", "thai"),
    ("Which area ?", "the north"),
    ("Anything else ?", "no"),
    ("Hello , which food ?", "any"),
    ("Goodbye", "bye"),
]


@pytest.fixture
def dialogues(tmp_path):
    (tmp_path / "dstc2").mkdir()
    rows = [
        {"id": f"{i}", "system_prompt": prompt, "ref": text, "hyps": [text, f"{text} uh"]}
        for i, (prompt, text) in enumerate(TURNS)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "dstc2/rank-only-dev.jsonl").write_text(lines, encoding="utf-8")
    return read_dialogues(tmp_path, "DSTC2")


def texts(nbest):
    return [utterance.text for utterance in nbest.previous]


def test_a_greeting_begins_a_dialogue(dialogues):
    assert [[nbest.id for nbest in dialogue.lists] for dialogue in dialogues] == [["0", "1", "2"], ["3", "4"]]


def test_lists_follow_the_prompts_and_first_hypotheses_of_their_dialogue(dialogues):
    lists = list(add_past(dialogues, "the dialogue"))
    assert texts(lists[0]) == ["Hello , which food ?"]
    assert texts(lists[2]) == ["Hello , which food ?", "thai", "Which area ?", "the north", "Anything else ?"]
    assert texts(lists[3]) == ["Hello , which food ?"]
    assert [nbest.group for nbest in lists] == ["0", "0", "0", "1", "1"]


def test_the_control_has_the_past_of_another_dialogue_up_to_its_last_turn(dialogues):
    lists = list(add_past(dialogues, "another dialogue"))
    assert texts(lists[1]) == texts(lists[2]) == ["Hello , which food ?", "any", "Goodbye"]


def test_without_a_past_lists_stay_as_they_are(dialogues):
    assert not any(texts(nbest) for nbest in add_past(dialogues, "nothing"))

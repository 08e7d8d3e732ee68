"""References find their lists: by id, or, from a NeMo manifest, by order or the names of audio files."""

from __future__ import annotations

import json
import os
import threading

import pytest

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.inputs import explain_difference, open_references
from rescorer.formats.nemo import filled_manifest_writer
from rescorer.formats.registry import FORMATS
from rescorer.types import Hypothesis, NBestList

ENTRIES = [
    {"audio_filepath": "calls/b.wav", "text": "yes", "duration": 1.5, "pred_text": "old", "beams": [["old"]]},
    {"audio_filepath": "calls/a.wav", "text": "no", "duration": 2},
]


def write_manifest(folder, entries=ENTRIES):
    path = folder / "manifest.json"
    path.write_text("\n".join(map(json.dumps, entries)) + "\n\n")
    return str(path)


def make_lists(*ids, texts=("x",)):
    return [NBestList(key, tuple(map(Hypothesis, texts))) for key in ids]


def match(path, items, *, numbered=False):
    notes = []
    found = list(open_references(path).match(iter(items), "FILE", notes.append, numbered=numbered))
    return [item.reference for item in found if isinstance(item, NBestList)], notes


@pytest.mark.parametrize(
    ("ids", "expected", "how"),
    [
        (("a", "b"), ["no", "yes"], "names of audio files"),
        (("b.wav", "a.wav"), ["yes", "no"], "names of audio files with suffix"),
        (("calls/a.wav", "calls/b.wav"), ["no", "yes"], "audio_filepath"),
        (("1", "2"), ["yes", "no"], "order"),
    ],
)
def test_the_ids_decide_how_a_manifest_is_matched(tmp_path, ids, expected, how):
    references, notes = match(write_manifest(tmp_path), make_lists(*ids))
    assert references == expected
    assert len(notes) == 1
    assert f"references by {how}" in notes[0]


def test_parts_of_recordings_have_their_offset(tmp_path):
    entries = [{"audio_filepath": "a.wav", "offset": offset, "text": f"t{offset}"} for offset in (0, 1.5)]
    assert match(write_manifest(tmp_path, entries), make_lists("a-1.5", "a"))[0] == ["t1.5", "t0"]


def test_lists_that_cannot_be_read_keep_their_place(tmp_path):
    items = [InvalidList("bad", list_id="1"), *make_lists("2")]
    assert match(write_manifest(tmp_path), items)[0] == ["no"]


@pytest.mark.parametrize("n", [1, 3])
def test_rejects_another_number_of_lists(tmp_path, n):
    lists = make_lists(*map(str, range(1, n + 1)))
    with pytest.raises(FormatError, match=rf"has 2 lines, but FILE has {n} list.*matched by order"):
        match(write_manifest(tmp_path), lists, numbered=True)


def test_rejects_ids_that_fit_neither_by_order_nor_by_name(tmp_path):
    with pytest.raises(FormatError, match=r"neither by order nor by name: .* 'b' or 'b.wav' .* the id 'x'"):
        match(write_manifest(tmp_path), make_lists("x", "y"))


def test_numbers_are_lines_only_where_they_cannot_be_names(tmp_path):
    entries = [{"audio_filepath": f"{name}.wav", "text": name} for name in ("2", "1")]
    path = write_manifest(tmp_path, entries)
    assert match(path, make_lists("1", "2"), numbered=True)[0] == ["2", "1"]
    with pytest.raises(FormatError, match="may be lines here or names of audio files"):
        match(path, make_lists("1", "2"))


def test_rejects_names_that_several_recordings_have(tmp_path):
    entries = [{"audio_filepath": f"{folder}/a.wav", "text": folder} for folder in ("x", "y")]
    path = write_manifest(tmp_path, entries)
    with pytest.raises(FormatError, match="lines 1 and 2 have different texts and one name, 'a'"):
        match(path, make_lists("a"))
    assert match(path, make_lists("y/a.wav", "x/a.wav"))[0] == ["y", "x"]


def test_names_a_line_without_a_text(tmp_path):
    with pytest.raises(FormatError, match=r"manifest.json:2: text: expected a string, got nothing"):
        open_references(write_manifest(tmp_path, [ENTRIES[0], {"audio_filepath": "a.wav"}]))


@pytest.mark.parametrize(
    ("lists", "references", "expected"),
    [
        (["U1"], ["u1"], "'U1' and 'u1' differ in case"),
        (["u1"], ["calls/u1.wav"], "differ in folder or suffix"),
        (["spk_u1"], ["spk-u1"], "differ in punctuation"),
        (["u1.results[0].alternatives"], ["u1"], "differ after the first dot"),
        (["1.results[0].alternatives"], ["u1"], "These ids are places in the file"),
        (["1", "2"], ["u1", "u2"], "These ids count the lists"),
    ],
)
def test_explains_how_ids_differ(lists, references, expected):
    assert expected in explain_difference(lists, references)
    assert explain_difference(["x"], ["y"]) == ""


@pytest.mark.parametrize("ids", [("a", "b"), ("2", "1"), ("calls/a.wav", "calls/b.wav")])
def test_writes_texts_into_the_lines_of_a_manifest(tmp_path, ids):
    path = write_manifest(tmp_path)
    with filled_manifest_writer(tmp_path / "out.json", manifest=path) as write:
        for nbest in make_lists(*ids, texts=("new",)):
            write(nbest)
        with pytest.raises(InvalidList, match="already written"):
            write(make_lists(ids[0])[0])
        with pytest.raises(InvalidList, match=r"no line of .*manifest.json"):
            write(make_lists("none")[0])
    found = [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()]
    first, second = ({**entry, "pred_text": "new"} for entry in (ENTRIES[1], ENTRIES[0]))
    del second["beams"]
    assert found == [first, second]


def test_keeps_several_hypotheses_as_beams(tmp_path):
    with filled_manifest_writer(tmp_path / "out.json", manifest=write_manifest(tmp_path)) as write:
        write(NBestList("a", (Hypothesis("x"), Hypothesis("y")), {"first_pass": (-1.0, -2.0)}))
    (found,) = map(json.loads, (tmp_path / "out.json").read_text().splitlines())
    assert (found["pred_text"], found["beams"]) == ("x", [["x", -1.0], ["y", -2.0]])


def test_asks_if_numbers_could_be_lines_or_names(tmp_path):
    path = write_manifest(tmp_path, [{"audio_filepath": f"{name}.wav", "text": name} for name in ("2", "1")])
    with (
        filled_manifest_writer(tmp_path / "out.json", manifest=path) as write,
        pytest.raises(InvalidList, match="by=order"),
    ):
        write(make_lists("1")[0])
    for by, text in (("order", "2"), ("name", "1")):
        with filled_manifest_writer(tmp_path / "out.json", manifest=path, by=by) as write:
            write(make_lists("1")[0])
        assert json.loads((tmp_path / "out.json").read_text())["text"] == text
    with pytest.raises(ValueError, match="expected order or name"):
        FORMATS["manifest"].write_options["by"]("line")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'utt,text\nu1,"to, be"\nu2,\n'),
        ("a.tsv", "id\tspeaker\ttext\nu1\ts1\tto, be\nu2\ts2\t\n"),
        ("a.tsv", "text\tid\nto, be\tu1\n\tu2\n"),
        ("a.csv", 'id,hyp,ref\nu1,two,"to, be"\nu1,too,"to, be"\nu2,no,\n'),
        ("a.csv", 'u1,"to, be"\nu2,""\n'),
        ("a.json", '{"u1": "to, be", "u2": ""}'),
        ("a.json", '{\n "u1": "to, be",\n "u2": ""\n}\n'),
        ("a.jsonl", '{"id": "u1", "text": "to, be"}\n{"id": "u2", "text": ""}\n'),
        ("a.json", '[{"id": "u1", "text": "x", "reference": "to, be"}, {"id": "u2", "text": ""}]'),
    ],
)
def test_reads_references_of_tables_and_json(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    found = dict(open_references(str(path)).by_id)
    assert found["u1"] == "to, be"
    assert found.get("u2", "") == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,text,pred_text\nu1,a,b\n", "'text' and 'pred_text' could .* call the column of references"),
        ("id,text\nu1,a\nu1,b\n", "several texts with the id 'u1'"),
        ("id,text\nu1,a,b\n", "expected 2 columns"),
    ],
)
def test_refuses_tables_that_do_not_say_what_the_reference_is(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        open_references(str(path))


def test_references_come_through_pipes(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("u1 to be\nu2 the sea\n",))
    writer.start()
    assert open_references(str(path)).by_id == {"u1": "to be", "u2": "the sea"}
    writer.join()

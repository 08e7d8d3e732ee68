"""NIST files as they are found: detected however they are decorated, and damage kept to where it is."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rescorer.cli import main
from rescorer.errors import FormatError, InvalidList
from rescorer.evaluation.list_errors import align_recordings
from rescorer.formats.io.folders import ends_with_id
from rescorer.formats.nist import (
    ctm_writer,
    fits_stm,
    read_ctm_lists,
    read_recordings,
    read_references,
    read_segments,
    read_trn_lists,
    trn_writer,
)
from rescorer.formats.registry import FORMATS, detect
from rescorer.types import Hypothesis, NBestList

WORD = st.sampled_from(
    ["the", "Sea", "été", "1995", "3", "-uh", "(so)", "%hes", "a;b", "{", "/", "}", "@", "天"]
)
TEXT = st.lists(WORD, max_size=5).map(" ".join)
NAME = st.sampled_from(["u1", "SPK_A-001", "2345", "a.b", "ü", "ANN-000"])
SECONDS = st.sampled_from([0.0, 0.25, 1.5, 1e-5, 3600.0])


def write(name: str, lists: Iterable[NBestList], path: Path) -> list[str]:
    """The lines that a format's writer writes."""
    with FORMATS[name].writer(path) as write_list:
        for nbest in lists:
            write_list(nbest)
    return path.read_text(encoding="utf-8").splitlines()


@st.composite
def trn_lists(draw: st.DrawFn) -> list[NBestList]:
    names = draw(st.lists(NAME, min_size=1, max_size=5, unique=True))
    return [NBestList(name, (Hypothesis(draw(TEXT)),)) for name in names]


@st.composite
def ctm_lists(draw: st.DrawFn) -> list[NBestList]:
    lists = []
    for name in draw(st.lists(NAME, min_size=1, max_size=4, unique=True)):
        spoken = draw(st.lists(WORD, min_size=1, max_size=4))
        times = [{"word": word, "start_s": draw(SECONDS), "duration_s": draw(SECONDS)} for word in spoken]
        if draw(st.booleans()):
            times[0]["confidence"] = 0.5
        channel = draw(st.sampled_from(["1", "A", "left"]))
        lists.append(NBestList(f"{name} {channel}", (Hypothesis(" ".join(spoken), {"words": times}),)))
    return lists


@st.composite
def stm_lists(draw: st.DrawFn) -> list[NBestList]:
    lists = []
    for number in range(draw(st.integers(1, 5))):
        start, end = sorted((draw(SECONDS), draw(SECONDS)))
        fields = {"file": draw(NAME), "channel": "A", "start_s": start, "end_s": end}
        fields |= draw(st.sampled_from([{}, {"labels": "<o,f0,male>"}, {"labels": "<O,F,00>"}]))
        text = draw(TEXT)
        lists.append(
            NBestList(f"Ann_{number}-000", (Hypothesis(text),), group=f"Ann_{number}", fields=fields)
        )
    return lists


LISTS = {"trn": trn_lists(), "ctm": ctm_lists(), "stm": stm_lists()}
NOTES = st.sampled_from(["", "   ", "\t", ";;", ";; made by hand", ';; LABEL "o" "Overall" "(u9) 1 2 3"'])


@st.composite
def decorations(draw: st.DrawFn) -> dict[str, object]:
    return {
        "notes": draw(st.lists(st.tuples(st.integers(0, 20), NOTES), max_size=5)),
        "block": draw(st.sampled_from([0, 3, 120])),
        "indent": draw(st.sampled_from(["", " ", "\t "])),
        "end": draw(st.sampled_from(["\n", "\r\n"])),
        "mark": draw(st.sampled_from(["", "\ufeff"])),
        "pack": draw(st.sampled_from([bytes, gzip.compress])),
    }


def decorate(lines: list[str], notes, block, indent, end, mark, pack) -> bytes:
    lines = [indent + line for line in lines]
    for place, note in notes:
        lines.insert(place, note)
    lines = [";; licence, line of many"] * block + lines
    return pack((mark + "".join(line + end for line in lines)).encode())


@pytest.mark.parametrize("name", LISTS)
@given(data=st.data())
def test_detects_and_reads_what_a_format_allows(name, data):
    lists, how = data.draw(LISTS[name]), data.draw(decorations())
    texts = [nbest.hypotheses[0].text for nbest in lists]
    # a ctm in which names and words are numbers looks like scores
    assume(name != "ctm" or any(not nbest.id[0].isdigit() for nbest in lists) or "the" in " ".join(texts))
    # the words of a trn may be numbers and its id an optional word, as in a ctm or stm
    certain = [ends_with_id(f"({nbest.id})") for nbest in lists]
    # three words and two numbers may be the columns of an stm, whose words are the id
    assume(name != "trn" or (any(certain) and (all(certain) or not all(map(fits_stm, texts)))))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(decorate(write(name, lists, path), **how))
        assert detect(path)[0] == name
        assert list(FORMATS[name].read(path)) == lists


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("ctm", ["f1 A zero 0.2 the", "f2 A 0.0 0.2 sea", "f3 A 0.5 0.2 day"]),
        ("ctm", ["f1 A 0.1", "f2 A * * <ALT_BEGIN>", "f2 A 0 1 a", "f2 A * * <ALT_END>", "f3 A 0.5 0.2 day"]),
        ("stm", ["f A ann 0.0 now", "f A ann 1 2 <o,f0> well", "f A bob 2 3"]),
        ("trn", ["the sea", "the sea (u1)", "the day (u2)"]),
    ],
)
def test_detects_files_with_damaged_first_lines(tmp_path, name, lines):
    (tmp_path / "file").write_text("".join(f"{line}\n" for line in lines))
    assert detect(tmp_path / "file")[0] == name
    found = list(FORMATS[name].read(tmp_path / "file"))
    assert isinstance(found[0], FormatError)
    assert isinstance(found[-1], NBestList)


@pytest.mark.parametrize("text", ["a (b)\nc\nd\n", "hello\nf 1 0 1 x\nthere\n", "u1 a b\n"])
def test_does_not_take_other_text_for_damaged(tmp_path, text):
    (tmp_path / "file").write_text(text)
    with pytest.raises(FormatError, match="no known format matches"):
        detect(tmp_path / "file")


WHOLE = b"""\
f1 A 0.0 0.2 the
f1 A 0.2 0.2 sea
f2 A 0.0 0.2 a
f2 A 0.2 0.2 small
f2 A 0.4 0.2 dog
f2 B 0.0 0.2 yes
f3 A 0.0 0.2 good NA
f3 A 0.3 0.2 day <NA>
"""


def read_texts(data: bytes) -> dict[str, str]:
    """The texts of lists by id, and the messages of errors by line number."""
    found = {}
    for item in read_ctm_lists(io.BytesIO(data)):
        if isinstance(item, NBestList):
            found[item.id] = item.hypotheses[0].text
        else:
            found[str(item.line)] = str(item)
    return found


def test_reads_each_recording():
    assert read_texts(WHOLE) == {"f1 A": "the sea", "f2 A": "a small dog", "f2 B": "yes", "f3 A": "good day"}


@pytest.mark.parametrize("place", [2, 3, 4])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b"f2 A 0.2s 0.2 x", "start: expected a number, got '0.2s'"),
        (b"f2 A -1 0.2 x", "start: expected a non-negative number"),
        (b"f2 A * * x", "start: expected a number, got '\\*'"),
        (b"f2 A 0.2 0.2 x high", "confidence: expected a number"),
        (b"f2 A 0.2", "got 3 columns"),
        (b"f2 A", "got 2 columns"),
        (b"f2", "got 1 columns"),
        (b"f2 A 0 1 a 1 lex spk more", "got 9 columns"),
        (b"f2 A 0.2 0.2 caf\xe9", "not UTF-8"),
        (b"\xff\xfe f2 A 0.2 0.2 x", "not UTF-8"),
        (b"f2 A 0.2 0.2 x\0", "NUL"),
        (b"f2 A * * <ALT>", "<ALT> without <ALT_BEGIN> before it"),
        (b"f2 A * * <ALT_END>", "<ALT_END> without <ALT_BEGIN> before it"),
        (b"f2 A * * <ALT_BEGIN>", "<ALT_BEGIN> without <ALT_END> after it"),
        (b"f2 A * * <alt_begin>\nf2 A * * <ALT_BEGIN>", "<ALT_BEGIN> inside alternatives"),
        (b"f2 A * * <ALTERNATIVE>", "word: expected one of <ALT_BEGIN>, <ALT>, <ALT_END>"),
        (b"f2 A * * <ALT_BEGIN>\nf2 A 0 1 x\nf2 A * * <ALT>\nf2 A * * <ALT_END>", "has alternatives"),
    ],
)
def test_damage_loses_its_recording_alone(place, damage, message):
    """The first line of f2, one in the middle, and the last but one; whole names are in its first columns."""
    lines = WHOLE.splitlines()
    lines[place:place] = damage.splitlines()
    found = read_texts(b"\n".join(lines))
    if damage.startswith(b"\xff"):  # its name cannot be read either: a recording of its own or the one around
        found.pop("f2 A", None)
    assert [key for key in found if not key.isdigit()] == ["f1 A", "f2 B", "f3 A"]
    (error,) = (text for key, text in found.items() if key.isdigit())
    assert re.search(message, error)
    assert error.startswith("<stream>:")


def test_a_damaged_name_does_not_divide_a_recording():
    found = read_texts(WHOLE.replace(b"f2 A 0.2 0.2 small", b"f2X A 0.2 0.2s small"))
    assert found["f2 A"] == "a dog"
    assert "recording 'f2X A' is left out" in found["4"]


def test_damage_at_the_ends_of_a_file():
    found = read_texts(b"junk\n" + WHOLE + b"junk\n")
    assert [key for key in found if not key.isdigit()] == ["f2 A", "f2 B"]
    assert read_texts(b"junk\n") == {
        "1": "<stream>:1: expected file, channel, start, duration, word [confidence], got 1 columns"
    }


STM = b"""\
F1 a ann 0 1 <o,f0> the sea
f2 A ann 0 0.25 a
f2 A bob 0.25 9 { small / little } dog
f2 B ann 0 9 <unknown> yes
f3 A ann 0 0.2 IGNORETIMESEGMENTINSCORING
f3 A excluded_region 0.2 9 good day
"""


def score(ctm: bytes, stm: bytes) -> dict[str, tuple[str, str]]:
    segments = read_segments(io.BytesIO(stm))
    items = list(align_recordings(read_recordings(io.BytesIO(ctm)), segments))
    lists = {
        item.id: (item.reference or "", item.hypotheses[0].text)
        for item in items
        if isinstance(item, NBestList)
    }
    return lists | {
        f"error {n}": (str(item), "") for n, item in enumerate(items) if isinstance(item, FormatError)
    }


def test_scores_recordings_by_time():
    assert score(WHOLE, STM) == {
        "ann-000": ("the sea", "the sea"),
        "ann-001": ("a", "a"),
        "bob-000": ("{ small / little } dog", "small dog"),
        "ann-002": ("yes", "yes"),
        "excluded_region-000": ("good day", "day"),
    }


def test_alternatives_stay_in_one_segment():
    tags = [b"f2 A * * <ALT_BEGIN>", b"f2 A * * <ALT>", b"f2 A * * <ALT>", b"f2 A * * <ALT_END>"]
    ways = [b"f2 A 0.2 0.1 small", b"f2 A 0.25 0.2 tall\nf2 A 0.5 0.1 er", b""]
    block = b"\n".join(part for pair in zip(tags, [*ways, b""], strict=True) for part in pair if part)
    found = score(WHOLE.replace(b"f2 A 0.2 0.2 small", block), STM)
    assert found["ann-001"] == ("a", "a")
    assert found["bob-000"] == ("{ small / little } dog", "{ small / tall er / @ } dog")


@pytest.mark.parametrize(
    "line", [b"f2 A cat 1 now x", b"f2 A cat", b"f2 A cat 3 2 x", b"f2 A caf\xe9 1 2 x", b"f2"]
)
def test_a_damaged_segment_loses_its_recording_alone(line):
    lines = STM.splitlines()
    lines.insert(2, line)
    *lists, error = score(WHOLE, b"\n".join(lines))
    assert lists == ["ann-000", "ann-002", "excluded_region-000"]
    found = score(WHOLE, b"\n".join(lines))[error][0]
    assert found.startswith("<stream>:3: ")
    assert "recording 'f2 A' is left out" in found


def test_a_damaged_recording_is_not_counted_as_deletions():
    found = score(WHOLE.replace(b"f2 A 0.2", b"f2 A zero"), STM)
    assert list(found) == ["ann-000", "ann-002", "excluded_region-000", "error 3"]


@pytest.mark.parametrize(
    ("text", "labels", "words"),
    [
        ("<o,f0,male> so we", "<o,f0,male>", "so we"),
        ("<o,,unknown> IGNORE", "<o,,unknown>", "IGNORE"),
        ("<o f0> so", "<o", "f0> so"),  # as sclite: the first word that begins with <
        ("<unk> so", "<unk>", "so"),
        ("so <o,f0> we", "", "so <o,f0> we"),
        ("<o,f0>", "<o,f0>", ""),
        ("<o\u00a0p> so", "<o\u00a0p>", "so"),
    ],
)
def test_labels_are_what_nists_reader_takes_for_them(text, labels, words):
    (segment,) = read_segments(io.BytesIO(f"f A ann 0 1 {text}\n".encode()))
    assert (segment.labels, segment.text) == (labels, words)


HYP = "go forward ten meters (001 -3466)\nstop (002 -12345)\n (003 -871)\nwait (u -12)\n"


def test_reads_pocketsphinx_scores():
    first, *others, last = read_trn_lists(io.BytesIO(HYP.encode()))
    assert (first.id, first.hypotheses[0].text) == ("001", "go forward ten meters")
    # a unit is 1024 times the natural logarithm of 1.0001
    assert first.streams == {"first_pass": (pytest.approx(-354.9, abs=0.05),)}
    assert [(nbest.id, nbest.hypotheses[0].text) for nbest in others] == [("002", "stop"), ("003", "")]
    assert (last.id, last.streams) == ("u -12", {})
    assert read_references(io.BytesIO(HYP.encode()))["003"] == ""


def test_evaluates_pocketsphinx_files(tmp_path, monkeypatch, capsys):
    (tmp_path / "cards.hyp").write_text(HYP.replace("wait (u -12)\n", ""))
    (tmp_path / "cards.ref").write_text("go forward ten metres (001)\nstop (002)\n(003)\n")
    arguments = ["evaluate", tmp_path / "cards.hyp", "--reference", tmp_path / "cards.ref", "--json"]
    monkeypatch.setattr(sys, "argv", ["rescorer", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    (system,) = json.loads(capsys.readouterr().out)["systems"]
    assert (system["errors"], system["reference_words"]) == (1, 5)


@pytest.mark.parametrize(
    ("writer", "nbest", "message"),
    [
        (trn_writer, NBestList("001 -3466", (Hypothesis("a"),)), "would be read as an id and a score"),
        (
            ctm_writer,
            NBestList(
                "f A", (Hypothesis("<alt>", {"words": [{"word": "<alt>", "start_s": 0, "duration_s": 1}]}),)
            ),
            "would be read as a tag of alternatives",
        ),
    ],
)
def test_rejects_what_would_be_read_as_something_else(tmp_path, writer, nbest, message):
    with pytest.raises(InvalidList, match=message), writer(tmp_path / "out") as write_list:
        write_list(nbest)


def test_a_text_that_begins_like_a_comment_is_read_back(tmp_path):
    lists = [NBestList("u1", (Hypothesis(";; a"),)), NBestList("u2", (Hypothesis("b"),))]
    write("trn", lists, tmp_path / "out")
    assert list(read_trn_lists(tmp_path / "out")) == lists

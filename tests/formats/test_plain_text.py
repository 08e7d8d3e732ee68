"""Text without markup: what its lines begin with, alone and with references, in commands that measure."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from rescorer.cli import main
from rescorer.errors import FormatError, InputError
from rescorer.formats.plain_text import Reading, classify, read_kaldi_text, read_paragraphs, read_sentences
from rescorer.formats.registry import choose, detect, detect_measured
from rescorer.types import Hypothesis, NBestList


def texts(lists) -> list:
    return [
        str(item) if isinstance(item, InputError) else (item.id, [text.text for text in item.hypotheses])
        for item in lists
    ]


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rescorer", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return (code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("lines", "reading"),
    [
        (["u1 to be", "u2", "u3 the sea"], Reading.IDS),
        (["1089-134686-0000 to be", "1089-134686-0001 the sea"], Reading.IDS),
        (["s_1 to be", "s_2 be"], Reading.IDS),
        (["1 to be", "2 the sea", "3"], Reading.IDS),
        (["0117 to be", "0023 the sea"], Reading.IDS),
        (["ann_hello to be", "bob_bye the sea"], Reading.IDS),
        (["a1 say b2", "b2 say a1"], Reading.IDS),
        (["u1 to be", "u2", ""], Reading.IDS),
        (["the sea", "the c"], Reading.WORDS),
        (["to be", "", "the sea"], Reading.WORDS),
        (["to be or", "or not"], Reading.WORDS),
        (["u1 a", "u1 b", "u2 c"], Reading.WORDS),
        (["to be", "the sea"], Reading.UNCLEAR),
        (["1 4 7", "3 5 8"], Reading.UNCLEAR),
        (["e4 e5", "d4 d5"], Reading.UNCLEAR),
        (["mp3 player"], Reading.UNCLEAR),
        (["3.5 percent", "10 people"], Reading.UNCLEAR),
        ([], Reading.WORDS),
    ],
)
def test_judges_whether_lines_begin_with_ids(lines, reading):
    assert classify(lines) is reading


def test_readers_keep_empty_sentences_and_separate_lists():
    data = "\ufeffto be\r\n\r\n\r\nthe sea\r\nthe c".encode()
    assert texts(read_sentences(io.BytesIO(data))) == [
        ("1", ["to be"]), ("2", [""]), ("3", [""]), ("4", ["the sea"]), ("5", ["the c"])
    ]  # fmt: skip
    assert texts(read_paragraphs(io.BytesIO(data))) == [("1", ["to be"]), ("2", ["the sea", "the c"])]
    kaldi = read_kaldi_text(io.BytesIO(b"u1 to  be\nu2\n\nu1 x\n\xff\n"))
    one, two, duplicate, broken = texts(kaldi)
    assert (one, two) == (("u1", ["to be"]), ("u2", [""]))
    assert "duplicate id" in duplicate
    assert "<stream>:5: not UTF-8" in broken


def test_writers(tmp_path):
    nbest = NBestList("u1", (Hypothesis("to be"), Hypothesis("")))
    for name, expected in (("lines", "to be\n"), ("kaldi-text", "u1 to be\n")):
        with choose(name).writer(tmp_path / name) as write:
            write(nbest)
        assert (tmp_path / name).read_text() == expected
    with choose("paragraphs").writer(tmp_path / "p") as write:
        with pytest.raises(InputError, match="a blank line would end the list"):
            write(nbest)
        write(NBestList("u1", (Hypothesis("to be"), Hypothesis("two be"))))
        write(NBestList("u2", (Hypothesis("or"),)))
    assert texts(choose("paragraphs").read(tmp_path / "p")) == [("1", ["to be", "two be"]), ("2", ["or"])]


HYPOTHESES = "the c was calm\n\nit was dark\nthe end\n"
REFERENCES = "the sea was calm\nyes\nit was dark\nthe end\n"


@pytest.mark.parametrize(
    ("hypotheses", "references", "expected"),
    [
        (HYPOTHESES, REFERENCES, "lines"),
        ("u1 to be\nu2 the c\n", "u2 the sea\nu1 to be\n", "kaldi-text"),
        ("ann hi\n", "ann hi\nbob-2 yes\ncy3 no\n", None),
        ("a1 hi\n", "a1 hi\nb2 yes\nc3 no\n", "kaldi-text"),
        ("to be\nthe sea\n", "to be\nthe c\n", None),
        ("two be\nthe sea\n", "to be\nthe c\n", "lines"),
        ("u1 a\nu1 b\nu2 c\n", "u1 a\nu2 c\n", None),
        ("two be\nto be\n\nor knot\nor not\n\n", "to be\nor not\n", "paragraphs"),
        ("two be\n\nor knot\n", "to be\nyes\nor not\n", "lines"),
        ("two be\n\nor knot\nyes\n", "to be\nor not\nno\n", "lines"),
    ],
)
def test_the_references_tell_what_plain_text_is(tmp_path, hypotheses, references, expected):
    hyp, ref = tmp_path / "hyp", tmp_path / "ref"
    hyp.write_text(hypotheses)
    ref.write_text(references)
    if expected is not None:
        assert detect_measured(hyp, ref) == expected
        return
    with pytest.raises(FormatError, match=r"plain text.*--format") as raised:
        detect_measured(hyp, ref)
    assert "mikolov" in str(raised.value) or "--format lines" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "is_lists"),
    [
        ("two be\nto be\n\nor not\nor knot\n", True),
        ("\n\ntwo be\nto be\n \nyes\n\nor not\nor knot\n\n", True),
        ("two be\nto be\n", False),  # a single group may be sentences
        ("the sea was calm and\nthe wind was\n\nold men came\nfrom afar\n", False),
        ("a b\na c\n\nd e\nd f\n\ng\n\nh\n\ni\n", False),
    ],
)
def test_groups_of_similar_lines_are_lists(tmp_path, text, is_lists):
    (tmp_path / "t").write_text(text)
    if is_lists:
        assert detect(tmp_path / "t") == ("paragraphs", "blank lines between groups of similar lines")
        return
    with pytest.raises(FormatError, match="if blank lines separate n-best lists"):
        detect(tmp_path / "t")


def test_ids_of_references_tell_ids_from_words(tmp_path):
    (tmp_path / "hyp").write_text("ann hi\nbob\n")
    (tmp_path / "ref.trn").write_text("hi (ann)\nyes (bob)\nno (cy)\n")
    assert detect_measured(tmp_path / "hyp", tmp_path / "ref.trn") == "kaldi-text"
    (tmp_path / "hyp").write_text("ann hi\ndan\n")
    with pytest.raises(FormatError, match="no known format"):
        detect_measured(tmp_path / "hyp", tmp_path / "ref.trn")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("f1 1 0.0 0.1 the\nf1 1 0.2\nf2 1 0.0 0.1 c\nf3 1 0.1 0.1 d\n", "ctm"),
        ("f1 1 a 0.0 1.5 the sea\nf2 1 a\nf3 1 b 1.0 2.5 was\n", "stm"),
        ("u1 hello (laughs)\nu2 so (laughs)\nu3 yes\n", "kaldi-text"),
    ],
)
def test_a_damaged_line_does_not_turn_columns_into_ids_and_words(tmp_path, content, expected):
    path, reference = tmp_path / "file", tmp_path / "ref"
    path.write_text(content)
    reference.write_text("u1 the sea\nu2 the c\n")
    assert detect(path)[0] == expected
    assert detect_measured(path, reference) == expected


@pytest.mark.parametrize(
    "content",
    [
        "u1 -12.5 the sea\nu2 -3.5 yes\n",
        "u1 0.95 the sea\nu2 1e-3 yes\n",
        "u1 the sea (-12.5)\nu2 yes (-3.5)\n",
        "u1 the sea -12.5\nu2 yes -3\n",
        "u1,the sea\nu2,yes\n",
        "u1|the sea\nu2|yes\n",
        "1st street\n2nd street\n",
    ],
)
def test_scores_and_columns_are_no_words_of_an_id(tmp_path, content):
    path, reference = tmp_path / "hyp", tmp_path / "ref"
    path.write_text(content)
    with pytest.raises(FormatError, match="no known format") as raised:
        detect(path)
    if "," in content or "|" in content:
        assert "separates columns, give --format table:id=1,text=2" in str(raised.value)
    if "-12.5 the" in content:
        assert "with tabs for --format table:id=1,score=2,text=3" in str(raised.value)
        reference.write_text("u1 the sea\nu2 no\n")
        with pytest.raises(FormatError, match=r"numbers like scores: .* or give --format kaldi-text"):
            detect_measured(path, reference)
        reference.write_text(content)
        assert detect_measured(path, reference) == "kaldi-text"


def test_plain_text_alone_is_read_only_if_ids_are_plain(tmp_path):
    (tmp_path / "ids").write_text("u1 to be\nu2 the sea\n")
    (tmp_path / "words").write_text("to be\nthe sea\n")
    assert detect(tmp_path / "ids")[0] == "kaldi-text"
    for other in ("u1-1 300.0\nu1-2 -301\n", "u1 /data/u1.wav\nu2 /data/u2.wav\n"):
        (tmp_path / "other").write_text(other)
        with pytest.raises(FormatError, match="no known format"):
            detect(tmp_path / "other")
    with pytest.raises(FormatError, match=r"if it is plain text, give --format lines .* --format kaldi-text"):
        detect(tmp_path / "words")


def test_evaluates_sentences_in_order_and_texts_by_id(run, tmp_path):
    def evaluate(*arguments):
        code, out, err = run("evaluate", *arguments, "--json")
        report = json.loads(out)["systems"][0] if out else {}
        return code, report.get("errors"), report.get("reference_words"), err

    hyp, ref = tmp_path / "hyp.txt", tmp_path / "ref.txt"
    ref.write_text(REFERENCES)
    hyp.write_text(HYPOTHESES)
    assert evaluate(hyp, "--reference", ref)[:3] == (0, 2, 10)
    hyp.write_text(HYPOTHESES + "\n\n")
    assert evaluate(hyp, "--reference", ref)[:3] == (0, 2, 10)
    hyp.write_text(HYPOTHESES + "more\n")
    code, _, _, err = evaluate(hyp, "--reference", ref)
    assert (code, "ref.txt: has 4 lines, but" in err, "has 5 lists" in err) == (3, True, True)
    hyp.write_text("to be\nthe sea\n")
    ref.write_text("to be\nthe c\n")
    code, _, _, err = evaluate(hyp, "--reference", ref)
    assert (code, "ids or words?" in err) == (3, True)
    assert evaluate(hyp, "--reference", ref, "--format", "lines")[:3] == (0, 1, 4)
    assert evaluate(hyp, "--reference", ref, "--format", "kaldi-text")[:3] == (0, 1, 2)
    (tmp_path / "lists.txt").write_text("to bee\nto be\n\nthe sea\n")
    lists = evaluate(tmp_path / "lists.txt", "--reference", ref, "--format", "paragraphs")
    assert lists[:3] == (0, 2, 4)
    (tmp_path / "beams.tsv").write_text("to bee\t-1\nto be\t-2\nthe c\t-1\nthe sea\t-2\n")
    assert evaluate(tmp_path / "beams.tsv", "--reference", ref, "--format", "nemo:beam=2")[:3] == (0, 1, 4)
    hyp.write_text("u1 to be\nu2 the sea\n")
    ref.write_text("u2 the c\nu1 to be\n")
    assert evaluate(hyp, "--reference", ref) == (0, 1, 4, "")
    code, out, _ = run("inspect", hyp, "--json")
    assert json.loads(out)["files"][0]["lists"] == 2
    code, out, _ = run("convert", hyp, "-")
    assert '{"id":"u1","hypotheses":[{"text":"to be"}]}' in out


def test_compares_systems_of_plain_sentences(run, tmp_path):
    for name, text in (("a", HYPOTHESES), ("b", REFERENCES), ("ref", REFERENCES)):
        Path(tmp_path / name).write_text(text)
    code, out, _ = run("compare", tmp_path / "a", tmp_path / "b", "--reference", tmp_path / "ref", "--json")
    assert code == 0
    assert [system["errors"] for system in json.loads(out)["systems"]] == [2, 0]

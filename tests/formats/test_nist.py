"""NIST files: transcripts, words with times, segments, and the assignment of words to segments."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.evaluation.list_errors import align_by_time
from rescorer.formats.io.folders import read_sample
from rescorer.formats.nist import (
    Segment,
    TimedWord,
    ctm_writer,
    looks_like_ctm,
    looks_like_trn,
    parse_trn,
    read_ctm_lists,
    read_references,
    read_trn_lists,
    trn_writer,
)
from rescorer.types import Hypothesis, NBestList
from tests.support.nist_words import read_ctm, read_stm

CTM = """\
;; made by hand
call 1 0.10 0.30 hello 0.91
 call 1 0.55 .2 there NA

call 2 3 0.5 bye
"""
STM = """\
;; LABEL "o" "overall" ""
call 1 ann 0.0 2.0 <o,f0> { hello / hi } there
call 1 ann 2.0 4.5
call 2 bob 0 5.0 IGNORE_TIME_SEGMENT_IN_SCORING
"""


def open_text(text: str) -> io.BytesIO:
    return io.BytesIO(text.encode())


def test_reads_ctm():
    assert list(read_ctm(open_text(CTM))) == [
        TimedWord("call", "1", 0.1, 0.3, "hello", 0.91),
        TimedWord("call", "1", 0.55, 0.2, "there"),
        TimedWord("call", "2", 3.0, 0.5, "bye"),
    ]


def test_reads_stm():
    assert list(read_stm(open_text(STM))) == [
        Segment("call", "1", "ann", 0.0, 2.0, "{ hello / hi } there", "<o,f0>"),
        Segment("call", "1", "ann", 2.0, 4.5, ""),
        Segment("call", "2", "bob", 0.0, 5.0, "IGNORE_TIME_SEGMENT_IN_SCORING"),
    ]


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("a b (s1-u1)", ("s1-u1", "a b")),
        ("(uh) { a / @ } (u 1) ", ("u 1", "(uh) { a / @ }")),
        ("(u1)", ("u1", "")),
        ("a b", None),
        ("a ( )", None),
        ("a (u1) b", None),
    ],
)
def test_parses_trn_lines(line, entry):
    assert parse_trn(line) == entry


def test_skips_comments():
    assert read_references(open_text(";; a comment\na b (u1)\n;; c (u2)\n")) == {"u1": "a b"}


@pytest.mark.parametrize(
    ("read", "line", "message"),
    [
        (read_ctm, "call 1 0.1 0.2", "<stream>:2: expected file, channel, start, .*got 4 columns"),
        (read_ctm, "call 1 0.1 0.2 a 1 x y", "got 8 columns"),
        (read_ctm, "call 1 now 0.2 a", "<stream>:2: start: expected a number, got 'now'"),
        (read_ctm, "call 1 0.1 nan a", "<stream>:2: duration: expected a number"),
        (read_ctm, "call 1 -0.1 0.2 a", "<stream>:2: start: expected a non-negative number of seconds"),
        (read_ctm, "call 1 0.1 0.2 a high", "<stream>:2: confidence: expected a number"),
        (read_ctm, "call 1 * * <ALT_BEGIN>", "<stream>:2: word: alternatives in a ctm are not supported"),
        (read_stm, "call 1 ann 0.1", "<stream>:2: expected file, channel, speaker, .*got 4 columns"),
        (read_stm, "call 1 ann 0 1_0 a", "<stream>:2: end: expected a number, got '1_0'"),
        (read_stm, "call 1 ann 2 1 a", "<stream>:2: end: 1 is before the start, 2"),
    ],
)
def test_rejects_invalid_lines_with_their_place(read, line, message):
    with pytest.raises(FormatError, match=message):
        list(read(open_text(f";; first\n{line}\n")))


def test_rejects_lines_that_are_not_utf8():
    with pytest.raises(FormatError, match=r"<stream>:1: not UTF-8"):
        list(read_ctm(io.BytesIO(b"\xff")))


def test_reads_one_list_per_trn_line():
    outcomes = list(read_trn_lists(io.BytesIO(b";; c\na b (u1)\nc\n\xff\n(u2)\n")))
    assert outcomes[0] == NBestList("u1", (Hypothesis("a b"),))
    assert [str(error) for error in outcomes[1:3]] == [
        "<stream>:3: expected words (id)",
        "<stream>:4: not UTF-8: invalid start byte at byte 1",
    ]
    assert outcomes[3] == NBestList("u2", (Hypothesis(""),))


def test_reads_one_list_per_ctm_channel():
    first, second, error = read_ctm_lists(open_text(CTM + "dial 1 0 0 x\ncall\n"))
    assert (first.id, first.hypotheses[0].text) == ("call 1", "hello there")
    assert first.hypotheses[0].fields["words"][0] == {
        "word": "hello", "start_s": 0.1, "duration_s": 0.3, "confidence": 0.91
    }  # fmt: skip
    assert second.id == "call 2"
    assert isinstance(error, FormatError)


@pytest.mark.parametrize(
    ("text", "trn", "ctm"),
    [
        (CTM, False, True),
        (";; c\na (u1)\n(u2)\n", True, False),
        ("-1.5 -2.5 2 a b\n", False, False),
        ("1.5 2.5 2 3 4\n", False, False),
        ("a b\n", False, False),
        (";; c\n", False, False),
    ],
)
def test_detects_format_from_lines(tmp_path, text, trn, ctm):
    (tmp_path / "a").write_text(text)
    sample = read_sample(tmp_path / "a")
    assert (bool(looks_like_trn(sample)), bool(looks_like_ctm(sample))) == (trn, ctm)


NAMES = st.text("ab1-_.é", min_size=1, max_size=4)
NUMBERS = st.floats(0, 1e6, allow_nan=False)
TIMED = st.builds(
    lambda word, start, duration, confidence: (
        {"word": word, "start_s": start, "duration_s": duration}
        | ({} if confidence is None else {"confidence": confidence})
    ),
    NAMES,
    NUMBERS,
    NUMBERS,
    st.none() | st.floats(0, 1),
)


@given(st.dictionaries(st.tuples(NAMES, NAMES), st.lists(TIMED, min_size=1, max_size=4), max_size=3))
def test_ctm_reads_back_what_it_wrote(tmp_path_factory, channels):
    lists = [
        NBestList(" ".join(name), (Hypothesis(" ".join(word["word"] for word in words), {"words": words}),))
        for name, words in channels.items()
    ]
    path = tmp_path_factory.mktemp("ctm") / "a.ctm.gz"
    with ctm_writer(path) as write:
        for nbest in lists:
            write(nbest)
    assert list(read_ctm_lists(path)) == lists


@given(
    st.dictionaries(
        st.text("ab -1é", min_size=1).map(str.strip).filter(bool), st.lists(NAMES | st.just("(a)"))
    )
)
def test_trn_reads_back_what_it_wrote(tmp_path_factory, texts):
    lists = [NBestList(name, (Hypothesis(" ".join(words)),)) for name, words in texts.items()]
    path = tmp_path_factory.mktemp("trn") / "a"
    with trn_writer(path) as write:
        for nbest in lists:
            write(nbest)
    assert list(read_trn_lists(path)) == lists
    # a negative number in parentheses may be a score
    assert bool(looks_like_trn(read_sample(path))) == any(not re.fullmatch("-1+", name) for name in texts)


@pytest.mark.parametrize(
    ("writer", "list_id", "fields", "message"),
    [
        (trn_writer, "u(1)", {}, "id: expected a non-empty id without parentheses"),
        (trn_writer, " ", {}, "id: expected a non-empty id without"),
        (ctm_writer, "a b c", {}, "id: expected the name of a file"),
        (ctm_writer, "a", {}, "hypothesis 0, words: expected the words with their times"),
        (ctm_writer, "a", {"words": [3]}, r"words\[0\].word: expected a word"),
        (ctm_writer, "a", {"words": [{"word": "x y", "start_s": 0, "duration_s": 0}]}, "expected a word"),
        (
            ctm_writer,
            "a",
            {"words": [{"word": "x", "start_s": 0}]},
            r"words\[0\]: expected numbers: start_s, duration",
        ),
        (
            ctm_writer,
            "a",
            {"words": [{"word": "x", "start_s": 0, "duration_s": True}]},
            "expected numbers: start_s",
        ),
        (
            ctm_writer,
            "a",
            {"words": [{"word": "x", "start_s": 0, "duration_s": -0.1}]},
            r"words\[0\].duration_s: expected a non-negative number of seconds, got -0.1",
        ),
    ],
)
def test_rejects_lists_that_cannot_be_written(tmp_path, writer, list_id, fields, message):
    with pytest.raises(InvalidList, match=message), writer(tmp_path / "out") as write:
        write(NBestList(list_id, (Hypothesis("x", fields),)))


def test_empty_text_needs_no_times(tmp_path):
    with ctm_writer(tmp_path / "a.ctm") as write:
        write(NBestList("u1", (Hypothesis(" "),)))
    assert (tmp_path / "a.ctm").read_text() == ""


LINES = st.lists(
    st.lists(
        st.sampled_from(["f", "1", "0.5", "-1", "nan", "1e999", "<o>", "(u)", "(", ";;", "\t", "\0", "é"])
    )
    .map(" ".join)
    .map(str.encode)
    | st.binary(max_size=12)
).map(b"\n".join)


@given(LINES)
def test_any_bytes_give_results_or_errors_with_their_place(data):
    for read in (read_ctm, read_stm, read_references):
        messages = []
        try:
            list(read(io.BytesIO(data)))
        except FormatError as error:
            messages.append(str(error))
        assert all(message.startswith("<stream>:") for message in messages)
    for read in (read_trn_lists, read_ctm_lists):
        for outcome in read(io.BytesIO(data)):
            assert isinstance(outcome, NBestList) or str(outcome).startswith("<stream>:")


def build_words(*middles_s: float) -> list[TimedWord]:
    return [TimedWord("f", "1", middle - 0.1, 0.2, f"w{middle:g}") for middle in middles_s]


def test_assigns_words_to_segments_by_their_middle():
    segments = [
        Segment("f", "1", "ann", 0, 1, "a"),
        Segment("f", "1", "bob", 1, 2, "ignore_time_segment_in_scoring"),
        Segment("f", "1", "ann", 3, 4, "b"),
        Segment("f", "2", "bob", 0, 9, "c"),
    ]
    lists = align_by_time(build_words(0.5, 0.99, 1, 1.5, 2.5, 3.5, 8), segments)
    assert [(nbest.id, nbest.group, nbest.reference, nbest.hypotheses[0].text) for nbest in lists] == [
        ("ann-000", "ann", "a", "w0.5 w0.99"),
        ("ann-001", "ann", "b", "w2.5 w3.5 w8"),
        ("bob-000", "bob", "c", ""),
    ]


def test_rejects_words_without_a_reference():
    with pytest.raises(InputError, match="words of file 'f', channel '1', have no reference segments; add"):
        align_by_time(build_words(1), [Segment("f", "2", "ann", 0, 1, "a")])

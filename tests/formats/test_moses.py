"""Moses' n-best lists of translations: features, totals, numbers of sentences, and damaged lines."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.moses import moses_writer, read_moses
from rescorer.formats.registry import detect
from rescorer.types import Hypothesis, NBestList
from tests.formats.test_text_beams import encode_variants, round_trip
from tests.support.list_strategies import nbest_lists

MOSES = (
    "0 ||| the house ||| LM0= -12.5 TM0= -1.5 -2.25 W0= -2 pp_a~b= 1 ||| -7.25 ||| 0-0 1-1\n"
    "0 ||| the home ||| LM0= -14 TM0= -1.25 -2.5 W0= -2 ||| -8.5 ||| 0-0 1-1\n"
    "1 |||  |||  ||| -1e-3\n"
    "4 ||| a||b said ||| lm: -3 d: 0 -1 w=-4 ||| 2\n"
)


def read(text: str | bytes) -> list:
    return list(read_moses(io.BytesIO(text.encode() if isinstance(text, str) else text)))


def test_features_become_streams_and_lists_have_the_numbers_of_their_lines():
    first, second, third = lists = read(MOSES)
    alignment = {"alignment": "0-0 1-1"}
    assert first == NBestList(
        "1",
        (Hypothesis("the house", alignment), Hypothesis("the home", alignment)),
        {
            "LM0": (-12.5, -14.0),
            "TM0.0": (-1.5, -1.25),
            "TM0.1": (-2.25, -2.5),
            "W0": (-2.0, -2.0),
            "pp_a~b": (1.0, 0.0),  # decoders leave out what is 0
            "first_pass": (-7.25, -8.5),
        },
    )
    assert second == NBestList("2", (Hypothesis(""),), {"first_pass": (-0.001,)})
    assert (third.id, third.hypotheses[0].text) == ("5", "a||b said")
    assert third.streams == {"lm": (-3,), "d.0": (0,), "d.1": (-1,), "w": (-4,), "first_pass": (2,)}
    assert all(read(variant) == lists for variant in encode_variants(MOSES))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7 ||| a ||| LM= -1", "<stream>:2: 3 parts between |||; expected number ||| text |||"),
        ("7 ||| a ||| b ||| LM= -1 ||| -1 ||| 0-0", "<stream>:2: 6 parts"),
        ("7 8 ||| a ||| LM= -1 ||| -1", "<stream>:2: '7 8' is not the number of a sentence"),
        ("7 ||| a ||| LM= -1 ||| -1 -2", "<stream>:2: '-1 -2' is not a total"),
        ("7 ||| a ||| -1 ||| -1", "<stream>:2: features: '-1': expected NAME= and numbers"),
        ("7 ||| a ||| LM= TM= -1 ||| -1", "<stream>:2: features: 'LM' has no value"),
        ("7 ||| a ||| LM= -1 LM= -2 ||| -1", "<stream>:2: features: 'LM=': a second feature of this name"),
        ("7 ||| a ||| LM.0= -1 LM= -1 -2 ||| -1", "features: a second value for 'LM.0'"),
        ("7 ||| a ||| LM=x ||| -1", "<stream>:2, list '8', hypothesis 0, LM: 'x' is not a number"),
        ("7 ||| a ||| LM= nan ||| -1", "<stream>:2, list '8', hypothesis 0, LM: the score is nan"),
        ("7 ||| a ||| LM= -1 ||| much", "'much' is not a number"),
        ("0 ||| a ||| LM= -1 ||| -1\n1 ||| b ||| LM= -1 ||| -1\n0 ||| c ||| LM= -1 ||| -1", "duplicate id"),
    ],
)
def test_damaged_sentences_are_errors_and_others_are_read(line, message):
    outcomes = read(f"6 ||| a ||| LM= -1 ||| -1\n{line}\n9 ||| a ||| LM= -1 ||| -1\n")
    errors = [str(outcome) for outcome in outcomes if isinstance(outcome, InputError)]
    assert len(errors) == 1
    assert message in errors[0]
    assert [nbest.id for nbest in outcomes if isinstance(nbest, NBestList)][-1] == "10"


NUMBERED = st.lists(st.integers(1, 10**6), min_size=1, max_size=3, unique=True).map(sorted)


NAMES = ("lm", "TM", "TM.0", "TM.1", "TM.2", "x.0", "x.01", "y.1", ".", ".0", ".1", "first_pass.0")


@given(NUMBERED, st.lists(st.sampled_from(NAMES), unique=True), st.data())
def test_round_trip(numbers, names, data):
    lists = []
    for number in numbers:
        nbest = data.draw(nbest_lists([*names, "first_pass"], ids=st.just(str(number))))
        lists.append(nbest)
    found = round_trip(lists, moses_writer, read_moses)
    assert [(one.id, one.hypotheses, dict(one.streams)) for one in found] == [
        (one.id, one.hypotheses, dict(one.streams)) for one in lists
    ]


def test_writes_what_moses_writes_and_counts_other_ids(tmp_path):
    with moses_writer(tmp_path / "out") as write:
        for nbest in read(MOSES.replace(" pp_a~b= 1", ""))[:2]:
            write(nbest)
        write(NBestList("u7", (Hypothesis("a"),), {"first_pass": (-1.0,)}))
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[0] == ("0 ||| the house ||| LM0= -12.5 TM0= -1.5 -2.25 W0= -2.0 ||| -7.25 ||| 0-0 1-1")
    assert lines[2:] == ["1 |||  |||  ||| -0.001", "2 ||| a |||  ||| -1.0"]
    assert detect(tmp_path / "out")[0] == "moses"


@pytest.mark.parametrize(
    ("nbest", "message"),
    [
        (
            NBestList("1", (Hypothesis("a ||| b"),), {"first_pass": (-1.0,)}),
            "the word ||| would end the text",
        ),
        (NBestList("1", (Hypothesis("a"),), {"first_pass": (-1.0,), "a b": (1.0,)}), "rename this stream"),
        (NBestList("1", (Hypothesis("a"),), {"first_pass": (-1.0,), "a:": (1.0,)}), "rename this stream"),
        (NBestList("1", (Hypothesis("a"),), {"lm": (-1.0,)}), "first_pass: the format needs this stream"),
        (NBestList("0", (Hypothesis("a"),), {"first_pass": (-1.0,)}), "expected 1 or more"),
    ],
)
def test_rejects_what_the_format_cannot_hold(tmp_path, nbest, message):
    with moses_writer(tmp_path / "out") as write, pytest.raises(InvalidList, match=r".") as raised:
        write(nbest)
    assert message in str(raised.value)


def test_a_total_for_lists_without_one(tmp_path):
    with moses_writer(tmp_path / "out", missing=0.0) as write:
        write(NBestList("1", (Hypothesis("a"),), {"lm": (-1.0,)}))
    assert (tmp_path / "out").read_text() == "0 ||| a ||| lm= -1.0 ||| 0.0\n"


def test_a_line_that_is_no_text_damages_the_sentence_before_it():
    error, last = read(b"0 ||| a ||| x= 1 ||| 1\n1 ||| \xff ||| x= 1 ||| 1\n2 ||| a ||| x= 1 ||| 1\n")
    assert isinstance(error, FormatError)
    assert last.id == "3"

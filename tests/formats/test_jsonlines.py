"""The project's JSON lines: a round trip, foreign names, and errors that say where."""

from __future__ import annotations

import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.field_map import FieldMap, StreamField, parse_field_map
from rescorer.formats.nbest.jsonlines import group_by_pattern, nbest_line, read_lists, rescored_line
from rescorer.formats.score_units import Units
from rescorer.types import Hypothesis, NBestList, RescoredHypothesis, RescoredList, Weights

FLAT = parse_field_map(["hypotheses=hyps,reference=ref"], ["acoustic=am"])


def read(*records: object, names: FieldMap = FieldMap(), group_of=None) -> list[NBestList | InputError]:  # noqa: B008
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    return list(read_lists(io.BytesIO("\n".join(lines).encode()), names, group_of))


def one(record: object, **options) -> NBestList:
    (outcome,) = read(record, **options)
    assert isinstance(outcome, NBestList), outcome
    return outcome


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text("abcxyz", min_size=1, max_size=4)
OWN = {"id", "hypotheses", "context", "reference", "group", "text", "scores"}
CLIENT = st.dictionaries(
    WORDS.filter(lambda name: name not in OWN | {"format", "client"}),
    st.none() | st.booleans() | st.integers() | WORDS | st.lists(st.floats(-9, 9), max_size=3),
    max_size=3,
)


@st.composite
def nbest_lists(draw) -> NBestList:
    hypotheses = draw(st.lists(st.builds(Hypothesis, WORDS, CLIENT), min_size=1, max_size=4))
    values = st.lists(
        st.floats(allow_nan=False, allow_infinity=False), min_size=len(hypotheses), max_size=len(hypotheses)
    )
    return NBestList(
        id=draw(WORDS.filter(bool)),
        hypotheses=tuple(hypotheses),
        streams=draw(st.dictionaries(NAMES, values.map(tuple), max_size=3)),
        context=draw(WORDS),
        reference=draw(st.none() | WORDS),
        group=draw(WORDS),
        fields=draw(CLIENT),
    )


@given(st.lists(nbest_lists(), max_size=3))
def test_what_is_written_is_read_back_the_same(lists):
    assert read(*map(nbest_line, lists)) == lists


def test_header_declares_base_and_sign_by_stream():
    header = {
        "format": "rescorer-nbest",
        "version": 1,
        "streams": {"acoustic": {"base": "10", "sign": "cost"}},
    }
    (nbest,) = read(
        header, {"id": "u1", "hypotheses": [{"text": "a", "scores": {"acoustic": 3, "lm": -1.5}}]}
    )
    assert nbest.streams == {"acoustic": (pytest.approx(-3 * math.log(10)),), "lm": (-1.5,)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "kaldi"}, "format: 'kaldi' is not known; expected 'rescorer-nbest'"),
        ({"version": 2}, "version: 2 is not known; expected 1"),
        ({"version": True}, "version: True is not known"),
        ({"encoding": "x"}, r"unknown header keys \['encoding'\]"),
        ({"streams": ["acoustic"]}, "streams: expected an object, not an array"),
        ({"streams": {"am": {"base": "7"}}}, r'streams\["am"\]: base is \'7\'; expected one of e, 2'),
        ({"streams": {"am": {"sign": "up"}}}, "sign is 'up'; expected one of log_prob, cost"),
        ({"streams": {"am": {"scale": 2}}}, 'expected an object with "base" and "sign"'),
        ({"streams": {"acoustic": {}}}, "by the header and by the options too"),
    ],
)
def test_a_header_that_is_not_understood_stops_the_file(change, said):
    with pytest.raises(FormatError, match=said) as caught:
        read({"format": "rescorer-nbest", "version": 1} | change, names=FLAT)
    assert caught.value.line == 1


def test_a_client_field_called_format_is_no_header():
    assert one({"id": "u1", "hypotheses": ["a"], "format": "x"}).fields == {"format": "x"}


def test_options_name_foreign_fields():
    names = parse_field_map(
        ["hypotheses=hyps,text=text_norm", "reference=ref_norm"], ["acoustic=am_log2:2", "lm=g:10:cost"]
    )
    nbest = one(
        {
            "id": "dev/easy 1",
            "ref_norm": "a b",
            "ref": "{ uh / @ } a b",
            "hyps": [{"text": "A b", "text_norm": "a b", "am_log2": -8, "g": 2.0, "n": [1]}],
        },
        names=names,
    )
    assert nbest.hypotheses == (Hypothesis("a b", {"text": "A b", "n": [1]}),)
    assert nbest.streams == {"acoustic": (-8 * math.log(2),), "lm": (pytest.approx(-2 * math.log(10)),)}
    assert (nbest.reference, nbest.fields) == ("a b", {"ref": "{ uh / @ } a b"})


def test_a_stream_option_also_reaches_into_the_object_of_scores():
    names = parse_field_map([], ["acoustic=am:2"])
    nbest = one({"id": "u1", "hypotheses": [{"text": "a", "scores": {"am": -1, "lm": -2}}]}, names=names)
    assert nbest.streams == {"acoustic": (-math.log(2),), "lm": (-2.0,)}


def test_scores_can_be_a_client_field():
    names = parse_field_map(["scores="])
    nbest = one({"id": "u1", "hypotheses": [{"text": "a", "scores": [1, 2]}]}, names=names)
    assert nbest.hypotheses[0].fields == {"scores": [1, 2]}


def test_plain_strings_are_hypotheses_and_empty_text_is_one_too():
    assert one({"id": "u1", "hypotheses": ["a b", ""]}).hypotheses == (Hypothesis("a b"), Hypothesis(""))


def test_scores_that_are_null_everywhere_are_absent():
    record = {"id": "u1", "hypotheses": [{"text": "a", "scores": {"lm": None}}, {"text": "b"}]}
    assert one(record).streams == {}


def test_without_an_id_field_the_line_number_is_the_id():
    outcomes = read("", {"hypotheses": ["a"]}, {"hypotheses": ["b"]}, names=FieldMap(id=""))
    assert [nbest.id for nbest in outcomes] == ["2", "3"]


def test_groups_come_from_the_list_or_else_from_its_id():
    records = [{"id": id_, "hypotheses": ["a"]} for id_ in ("1688-1", "x")]
    records.append({"id": "1-2", "hypotheses": ["a"], "group": "own"})
    outcomes = read(*records, group_of=group_by_pattern(r"^(\d+)-"))
    assert [nbest.group for nbest in outcomes] == ["1688", "", "own"]
    for pattern, said in (("(", "no regular expression"), (r"\d+", "has 0 groups; expected exactly one")):
        with pytest.raises(ConfigError, match=said):
            group_by_pattern(pattern)


def scored(*values: object) -> dict:
    return {"id": "u1", "hypotheses": [{"text": "a", "scores": {"am": value}} for value in values]}


@pytest.mark.parametrize(
    ("record", "kind", "said"),
    [
        ("[1]", FormatError, "<stream>:2: expected a JSON object, not an array"),
        ("{'id'}", FormatError, "<stream>:2: not JSON: Expecting property name"),
        ('{"id": ' + "9" * 5000 + "}", FormatError, "not readable JSON"),
        ('{"id": ' + "[" * 200_000, FormatError, "not readable JSON"),
        (r'{"id": "u1", "hypotheses": ["\ud800"]}', FormatError, "half a surrogate pair"),
        ({"hypotheses": ["a"]}, InvalidList, "id: expected a non-empty string, not nothing"),
        ({"id": 7.5, "hypotheses": ["a"]}, InvalidList, "id: expected a non-empty string, not a number"),
        ({"id": "u1"}, InvalidList, "hypotheses: no such field; .* where there is nothing else"),
        (
            {"id": "u1", "hyps": ["a"], "ref": ""},
            InvalidList,
            "--map hypotheses=FIELD, where there is hyps, ref",
        ),
        (
            {"id": "u1", "hypotheses": None},
            InvalidList,
            "hypotheses: expected a non-empty array, not nothing",
        ),
        ({"id": "u1", "hypotheses": []}, InvalidList, "non-empty array, not an empty array"),
        (
            {"id": "u1", "hypotheses": ["a", 3]},
            InvalidList,
            "hypothesis 1, hypotheses: expected an object or",
        ),
        ({"id": "u1", "hypotheses": [{}]}, InvalidList, "hypothesis 0, text: expected a string, not nothing"),
        (
            {"id": "u1", "hypotheses": ["a"], "context": 1},
            InvalidList,
            "context: expected a string, not a num",
        ),
        ({"id": "u1", "hypotheses": ["a"], "reference": []}, InvalidList, "reference: expected a string"),
        ({"id": "u1", "hypotheses": [{"text": "a", "scores": 1}]}, InvalidList, "scores: expected an object"),
        (scored(-1, None), InvalidList, r'hypothesis 1, scores\["am"\]: no score, though other'),
        (scored(math.nan), InvalidList, "the score is nan; expected a finite number"),
        (scored("-1"), InvalidList, "'-1' is not a number"),
    ],
)
def test_a_bad_line_is_an_outcome_with_its_place_and_the_next_line_is_read(record, kind, said):
    good, bad, after = read(
        {"id": "u0", "hypotheses": ["a"]}, record, {"id": "u0", "hypotheses": ["same id"]}
    )
    assert isinstance(good, NBestList)
    assert isinstance(after, NBestList)
    assert type(bad) is kind
    assert bad.line == 2
    assert "<stream>:2" in str(bad)
    with pytest.raises(kind, match=said):
        raise bad


def test_a_score_told_twice_is_refused():
    record = {"id": "u1", "hyps": [{"text": "a", "am": -1, "scores": {"acoustic": -2}}]}
    (fault,) = read(record, names=FLAT)
    assert 'scores["acoustic"]: has a score of its own, and one by the options too' in str(fault)


@pytest.mark.parametrize(
    ("maps", "streams", "said"),
    [
        (["hyps"], [], "expected NAME=FIELD, NAME one of id, hypotheses, text"),
        (["streams=x"], [], "expected NAME=FIELD"),
        (["text=a,text=b"], [], "text is given twice"),
        (["text="], [], "expected the name of a field"),
        (["reference=id"], [], "id cannot stand for two things"),
        ([], ["acoustic"], r"expected NAME=FIELD\[:BASE\[:SIGN\]\]"),
        ([], ["a=b:2:cost:x"], "expected NAME=FIELD"),
        ([], ["a=b:3"], "base is '3'; expected one of"),
        ([], ["a=b", "a=c"], "a is given twice"),
    ],
)
def test_options_that_make_no_sense_are_refused(maps, streams, said):
    with pytest.raises(ConfigError, match=said):
        parse_field_map(maps, streams)


def test_options_make_a_map():
    names = parse_field_map(["id=utt, group="], ["am=a:bytelog:cost"])
    assert names == FieldMap(id="utt", group="", streams={"am": StreamField("a", Units("bytelog", "cost"))})


def test_a_rescored_list_is_one_line_with_ranks_from_one_and_short_numbers():
    hypothesis = RescoredHypothesis(
        "b", 1, -1.23456789, -1e-9, {"acoustic": 0.1 + 0.2, "words": 1.0}, fields={"conf": 0.5, "total": "x"}
    )
    rescored = RescoredList(
        "u1",
        (hypothesis,),
        Weights("tuned"),
        "demo/3",
        "b ü",
        "s1",
        fields={"job": 7, "client": 1, "id": "y"},
    )
    assert json.loads(rescored_line(rescored)) == {
        "id": "u1",
        "model": "demo/3",
        "weights": {
            "name": "tuned",
            "streams": {},
            "lm": {"mixture": 1.0},
            "word": 0.0,
            "oov": 0.0,
            "mixture": {},
        },
        "hypotheses": [
            {
                "text": "b",
                "rank": 1,
                "original_rank": 2,
                "total": -1.234568,
                "log_posterior": 0.0,
                "components": {"acoustic": 0.3, "words": 1.0},
                "conf": 0.5,
                "client": {"total": "x"},
            }
        ],
        "reference": "b ü",
        "group": "s1",
        "job": 7,
        "client": {"client": 1, "id": "y"},
    }
    assert "ü" in rescored_line(rescored)
    assert "\n" not in rescored_line(rescored)


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "maps", "streams", "n_lists", "n_hypotheses"),
    [
        ("read-speech/moonshine-20best.jsonl.gz", "hypotheses=hyps,reference=ref", ["am"], 143, 1454),
        ("read-speech/moonshine-20best-cased.jsonl.gz", "hypotheses=hyps,reference=ref", ["am"], 143, 2855),
        (
            "read-speech/pocketsphinx-100best.jsonl.gz",
            "hypotheses=hyps,reference=ref",
            ["am", "lm"],
            143,
            14300,
        ),
        ("read-speech/pocketsphinx-native.jsonl.gz", "hypotheses=hyps,reference=ref", ["score"], 143, 14300),
        ("switchboard/scored-dev.jsonl", "hypotheses=hyps,text=text_norm", ["am_log2"], 80, 720),
        ("switchboard/rank-only-tenbest.jsonl", "hypotheses=hyps_norm", [], 1622, 16220),
        ("dstc2/rank-only-dev.jsonl", "hypotheses=hyps,reference=ref", [], 3560, 35243),
    ],
)
def test_real_files_are_read_whole(data_dir, file, maps, streams, n_lists, n_hypotheses):
    names = parse_field_map([maps], [f"{stream}={stream}" for stream in streams])
    outcomes = list(read_lists(data_dir / "nbest" / file, names))
    assert all(isinstance(each, NBestList) and list(each.streams) == streams for each in outcomes)
    assert (len(outcomes), sum(len(each.hypotheses) for each in outcomes)) == (n_lists, n_hypotheses)

"""JSON lines: round trips, other field names, and errors with their place."""

from __future__ import annotations

import io
import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.common import Units
from rescorer.formats.fields import FieldMap, StreamField, parse_field_map
from rescorer.formats.jsonlines import array_writer, compile_group_pattern, read_header, read_lists
from rescorer.formats.registry import detect
from rescorer.types import Hypothesis, NBestList
from tests.support.list_lines import read, read_one
from tests.support.list_strategies import nbest_lists, several

HEADER = {"format": "rescorer-nbest", "version": 1}
FLAT = parse_field_map(["hypotheses=hyps,reference=ref"], ["acoustic=am"])


def test_header_declares_base_and_sign_per_stream():
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
    ("change", "message"),
    [
        ({"format": "kaldi"}, "format: unknown format 'kaldi'; expected 'rescorer-nbest'"),
        ({"version": 2}, "version: unknown version 2; expected 1"),
        ({"version": True}, "version: unknown version True"),
        ({"encoding": "x"}, r"unknown header keys \['encoding'\]; expected format, version and streams"),
        ({"streams": ["acoustic"]}, "streams: expected an object, got an array"),
        ({"streams": {"am": {"base": "7"}}}, r'streams\["am"\]: base is \'7\'; expected one of e, 2'),
        ({"streams": {"am": {"sign": "up"}}}, "sign is 'up'; expected one of log_prob, cost"),
        ({"streams": {"am": {"scale": 2}}}, 'expected an object with no keys but "base" and "sign"'),
        ({"streams": {"acoustic": {}}}, "declared both in the header and by an option"),
    ],
)
def test_rejects_file_with_invalid_header(change, message):
    with pytest.raises(FormatError, match=message) as caught:
        read(HEADER | change, {"id": "u1", "hyps": ["a"]}, names=FLAT)
    assert caught.value.line == 1


def test_client_field_named_format_is_not_a_header():
    assert read_one({"id": "u1", "hypotheses": ["a"], "format": "x"}).fields == {"format": "x"}


def test_options_map_other_field_names():
    names = parse_field_map(
        ["hypotheses=hyps,text=text_norm", "reference=ref_norm"], ["acoustic=am_log2:2", "lm=g:10:cost"]
    )
    nbest = read_one(
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


def test_stream_option_also_finds_fields_inside_scores():
    names = parse_field_map([], ["acoustic=am:2"])
    nbest = read_one({"id": "u1", "hypotheses": [{"text": "a", "scores": {"am": -1, "lm": -2}}]}, names=names)
    assert nbest.streams == {"acoustic": (-math.log(2),), "lm": (-2.0,)}


VALUES = st.one_of(st.none(), st.floats(-9, 9), st.integers(-9, 9), st.sampled_from(["x", True, [1]]))


@given(
    st.lists(
        st.fixed_dictionaries(
            {}, optional={"text": st.sampled_from(["a", "a b", 1]), "am": VALUES, "lm": VALUES, "n": VALUES}
        ),
        min_size=1,
        max_size=4,
    )
)
def test_scores_in_fields_of_their_own_are_read_alike_beside_an_empty_object(items):
    """The readers of whole columns and of single hypotheses agree, also about errors."""
    names = parse_field_map([], ["acoustic=am:10", "lm=lm"])
    beside_an_object = [{**item, "scores": {}} for item in items]
    found, expected = (
        read({"id": "u", "hypotheses": rows}, names=names) for rows in (items, beside_an_object)
    )
    assert list(map(repr, found)) == list(map(repr, expected))


def test_scores_can_be_a_client_field():
    names = parse_field_map(["scores="])
    nbest = read_one({"id": "u1", "hypotheses": [{"text": "a", "scores": [1, 2]}]}, names=names)
    assert nbest.hypotheses[0].fields == {"scores": [1, 2]}


def test_hypotheses_can_be_plain_strings_even_empty():
    assert read_one({"id": "u1", "hypotheses": ["a b", ""]}).hypotheses == (Hypothesis("a b"), Hypothesis(""))


def test_stream_with_only_null_scores_is_absent():
    record = {"id": "u1", "hypotheses": [{"text": "a", "scores": {"lm": None}}, {"text": "b"}]}
    assert read_one(record).streams == {}


def test_line_number_is_the_id_without_an_id_field():
    outcomes = read("", {"hypotheses": ["a"]}, {"hypotheses": ["b"]}, names=FieldMap(id=""))
    assert [nbest.id for nbest in outcomes] == ["2", "3"]


def test_group_comes_from_its_field_or_else_from_the_id():
    records = [{"id": list_id, "hypotheses": ["a"]} for list_id in ("1688-1", "x")]
    records.append({"id": "1-2", "hypotheses": ["a"], "group": "own"})
    outcomes = read(*records, group_of=compile_group_pattern(r"^(\d+)-"))
    assert [nbest.group for nbest in outcomes] == ["1688", "", "own"]
    for pattern, message in (
        ("(", "is not a valid regular expression"),
        (r"\d+", "is neither a file nor a regular expression with one group"),
    ):
        with pytest.raises(ConfigError, match=message):
            compile_group_pattern(pattern)


def list_with_scores(*values: object) -> dict:
    return {"id": "u1", "hypotheses": [{"text": "a", "scores": {"am": value}} for value in values]}


@pytest.mark.parametrize(
    ("record", "error_type", "message"),
    [
        ("[1]", FormatError, r"<stream>:2: element 1: expected a JSON object, got a number"),
        ("3", FormatError, r"<stream>:2: expected a JSON object, got a number"),
        ("{'id'}", FormatError, "<stream>:2: not JSON: Expecting property name"),
        ('{"id": ' + "9" * 5000 + "}", FormatError, "cannot parse JSON"),
        ('{"id": ' + "[" * 200_000, FormatError, "cannot parse JSON"),
        (r'{"id": "u1", "hypotheses": ["\ud800"]}', FormatError, "unpaired surrogate"),
        ({"hypotheses": ["a"]}, InvalidList, "id: expected a non-empty string, got nothing$"),
        ({"id": 7.5, "hypotheses": ["a"]}, InvalidList, "id: expected a non-empty string, got a number"),
        ({"id": "u1"}, InvalidList, r"hypotheses: missing; .* \(other fields: none\)"),
        (
            {"id": "u1", "hyps": ["a"], "ref": ""},
            InvalidList,
            "missing; `--map hypotheses=hyps,reference=ref` reads 'hyps', a list of 1 text$",
        ),
        (
            {"id": "u1", "hypotheses": None},
            InvalidList,
            "hypotheses: expected a non-empty array, got nothing",
        ),
        ({"id": "u1", "hypotheses": []}, InvalidList, "non-empty array, got an empty array"),
        (
            {"id": "u1", "hypotheses": ["a", 3]},
            InvalidList,
            "hypothesis 1, hypotheses: expected an object or",
        ),
        ({"id": "u1", "hypotheses": [{}]}, InvalidList, "hypothesis 0, text: expected a string, got nothing"),
        (
            {"id": "u1", "hypotheses": ["a"], "context": 1},
            InvalidList,
            "context: expected a string, got a number",
        ),
        ({"id": "u1", "hypotheses": ["a"], "reference": []}, InvalidList, "reference: expected a string"),
        ({"id": "u1", "hypotheses": [{"text": "a", "scores": 1}]}, InvalidList, "scores: expected an object"),
        (
            {"id": "u1", "nbest": [{"transcript": "a"}, {"transcript": "b"}]},
            InvalidList,
            "`--map hypotheses=nbest,text=transcript` reads 'nbest', a list of 2 objects with transcript",
        ),
        (
            {"id": "u1", "hypotheses": [{"transcript": "a"}]},
            InvalidList,
            "text: expected a string, got nothing; `--map text=transcript` reads 'transcript'",
        ),
        (
            {"utt_id": "u1", "hypotheses": ["a"]},
            InvalidList,
            "got nothing; `--map id=utt_id` reads 'utt_id', `--map id=` numbers the lists",
        ),
        ({"id": "u1", "sequences": [[50258, 7]]}, InvalidList, "an array of token ids; decode them first"),
        (list_with_scores(-1, None), InvalidList, r'hypothesis 1, scores\["am"\]: no score, though other'),
        (list_with_scores(math.nan), InvalidList, "the score is nan; expected a finite number"),
        (list_with_scores("-1"), InvalidList, "'-1' is not a number"),
    ],
)
def test_yields_error_with_place_for_bad_line_and_reads_on(record, error_type, message):
    before, error, after = read(
        {"id": "u0", "hypotheses": ["a"]}, record, {"id": "u0", "hypotheses": ["same id"]}
    )
    assert isinstance(before, NBestList)
    assert isinstance(after, NBestList)
    assert type(error) is error_type
    assert error.line == 2
    assert "<stream>:2" in str(error)
    with pytest.raises(error_type, match=message):
        raise error


@pytest.mark.parametrize(
    ("scores", "streams"),
    [
        ({"scores": [-1, -2.5]}, {"first_pass": (-1.0, -2.5)}),
        ({"sequences_scores": [-1, -2.5]}, {"first_pass": (-1.0, -2.5)}),
        ({"scores": {"am": [-1, -2], "lm": [-3, -4]}}, {"am": (-1.0, -2.0), "lm": (-3.0, -4.0)}),
    ],
)
def test_reads_arrays_of_scores_beside_the_hypotheses(scores, streams):
    (nbest,) = read({"id": "u1", "hypotheses": ["a", {"text": "b"}], **scores, "other": [1, 2]})
    assert (nbest.streams, nbest.fields) == (streams, {"other": [1, 2]})


def test_fields_beside_the_hypotheses_are_scores_only_if_they_look_like_theirs():
    fields = {"scores": {"wer": 0.5}, "sequences_scores": [[-1.0], [-2.0]], "am": -3, "lm": "-1 -2"}
    (nbest,) = read({"id": "u1", "hypotheses": ["a", "b"], **fields})
    assert nbest.fields == fields
    (nbest,) = read({**list_with_scores(-1, -2), "scores": [1, 2]})
    assert nbest.streams == {"am": (-1.0, -2.0)}
    (nbest,) = read({"id": "u1", "hyps": [{"text": "a"}, {"text": "b"}], "am": [-1, -2]}, names=FLAT)
    assert nbest.streams == {"acoustic": (-1.0, -2.0)}
    (error,) = read({"id": "u1", "hyps": [{"text": "a"}, {"text": "b"}], "am": [-1]}, names=FLAT)
    assert "list 'u1', am: 1 score for 2 hypotheses; expected one for each" in str(error)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"scores": [-1.0]}, "scores: 1 score for 2 hypotheses"),
        ({"sequences_scores": [-1, -2, -3]}, "sequences_scores: 3 scores for 2 hypotheses"),
        ({"scores": {"am": [-1, -2], "lm": [-1]}}, 'scores["lm"]: 1 score for 2 hypotheses'),
        ({"scores": [-1, None]}, "no score, though other hypotheses of the list have one"),
        ({"scores": [-1, "x"]}, "'x'"),
    ],
)
def test_rejects_a_list_whose_array_of_scores_does_not_fit_its_hypotheses(scores, message):
    (error,) = read({"id": "u1", "hypotheses": ["a", "b"], **scores})
    assert message in str(error)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"utt": "u1", "hyp": "to be"}, "`--format table:id=utt,text=hyp` reads 'hyp'"),
        ({"key": "u1", "text": "a", "words": [{"text": "a"}]}, "`--format table:id=key,text=text` reads"),
        (
            {"id": 1, "text": "a b", "chunks": [{"text": "a"}, {"text": "b"}]},
            "`--format table:id=id,text=text`",
        ),
    ],
)
def test_names_the_table_for_lines_of_one_hypothesis_and_takes_no_parts_for_lists(record, message):
    (error,) = read(record)
    assert message in str(error)
    assert "hypotheses=words" not in str(error)
    assert "hypotheses=chunks" not in str(error)


PROGRAMS = {
    "HyPoradise": ({"input": ["a b", "a c"], "output": "a b"}, {}, "a b"),
    "transformers": ({"sequences": ["a b", "a c"], "sequences_scores": [-0.25, -0.5]}, (-0.25, -0.5), None),
    "generation": ({"text": ["a b", "a c"], "scores": [-0.25, -0.5]}, (-0.25, -0.5), None),
    "pairs": ({"beams": [["a b", -0.25], ["a c", -0.5]], "reference": "a"}, (-0.25, -0.5), "a"),
    "objects": ({"candidates": [{"text": "a b"}, {"text": "a c"}]}, {}, None),
    "hypotheses": ({"hypotheses": ["a b", "a c"]}, {}, None),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("shape", ["documents", "array", "stream"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\r\n \n"])
def test_detects_and_reads_records_of_other_programs(tmp_path, program, indent, shape, start):
    record, scores, reference = PROGRAMS[program]
    records = [record, {"note": {"x": [1]}, **dict(reversed(record.items()))}]
    dumps = [json.dumps(value, indent=indent) for value in (records if shape != "array" else [records])]
    path = tmp_path / "lists.json"
    with path.open("w", newline="") as file:
        file.write(start + ("\n" if shape == "documents" else "").join(dumps))
    is_lines = indent is None and shape == "documents"
    assert detect(path)[0] == ("jsonl" if is_lines else "json")
    lists = list(read_lists(path))
    first_line = start.count("\n") if is_lines else 0
    assert [nbest.id for nbest in lists] == [str(first_line + 1), str(first_line + 2)]
    for nbest in lists:
        assert [hypothesis.text for hypothesis in nbest.hypotheses] == ["a b", "a c"]
        assert nbest.streams == ({"first_pass": scores} if scores else {})
        assert nbest.reference == reference
    assert [*lists[1].fields] == ["note"]


def test_only_lists_without_an_id_are_numbered():
    first, second, third = read(
        {"hypotheses": ["a"]}, {"id": "u", "hypotheses": ["b"]}, {"hypotheses": ["c"]}
    )
    assert [first.id, second.id, third.id] == ["1", "u", "3"]
    first, error = read({"id": "u", "hypotheses": ["b"]}, {"hypotheses": ["c"]})
    assert "expected a non-empty string, got nothing" in str(error)


def test_words_of_one_text_are_no_hypotheses():
    (error,) = read({"id": "u", "text": ["the", "sea"]})
    assert "`--map hypotheses=text` reads 'text', a list of 2 texts" in str(error)


def test_lines_of_an_array_cannot_be_divided():
    with pytest.raises(FormatError, match="cannot be divided at its lines; give --format json"):
        read_header(io.BytesIO(b'\n[\n{"id": "u1", "hyps": ["a"]}\n]'), FLAT)


def test_array_has_a_header_ids_and_errors_by_element():
    array = [HEADER, {"id": "u1", "hypotheses": ["a"]}, 3, {"id": "u2"}, {"hypotheses": ["b"]}]
    first, number, missing, no_id = read_lists(io.BytesIO(json.dumps(array, indent=2).encode()))
    assert first.id == "u1"
    assert "element 3: expected a JSON object, got a number" in str(number)
    assert "list 'u2', hypotheses: missing" in str(missing)
    assert "id: expected a non-empty string, got nothing" in str(no_id)


@given(several(nbest_lists(["am", "lm"], references=True, fields=lambda text: {"n": len(text)})))
def test_arrays_that_are_written_are_read_again(lists):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lists.json.gz"
        with array_writer(path) as write:
            for nbest in lists:
                write(nbest)
        assert list(read_lists(path)) == lists


def test_rejects_stream_with_two_sources():
    record = {"id": "u1", "hyps": [{"text": "a", "am": -1, "scores": {"acoustic": -2}}]}
    (error,) = read(record, names=FLAT)
    assert 'scores["acoustic"]: this stream is also mapped to another field by an option' in str(error)


@pytest.mark.parametrize(
    ("maps", "streams", "message"),
    [
        (["hyps"], [], "expected NAME=FIELD, NAME one of id, hypotheses, text"),
        (["streams=x"], [], "expected NAME=FIELD"),
        (["text=a,text=b"], [], "text is given twice"),
        (["text="], [], "expected the name of a field"),
        (["reference=id"], [], "id is mapped to two fields"),
        ([], ["acoustic"], r"expected NAME=FIELD\[:BASE\[:SIGN\]\]"),
        ([], ["a=b:2:cost:x"], "expected NAME=FIELD"),
        ([], ["a=b:3"], "base is '3'; expected one of"),
        ([], ["a=b", "a=c"], "a is given twice"),
    ],
)
def test_rejects_invalid_field_options(maps, streams, message):
    with pytest.raises(ConfigError, match=message):
        parse_field_map(maps, streams)


def test_parses_field_options():
    names = parse_field_map(["id=utt, group="], ["am=a:bytelog:cost"])
    assert names == FieldMap(id="utt", group="", streams={"am": StreamField("a", Units("bytelog", "cost"))})


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
def test_reads_every_list_of_real_files(data_dir, file, maps, streams, n_lists, n_hypotheses):
    names = parse_field_map([maps], [f"{stream}={stream}" for stream in streams])
    lists = list(read_lists(data_dir / "nbest" / file, names))
    assert all(isinstance(nbest, NBestList) and list(nbest.streams) == streams for nbest in lists)
    assert (len(lists), sum(len(nbest.hypotheses) for nbest in lists)) == (n_lists, n_hypotheses)

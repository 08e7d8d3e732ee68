"""Documents of mlm-scoring and ESPnet 1: golden files, round trips and invalid input."""

from __future__ import annotations

import gzip
import io
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.registry import FORMATS
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import ID, nbest_lists, several, write_truncated_gzip

MLM = {
    "u 1": {
        "hyp_10": {"score": -4.5, "text": "c"},
        "hyp_2": {"score": -2.5, "text": "", "note": 1},
        "hyp_1": {"score": -3, "text": "the best"},
        "ref": "the rest",
        "speaker": "s1",
    },
    "u2": {"hyp_1": {"text": "a"}},
}
FIRST = {"name": "target1[1]", "rec_text": "▁HE LLO▁YOU<eos>", "score": -12.5, "text": "HELLO", "shape": [1]}
SECOND = {"rec_text": "HELLO <eos>", "score": "tensor(-12.9, device='cuda:0')", "text": "HELLO"}
ESPNET = {
    "utts": {
        "u1": {"output": [FIRST, SECOND], "utt2spk": "s1", "input": []},
        "u2": {"output": [{"rec_text": "A B", "score": -1}]},
    }
}


def read(name, document: object) -> list:
    text = document if isinstance(document, str) else json.dumps(document, indent=1)
    return list(FORMATS[name].read(io.BytesIO(text.encode())))


def test_orders_mlm_hypotheses_by_number():
    first, second = read("mlm", MLM)
    assert first == NBestList(
        "u 1",
        (Hypothesis("the best"), Hypothesis("", {"note": 1}), Hypothesis("c")),
        {"first_pass": (-3.0, -2.5, -4.5)},
        reference="the rest",
        fields={"speaker": "s1"},
    )
    assert second == NBestList("u2", (Hypothesis("a"),))


def test_rejects_empty_id():
    (error,) = read("mlm", {"": MLM["u2"]})
    assert "list '', id: is empty; expected an id" in str(error)


def test_joins_espnet_word_pieces():
    first, second = read("espnet1", ESPNET)
    assert [hypothesis.text for hypothesis in first.hypotheses] == ["HELLO YOU", "HELLO"]
    assert first.hypotheses[0].fields == {"rec_text": "▁HE LLO▁YOU<eos>", "shape": [1]}
    assert first.streams == {"first_pass": (-12.5, -12.9)}
    assert (first.reference, first.group, first.fields) == ("HELLO", "s1", {"input": []})
    assert second == NBestList("u2", (Hypothesis("A B"),), {"first_pass": (-1.0,)})


FIELDS = st.dictionaries(st.sampled_from(["note", "times"]), st.none() | st.integers() | st.text("ab"))


@pytest.mark.parametrize("name", ["mlm", "espnet1"])
@given(data=st.data())
def test_round_trip(name, data):
    ids = ID | st.just("an id with spaces ü")
    drawn = nbest_lists(["first_pass"], ids=ids, references=True, fields=lambda text: {"note": text})
    lists = data.draw(several(drawn))
    lists = [replace(nbest, fields=data.draw(FIELDS)) for nbest in lists]
    with tempfile.TemporaryDirectory() as folder:
        for file in ("out.json", "out.json.gz"):
            with FORMATS[name].writer(Path(folder) / file) as write:
                for nbest in lists:
                    write(nbest)
            assert list(FORMATS[name].read(Path(folder) / file)) == lists


def test_espnet_writer_restores_the_original_outputs(tmp_path):
    with FORMATS["espnet1"].writer(tmp_path / "out.json") as write:
        for nbest in read("espnet1", ESPNET):
            write(nbest)
    assert read("espnet1", (tmp_path / "out.json").read_text()) == read("espnet1", ESPNET)
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["utts"]["u1"]["output"][0] == FIRST


@pytest.mark.parametrize("name", ["mlm", "espnet1"])
def test_reads_and_writes_document_without_lists(name, tmp_path):
    with FORMATS[name].writer(tmp_path / "out.json"):
        pass
    assert list(FORMATS[name].read(tmp_path / "out.json")) == []


@pytest.mark.parametrize("name", ["mlm", "espnet1"])
def test_reads_byte_order_marks_and_carriage_returns(name):
    document = {"mlm": MLM, "espnet1": ESPNET}[name]
    text = "\ufeff" + json.dumps(document, indent=1).replace("\n", "\r\n")
    assert list(FORMATS[name].read(io.BytesIO(gzip.compress(text.encode())))) == read(name, document)


@pytest.mark.parametrize("name", ["mlm", "espnet1"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "<stream>: expected a JSON object, got an array"),
        ('{\n"u1": {,', "<stream>:2: not JSON: Expecting property name"),
        ('{"utts": {"u1": {"a": 1, "a": 2}}}', "duplicate key 'a' in an object"),
        ('{"u1": "\\ud800"}', "unpaired surrogate"),
        ('{"utts": {"u1": ' + "[" * 200_000, "cannot parse JSON"),
        ('{"u1": ' + "9" * 5000 + "}", "cannot parse JSON"),
    ],
)
def test_rejects_invalid_document(name, text, message):
    with pytest.raises(FormatError) as caught:
        read(name, text)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["mlm", "espnet1"])
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (', "u3": {"a": 1, "a": 2}}', "3: cannot parse JSON: duplicate key 'a' in an object"),
        (",}", "3: not JSON: Expecting property name enclosed in double quotes at column 2"),
        ('; "u3": 1}', "3: not JSON: Expecting ',' delimiter at column 1"),
        (', "u3" 1}', "3: not JSON: Expecting ':' delimiter at column 8"),
        (', "u3": "\\udc00"}', "3: unpaired surrogate"),
        ("}}1", "3: not JSON: Extra data at column "),
        ("", "not JSON: Expecting ',' delimiter"),
        (', "u3": "', "3: not JSON: Unterminated string starting at at column 9"),
    ],
)
def test_reads_lists_before_a_syntax_error(name, end, message):
    record = {"mlm": MLM["u2"], "espnet1": ESPNET["utts"]["u2"]}[name]
    members = f'"u1": {json.dumps(record)},\n"u2": {json.dumps(record)}\n{end}'
    first, second, error = read(name, f"{{{members}" if name == "mlm" else f'{{"utts": {{{members}}}')
    assert (first.id, second.id) == ("u1", "u2")
    assert isinstance(error, FormatError)
    assert message in str(error)


@pytest.mark.parametrize("name", ["mlm", "espnet1"])
def test_yields_error_for_duplicate_id_and_reads_on(name):
    record = json.dumps({"mlm": MLM["u2"], "espnet1": ESPNET["utts"]["u2"]}[name])
    text = f'{{"u1": {record}, "u1": {record}, "u2": {record}}}'
    first, duplicate, second = read(name, text if name == "mlm" else f'{{"utts": {text}}}')
    assert (first.id, second.id) == ("u1", "u2")
    assert "<stream>, list 'u1': duplicate id" in str(duplicate)


def test_ignores_espnet_keys_other_than_utts():
    document = {"version": [1], **ESPNET, "end": {"utts": {}}}
    assert read("espnet1", document) == read("espnet1", ESPNET)
    for text in ("{}", '{"utts": 3}', '{"utts": []}'):
        with pytest.raises(FormatError, match="<stream>: utts: expected a JSON object, got "):
            read("espnet1", text)


@pytest.mark.parametrize("name", ["mlm", "espnet1"])
def test_rejects_damaged_file(name, tmp_path):
    write_truncated_gzip(tmp_path / "a.json.gz", "{")
    with pytest.raises(FormatError, match=r"a\.json\.gz:\d+: damaged gzip data"):
        list(FORMATS[name].read(tmp_path / "a.json.gz"))
    with pytest.raises(FormatError, match="<stream>:1: not UTF-8"):
        list(FORMATS[name].read(io.BytesIO(b'{"u1": "\xff"}')))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (3, "list 'u1': expected an object, got a number"),
        ({}, "list 'u1': no hypotheses; expected at least one"),
        ({"hyp_1": "a"}, "hypothesis 0, hyp_1: expected an object with a string"),
        ({"hyp_1": {"text": "a"}, "ref": 1}, "ref: expected a string, got a number"),
        ({"hyp_1": {"text": "a", "score": math.nan}}, "hypothesis 0, first_pass: the score is nan"),
        ({"hyp_1": {"text": "a", "score": "tensor(-12.9)"}}, "first_pass: 'tensor(-12.9)' is not a number"),
        ({"hyp_1": {"text": "a", "score": 1}, "hyp_2": {"text": "b"}}, "hypothesis 1, first_pass: no score"),
    ],
)
def test_yields_error_for_invalid_mlm_list_and_reads_on(record, message):
    error, valid = read("mlm", {"u1": record, "u2": MLM["u2"]})
    assert isinstance(error, InvalidList)
    assert message in str(error)
    assert valid.id == "u2"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "list 'u1', output: expected an array, got nothing"),
        ({"output": []}, "list 'u1': no hypotheses; expected at least one"),
        ({"output": [{}]}, "hypothesis 0, output[0]: expected an object with a string rec_text"),
        (
            {"output": [{"rec_text": "a", "text": "a"}, {"rec_text": "a"}]},
            "output[].text: expected the same string",
        ),
        ({"output": [{"rec_text": "a", "text": [1]}]}, "output[].text: expected the same string"),
        ({"output": [{"rec_text": "a"}], "utt2spk": 3}, "utt2spk: expected a string, got a number"),
        ({"output": [{"rec_text": "a", "score": "tensor(nan)"}]}, "first_pass: the score is nan"),
        ({"output": [{"rec_text": "a", "score": "tensor([1.0])"}]}, "'[1.0]' is not a number"),
    ],
)
def test_yields_error_for_invalid_espnet_list_and_reads_on(record, message):
    error, valid = read("espnet1", {"utts": {"u1": record, "u2": ESPNET["utts"]["u2"]}})
    assert isinstance(error, InvalidList)
    assert message in str(error)
    assert valid.id == "u2"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mlm", {"fields": {"ref": 1}}, "the names ref and hyp_N are reserved"),
        ("mlm", {"fields": {"hyp_7": 1}}, "the names ref and hyp_N are reserved"),
        (
            "mlm",
            {"hypotheses": (Hypothesis("a", {"score": 1}),)},
            "the names score and text are reserved",
        ),
        ("espnet1", {"fields": {"output": 1}}, "the names output and utt2spk are reserved"),
        (
            "espnet1",
            {"hypotheses": (Hypothesis("a", {"name": 1}),)},
            "the names score, text and name are reserved",
        ),
        ("espnet1", {"hypotheses": (Hypothesis("a", {"rec_text": 1}),)}, "rec_text: expected a string"),
        ("espnet1", {"hypotheses": (Hypothesis("a▁b"),)}, "'a▁b' would be read as 'a b'"),
        ("espnet1", {"hypotheses": (Hypothesis("<eos>"),)}, "'<eos>' would be read as ''"),
    ],
)
def test_writer_rejects_lists_that_a_document_cannot_hold(name, change, message, tmp_path):
    valid = NBestList("u1", (Hypothesis("a"),))
    with FORMATS[name].writer(tmp_path / "out.json") as write:
        write(valid)
        with pytest.raises(InvalidList, match="already written; expected each id once"):
            write(valid)
        with pytest.raises(InvalidList) as caught:
            write(replace(valid, id="u2", **change))
    assert message in str(caught.value)
    assert list(FORMATS[name].read(tmp_path / "out.json")) == [valid]

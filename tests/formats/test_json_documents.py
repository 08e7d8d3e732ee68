"""mlm-scoring's and ESPnet 1's documents: golden files, round trips, and what becomes of bad input."""

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
from rescorer.formats.nbest import espnet1, mlm
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


def read(module, document: object) -> list:
    text = document if isinstance(document, str) else json.dumps(document, indent=1)
    return list(module.read_lists(io.BytesIO(text.encode())))


def test_mlm_hypotheses_come_by_number():
    first, second = read(mlm, MLM)
    assert first == NBestList(
        "u 1",
        (Hypothesis("the best"), Hypothesis("", {"note": 1}), Hypothesis("c")),
        {"first_pass": (-3.0, -2.5, -4.5)},
        reference="the rest",
        fields={"speaker": "s1"},
    )
    assert second == NBestList("u2", (Hypothesis("a"),))


def test_an_id_is_not_empty():
    (fault,) = read(mlm, {"": MLM["u2"]})
    assert "list '', id: is empty; expected an id" in str(fault)


def test_espnet_pieces_become_words():
    first, second = read(espnet1, ESPNET)
    assert [each.text for each in first.hypotheses] == ["HELLO YOU", "HELLO"]
    assert first.hypotheses[0].fields == {"rec_text": "▁HE LLO▁YOU<eos>", "shape": [1]}
    assert first.streams == {"first_pass": (-12.5, -12.9)}
    assert (first.reference, first.group, first.fields) == ("HELLO", "s1", {"input": []})
    assert second == NBestList("u2", (Hypothesis("A B"),), {"first_pass": (-1.0,)})


FIELDS = st.dictionaries(st.sampled_from(["note", "times"]), st.none() | st.integers() | st.text("ab"))


@pytest.mark.parametrize("module", [mlm, espnet1])
@given(data=st.data())
def test_what_is_written_is_read_back(module, data):
    ids = ID | st.just("an id with spaces ü")
    drawn = nbest_lists(["first_pass"], ids=ids, references=True, fields=lambda text: {"note": text})
    lists = data.draw(several(drawn))
    lists = [replace(each, fields=data.draw(FIELDS)) for each in lists]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("out.json", "out.json.gz"):
            with module.writer(Path(folder) / name) as put:
                for nbest in lists:
                    put(nbest)
            assert list(module.read_lists(Path(folder) / name)) == lists


def test_espnet_files_are_written_as_they_were_read(tmp_path):
    with espnet1.writer(tmp_path / "out.json") as put:
        for nbest in read(espnet1, ESPNET):
            put(nbest)
    assert read(espnet1, (tmp_path / "out.json").read_text()) == read(espnet1, ESPNET)
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["utts"]["u1"]["output"][0] == FIRST


@pytest.mark.parametrize("module", [mlm, espnet1])
def test_no_lists_are_a_document_too(module, tmp_path):
    with module.writer(tmp_path / "out.json"):
        pass
    assert list(module.read_lists(tmp_path / "out.json")) == []


@pytest.mark.parametrize("module", [mlm, espnet1])
def test_byte_order_marks_and_carriage_returns_do_no_harm(module):
    document = {mlm: MLM, espnet1: ESPNET}[module]
    text = "\ufeff" + json.dumps(document, indent=1).replace("\n", "\r\n")
    assert list(module.read_lists(io.BytesIO(gzip.compress(text.encode())))) == read(module, document)


@pytest.mark.parametrize("module", [mlm, espnet1])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "<stream>: expected a JSON object, not an array"),
        ('{\n"u1": {,', "<stream>:2: not JSON: Expecting property name"),
        ('{"utts": {"u1": {"a": 1, "a": 2}}}', "duplicate key 'a' in an object"),
        ('{"u1": "\\ud800"}', "unpaired surrogate"),
        ('{"utts": {"u1": ' + "[" * 200_000, "cannot parse JSON"),
        ('{"u1": ' + "9" * 5000 + "}", "cannot parse JSON"),
    ],
)
def test_a_file_that_is_no_such_document_is_refused(module, text, said):
    with pytest.raises(FormatError) as caught:
        read(module, text)
    assert said in str(caught.value)


@pytest.mark.parametrize("module", [mlm, espnet1])
@pytest.mark.parametrize(
    ("end", "said"),
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
def test_lists_before_a_fault_are_read(module, end, said):
    record = {mlm: MLM["u2"], espnet1: ESPNET["utts"]["u2"]}[module]
    inside = f'"u1": {json.dumps(record)},\n"u2": {json.dumps(record)}\n{end}'
    first, second, fault = read(module, f"{{{inside}" if module is mlm else f'{{"utts": {{{inside}}}')
    assert (first.id, second.id) == ("u1", "u2")
    assert isinstance(fault, FormatError)
    assert said in str(fault)


@pytest.mark.parametrize("module", [mlm, espnet1])
def test_an_id_met_before_is_a_fault_and_the_next_list_is_read(module):
    record = json.dumps({mlm: MLM["u2"], espnet1: ESPNET["utts"]["u2"]}[module])
    text = f'{{"u1": {record}, "u1": {record}, "u2": {record}}}'
    first, again, second = read(module, text if module is mlm else f'{{"utts": {text}}}')
    assert (first.id, second.id) == ("u1", "u2")
    assert "<stream>, list 'u1': is here a second time" in str(again)


def test_espnet_keys_around_the_utterances_are_passed_over():
    document = {"version": [1], **ESPNET, "end": {"utts": {}}}
    assert read(espnet1, document) == read(espnet1, ESPNET)
    for text in ("{}", '{"utts": 3}', '{"utts": []}'):
        with pytest.raises(FormatError, match="<stream>: utts: expected a JSON object, not "):
            read(espnet1, text)


@pytest.mark.parametrize("module", [mlm, espnet1])
def test_a_damaged_file_is_refused(module, tmp_path):
    write_truncated_gzip(tmp_path / "a.json.gz", "{")
    with pytest.raises(FormatError, match=r"a\.json\.gz:\d+: damaged gzip data"):
        list(module.read_lists(tmp_path / "a.json.gz"))
    with pytest.raises(FormatError, match="<stream>:1: not UTF-8"):
        list(module.read_lists(io.BytesIO(b'{"u1": "\xff"}')))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (3, "list 'u1': expected an object, not a number"),
        ({}, "list 'u1': no hypotheses; expected one at least"),
        ({"hyp_1": "a"}, "hypothesis 0, hyp_1: expected an object with a string"),
        ({"hyp_1": {"text": "a"}, "ref": 1}, "ref: expected a string, not a number"),
        ({"hyp_1": {"text": "a", "score": math.nan}}, "hypothesis 0, first_pass: the score is nan"),
        ({"hyp_1": {"text": "a", "score": "tensor(-12.9)"}}, "first_pass: 'tensor(-12.9)' is not a number"),
        ({"hyp_1": {"text": "a", "score": 1}, "hyp_2": {"text": "b"}}, "hypothesis 1, first_pass: no score"),
    ],
)
def test_a_bad_mlm_list_is_an_outcome_and_the_next_is_read(record, said):
    fault, good = read(mlm, {"u1": record, "u2": MLM["u2"]})
    assert isinstance(fault, InvalidList)
    assert said in str(fault)
    assert good.id == "u2"


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([], "list 'u1', output: expected an array, not nothing"),
        ({"output": []}, "list 'u1': no hypotheses; expected one at least"),
        ({"output": [{}]}, "hypothesis 0, output[0]: expected an object with the string rec_text"),
        (
            {"output": [{"rec_text": "a", "text": "a"}, {"rec_text": "a"}]},
            "output[].text: expected one string",
        ),
        ({"output": [{"rec_text": "a", "text": [1]}]}, "output[].text: expected one string"),
        ({"output": [{"rec_text": "a"}], "utt2spk": 3}, "utt2spk: expected a string, not a number"),
        ({"output": [{"rec_text": "a", "score": "tensor(nan)"}]}, "first_pass: the score is nan"),
        ({"output": [{"rec_text": "a", "score": "tensor([1.0])"}]}, "'[1.0]' is not a number"),
    ],
)
def test_a_bad_espnet_list_is_an_outcome_and_the_next_is_read(record, said):
    fault, good = read(espnet1, {"utts": {"u1": record, "u2": ESPNET["utts"]["u2"]}})
    assert isinstance(fault, InvalidList)
    assert said in str(fault)
    assert good.id == "u2"


@pytest.mark.parametrize(
    ("module", "change", "said"),
    [
        (mlm, {"fields": {"ref": 1}}, "fields called ref or hyp_N"),
        (mlm, {"fields": {"hyp_7": 1}}, "fields called ref or hyp_N"),
        (mlm, {"hypotheses": (Hypothesis("a", {"score": 1}),)}, "fields called score or text"),
        (espnet1, {"fields": {"output": 1}}, "fields called output or utt2spk"),
        (espnet1, {"hypotheses": (Hypothesis("a", {"name": 1}),)}, "fields called score, text or name"),
        (espnet1, {"hypotheses": (Hypothesis("a", {"rec_text": 1}),)}, "rec_text is a string"),
        (espnet1, {"hypotheses": (Hypothesis("a▁b"),)}, "'a▁b' would be read as 'a b'"),
        (espnet1, {"hypotheses": (Hypothesis("<eos>"),)}, "'<eos>' would be read as ''"),
    ],
)
def test_what_a_document_cannot_hold_is_refused(module, change, said, tmp_path):
    good = NBestList("u1", (Hypothesis("a"),))
    with module.writer(tmp_path / "out.json") as put:
        put(good)
        with pytest.raises(InvalidList, match="is there a second time"):
            put(good)
        with pytest.raises(InvalidList) as caught:
            put(replace(good, id="u2", **change))
    assert said in str(caught.value)
    assert list(module.read_lists(tmp_path / "out.json")) == [good]

"""The JSON answers of speech services: several makers, a round trip, and what becomes of bad input."""

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

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.nbest.speech_services import read_lists, writer
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import ID, nbest_lists, several, write_truncated_gzip

BOTH = [{"transcript": "a b", "confidence": 0.9}, {"transcript": "a"}]
GOOGLE = {
    "results": [{"alternatives": BOTH, "languageCode": "en"}, {"alternatives": [{"transcript": ""}]}],
    "requestId": "77",
}
AZURE = {"RecognitionStatus": "Success", "NBest": [{"Confidence": 0.9, "Lexical": "a b", "Display": "A B."}]}
OPENAI = {"choices": [{"text": "a b"}, {"message": {"content": "a c"}, "index": 1}], "id": "cmpl-1"}
LOGS = [
    [
        {"speaker": "U", "nbest": [{"hyp": "a b", "score": -45.5}, {"hyp": "a", "score": -46}]},
        {"speaker": "S"},
    ]
]


def read(document: object, **options) -> list:
    text = document if isinstance(document, str) else json.dumps(document, indent=1)
    return list(read_lists(io.BytesIO(text.encode()), **options))


def test_google():
    first, second = read(GOOGLE)
    assert first == NBestList(
        "results[0].alternatives",
        (Hypothesis("a b", {"confidence": 0.9}), Hypothesis("a")),
        fields={"languageCode": "en"},
    )
    assert second == NBestList("results[1].alternatives", (Hypothesis(""),))


def test_azure_and_the_choice_of_a_text():
    (nbest,) = read(AZURE)
    assert (nbest.id, nbest.fields) == ("NBest", {"RecognitionStatus": "Success"})
    assert nbest.hypotheses == (Hypothesis("a b", {"Confidence": 0.9, "Display": "A B."}),)
    assert [each.text for each in read(AZURE, text="Display")[0].hypotheses] == ["A B."]


def test_openai():
    (nbest,) = read(OPENAI)
    assert nbest == NBestList("cmpl-1", (Hypothesis("a b"), Hypothesis("a c", {"index": 1})))


def test_scores_are_read_where_base_and_sign_are_told():
    (silent,) = read(LOGS)
    assert silent.streams == {}
    assert silent.hypotheses[0].fields == {"score": -45.5}
    (told,) = read(LOGS, score="score", base="10", sign="cost")
    assert told.id == "[0][0].nbest"
    assert told.streams == {"first_pass": pytest.approx((45.5 * math.log(10), 46 * math.log(10)))}
    assert told.hypotheses == (Hypothesis("a b"), Hypothesis("a"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"score": "score"}, "a score and its base go together"),
        ({"base": "e"}, "a score and its base go together"),
        ({"score": "score", "base": "7"}, "base is '7'"),
        ({"score": "score", "base": "e", "sign": "up"}, "sign is 'up'"),
    ],
)
def test_nothing_is_guessed(options, said):
    with pytest.raises(ConfigError, match=said):
        read(LOGS, **options)


def test_a_document_a_line_with_a_bad_one_between():
    lines = [json.dumps(AZURE), "", "{broken", json.dumps(OPENAI), json.dumps(OPENAI), '{"a": "\xff"}']
    data = "\ufeff".encode() + "\r\n".join(lines).encode("latin-1")
    azure, broken, openai, again, no_text = read_lists(io.BytesIO(gzip.compress(data)))
    assert (azure.id, openai.id) == ("1.NBest", "cmpl-1")
    assert "<stream>:3: not JSON" in str(broken)
    assert "<stream>:5, list 'cmpl-1': is here a second time" in str(again)
    assert "<stream>:6: not UTF-8" in str(no_text)


IDS = ID | st.just("an id with spaces ü")
FIELDS = st.dictionaries(st.sampled_from(["note", "speaker"]), st.none() | st.integers() | st.text("ab"))


@given(
    several(nbest_lists(["first_pass"], ids=IDS, fields=lambda text: {"confidence": len(text)})), st.data()
)
def test_what_is_written_is_read_back(lists, data):
    lists = [replace(each, fields=data.draw(FIELDS)) for each in lists]
    with tempfile.TemporaryDirectory() as folder:
        with writer(Path(folder) / "out.json.gz") as put:
            for nbest in lists:
                put(nbest)
        assert list(read_lists(Path(folder) / "out.json.gz", score="score", base="e")) == lists


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (3, "list 'NBest', hypothesis 1: expected an object, not a number"),
        ({}, "hypothesis 1, message: no text in transcript, Lexical, lexical, text, hyp; expected a string"),
        ({"hyp": 3}, "hypothesis 1, hyp: no text in"),
        ({"message": {"content": None}}, "hypothesis 1, message: no text in"),
        ({"hyp": "a"}, "hypothesis 1, first_pass: no score, though other hypotheses"),
        ({"hyp": "a", "score": math.nan}, "hypothesis 1, first_pass: the score is nan"),
        ({"hyp": "a", "score": "tensor(-12.9)"}, "hypothesis 1, first_pass: 'tensor(-12.9)' is not a number"),
    ],
)
def test_a_bad_list_is_an_outcome_and_the_next_is_read(item, said):
    document = {"NBest": [{"hyp": "a", "score": -1}, item], "more": {"nbest": [{"hyp": "b", "score": -1}]}}
    fault, good = read(document, score="score", base="e")
    assert isinstance(fault, InvalidList)
    assert said in str(fault)
    assert good.id == "more.nbest"


def test_an_empty_list_is_a_fault_and_other_uses_of_its_name_are_none():
    (fault,) = read({"alternatives": [], "config": {"alternatives": 3}})
    assert "list 'alternatives': no hypotheses; expected at least one" in str(fault)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "<stream>: not JSON"),
        ('{\n"NBest": [', "<stream>:2: not JSON"),
        ("[" * 200_000, "cannot parse JSON"),
        ('{\n"a": 1, "a": 2}', "duplicate key 'a' in an object"),
    ],
)
def test_a_file_that_is_no_json_is_refused(text, said):
    with pytest.raises(FormatError) as caught:
        read(text)
    assert said.removeprefix("<stream>: ") in str(caught.value)


def test_a_truncated_file_is_refused(tmp_path):
    write_truncated_gzip(tmp_path / "a.json.gz", "{\n")
    with pytest.raises(FormatError, match="damaged gzip data"):
        list(read_lists(tmp_path / "a.json.gz"))


def test_what_a_document_cannot_hold_is_refused(tmp_path):
    good, scored = NBestList("u1", (Hypothesis("a"),)), Hypothesis("a", {"score": 1})
    with writer(tmp_path / "out.json") as put:
        put(good)
        for nbest, said in (
            (good, "the id is there a second time"),
            (replace(good, id="u2", fields={"nbest": 1}), "a field is called like one of"),
            (replace(good, id="u2", hypotheses=(scored,)), "called transcript or score"),
        ):
            with pytest.raises(InvalidList, match=said):
                put(nbest)
    assert list(read_lists(tmp_path / "out.json")) == [good]


@pytest.mark.data
def test_real_logs_are_read_whole(data_dir):
    path = data_dir / "nbest" / "dstc10" / "logs-no-references.json"
    lists = list(read_lists(path, score="score", base="e"))
    assert all(isinstance(each, NBestList) and list(each.streams) == ["first_pass"] for each in lists)
    assert len(lists) == 1376
    distinct = {(tuple(h.text for h in each.hypotheses), each.streams["first_pass"]) for each in lists}
    assert len(distinct) == 689  # logged twice, most of them


def test_a_folder_has_a_file_an_utterance(tmp_path):
    (tmp_path / "u2.json.gz").write_bytes(gzip.compress(json.dumps(OPENAI).encode()))
    (tmp_path / "u1.json").write_text(json.dumps(AZURE, indent=1))
    (tmp_path / "u3.json").write_text(json.dumps(GOOGLE))
    (tmp_path / "u4.json").write_text("{broken")
    (tmp_path / "u5.json").write_text("{}")
    (tmp_path / "u6.json").write_text('{\n"NBest": [{"hyp": "a"}, 3]}')
    (tmp_path / "README").write_text("no answer")
    azure, openai, first, second, broken, none, fault = read_lists(tmp_path)
    assert (azure.id, azure.fields) == ("u1", {"RecognitionStatus": "Success"})
    assert (openai.id, openai.fields) == ("u2", {"id": "cmpl-1"})
    assert (first.id, second.id) == ("u3.1.results[0].alternatives", "u3.1.results[1].alternatives")
    assert "u4.json:1: not JSON" in str(broken)
    assert "u5.json: no lists; expected an array, alternatives, NBest" in str(none)
    assert "u6.json, list 'u6', hypothesis 1: expected an object, not a number" in str(fault)
    with writer(tmp_path / "out") as put:
        put(openai)
    assert list(read_lists(tmp_path / "out")) == [openai]


def test_a_name_twice_in_a_folder_is_told(tmp_path):
    (tmp_path / "u1.json").write_text(json.dumps(AZURE))
    (tmp_path / "u1.json.gz").write_bytes(gzip.compress(json.dumps(AZURE).encode()))
    good, fault = read_lists(tmp_path)
    assert good.id == "u1"
    assert "u1.json.gz: duplicate id 'u1'" in str(fault)


def test_other_keys_of_ids_are_fields():
    (nbest,) = read({"requestId": "77", "id": "u1", "nbest": [{"hyp": "a"}]})
    assert (nbest.id, nbest.fields) == ("u1", {"requestId": "77"})


def test_lists_in_arrays_come_before_what_else_a_document_has():
    document = {
        "NBest": [{"hyp": "a"}],
        "parts": [{"nbest": [{"hyp": "b"}]}, 3],
        "more": {"nbest": [{"hyp": "c"}]},
    }
    lists = read(document)
    assert [each.id for each in lists] == ["parts[0].nbest", "NBest", "more.nbest"]
    assert lists[1].fields == {"parts": [3], "more": document["more"]}


def test_lists_before_a_fault_are_read():
    first, second, fault = read(json.dumps([AZURE, AZURE], indent=1)[:-1] + "; ")
    assert (first.id, second.id) == ("[0].NBest", "[1].NBest")
    assert isinstance(fault, FormatError)
    assert "not JSON: Expecting ',' delimiter" in str(fault)

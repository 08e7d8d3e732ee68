"""Files with several JSON documents: one after another, one per line, and what a broken one costs."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import FormatError, InputError
from rescorer.formats.espnet import read_espnet1
from rescorer.formats.json_documents import read_mlm, read_service_request
from rescorer.formats.jsonlines import read_lists
from rescorer.formats.speech_services import read_speech_services, read_whisper
from rescorer.types import NBestList

DOCUMENTS = {
    read_mlm: lambda text: {text: {"hyp_1": {"text": text}}},
    read_espnet1: lambda text: {"utts": {text: {"output": [{"rec_text": text}]}}},
    read_service_request: lambda text: {"lists": [{"id": text, "hypotheses": [{"text": text}]}]},
    read_speech_services: lambda text: {"results": [{"alternatives": [{"transcript": text}]}]},
    read_whisper: lambda text: {"segments": [{"text": text}]},
    read_lists: lambda text: {"hypotheses": [{"text": text}]},
}
SEPARATORS = ("\n", "\r\n", "\n\n\t", " ", "")


def read(read_lists, text: str) -> list[str | InputError]:
    """Read a text; a list becomes its only hypothesis, and a raised error the last outcome."""
    outcomes: list[str | InputError] = []
    try:
        for item in read_lists(io.BytesIO(text.encode())):
            outcomes.append(item.hypotheses[0].text if isinstance(item, NBestList) else item)
    except InputError as error:
        outcomes.append(error)
    return outcomes


@pytest.mark.parametrize("reader", DOCUMENTS, ids=lambda reader: reader.__name__)
@given(data=st.data())
def test_reads_every_document_however_they_are_separated(reader, data):
    texts = [f"t{n}" for n in range(data.draw(st.integers(1, 5)))]
    joined = data.draw(st.sampled_from(["", "\ufeff", "\n"]))
    for text in texts:
        indent = data.draw(st.sampled_from([None, 0, 2]))
        joined += json.dumps(DOCUMENTS[reader](text), indent=indent) + data.draw(st.sampled_from(SEPARATORS))
    assert read(reader, joined) == texts


def test_ids_tell_documents_apart():
    documents = [json.dumps(DOCUMENTS[read_speech_services](text), indent=1) for text in "abc"]
    ids = [nbest.id for nbest in read_speech_services(io.BytesIO("\n".join(documents).encode()))]
    assert ids == ["results[0].alternatives", "2.results[0].alternatives", "3.results[0].alternatives"]
    documents = [json.dumps(DOCUMENTS[read_whisper](text), indent=1) for text in "abc"]
    ids = [nbest.id for nbest in read_whisper(io.BytesIO("\n".join(documents).encode()))]
    assert ids == ["stream-0", "stream-2-0", "stream-3-0"]


def pretty(text: str) -> str:
    return json.dumps(DOCUMENTS[read_speech_services](text), indent=2)


@pytest.mark.parametrize(
    "broken",
    ['{\n  "results": [\n    {', '{\n  "results" 3\n}', '{\n  "a": "b\n}', '{\n  "a": 1,\n  "a": 2\n}'],
)
def test_a_broken_document_loses_itself_if_documents_are_indented(broken):
    outcomes = read(read_speech_services, "\n".join([pretty("a"), broken, pretty("b"), pretty("c")]))
    (error,) = [outcome for outcome in outcomes if isinstance(outcome, FormatError)]
    assert outcomes[0] == "a"
    assert outcomes[-1] == "c"
    assert "document 2 starts in line 12, the next one in line " in str(error)


def test_a_broken_line_among_indented_documents_loses_itself():
    for broken in ("x", '{"h', '{"results": [{"alternatives" 3}]}'):
        for texts in ([pretty("a"), broken, pretty("b")], [broken, pretty("a"), pretty("b")]):
            outcomes = read(read_speech_services, "\n".join(texts))
            assert [outcome for outcome in outcomes if isinstance(outcome, str)] == ["a", "b"]
            (error,) = [outcome for outcome in outcomes if isinstance(outcome, FormatError)]
            assert "the next one in line" in str(error)


@pytest.mark.parametrize("reader", [read_speech_services, read_service_request, read_whisper])
def test_a_broken_line_loses_itself(reader):
    lines = [json.dumps(DOCUMENTS[reader](text)) for text in "abcd"]
    for broken in (lines[1][:-3], "{broken", '{"a": [1,', "[[", "nothing"):
        outcomes = read(reader, "\n".join([lines[0], broken, *lines[2:]]))
        assert [outcome for outcome in outcomes if isinstance(outcome, str)] == ["a", "c", "d"], broken
        (error,) = [outcome for outcome in outcomes if isinstance(outcome, FormatError)]
        assert error.line == 2


def test_the_error_of_a_broken_document_among_lines_is_one():
    broken = pretty("b").replace('"transcript":', '"transcript"')
    outcomes = read(
        read_speech_services,
        "\n".join([json.dumps(DOCUMENTS[read_speech_services]("a")), broken, pretty("c")]),
    )
    assert outcomes[0] == "a"
    assert outcomes[-1] == "c"
    (error,) = [outcome for outcome in outcomes if isinstance(outcome, FormatError)]
    assert error.line == 7


def test_an_error_says_so_where_the_next_document_is_not_certain():
    first = json.dumps(DOCUMENTS[read_speech_services]("a"), indent=0)
    broken = first.replace('"transcript":', '"transcript"')
    text, error = read(read_speech_services, f"{first}\n{broken}\n{first}")
    assert text == "a"
    assert "document 2 starts in line 12, and the rest is not read" in str(error)


@pytest.mark.parametrize("broken", ["{broken", '{"results": [{"alternati', "\udcff", "nothing"])
def test_a_broken_first_line_of_json_lines_loses_itself(broken):
    lines = [broken, *(json.dumps({"hypotheses": [text]}) for text in "ab")]
    data = "\n".join(lines).encode(errors="surrogateescape")
    error, *lists = read_lists(io.BytesIO(data))
    assert isinstance(error, FormatError)
    assert error.line == 1
    assert [nbest.hypotheses[0].text for nbest in lists] == ["a", "b"]
    if broken.startswith("{"):
        lines = [broken, json.dumps(DOCUMENTS[read_speech_services]("a"))]
        error, text = read(read_speech_services, "\n".join(lines))
        assert (isinstance(error, FormatError), text) == (True, "a")


def test_many_broken_lines_take_time_in_proportion():
    lines = ['{"results": []}', *['{"a": [1,', "{x"] * 2_000]
    assert len(read(read_speech_services, "\n".join(lines))) == 4_000

"""JSON responses of speech services: several vendors, round trips and invalid input."""

from __future__ import annotations

import gzip
import io
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.registry import detect
from rescorer.formats.speech_services import read_speech_services, speech_services_writer
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import ID, nbest_lists, several, write_truncated_gzip

ALTERNATIVES = [{"transcript": "a b", "confidence": 0.9}, {"transcript": "a"}]
GOOGLE = {
    "results": [{"alternatives": ALTERNATIVES, "languageCode": "en"}, {"alternatives": [{"transcript": ""}]}],
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
    return list(read_speech_services(io.BytesIO(text.encode()), **options))


def test_reads_google_response():
    first, second = read(GOOGLE)
    assert first == NBestList(
        "results[0].alternatives",
        (Hypothesis("a b", {"confidence": 0.9}), Hypothesis("a")),
        fields={"languageCode": "en"},
    )
    assert second == NBestList("results[1].alternatives", (Hypothesis(""),))


def test_reads_azure_response_with_a_choice_of_texts():
    (nbest,) = read(AZURE)
    assert (nbest.id, nbest.fields) == ("NBest", {"RecognitionStatus": "Success"})
    assert nbest.hypotheses == (Hypothesis("a b", {"Confidence": 0.9, "Display": "A B."}),)
    assert [hypothesis.text for hypothesis in read(AZURE, text="Display")[0].hypotheses] == ["A B."]


def test_reads_openai_response():
    (nbest,) = read(OPENAI)
    assert nbest == NBestList("cmpl-1", (Hypothesis("a b"), Hypothesis("a c", {"index": 1})))


WORDS = [
    {"start_time": "0.0", "end_time": "0.3", "alternatives": [{"confidence": "0.9", "content": "a"}]},
    {"start_time": "0.3", "end_time": "0.6", "alternatives": [{"content": "b"}, {"content": "c"}]},
    {"alternatives": [{"confidence": "0.0", "content": "."}], "type": "punctuation"},
]
SEGMENT = {"start_time": "0.0", "alternatives": [{"transcript": "A b.", "items": []}, {"transcript": "A c."}]}
AWS = {"jobName": "j", "results": {"transcripts": [{"transcript": "A b."}], "items": WORDS}, "status": "DONE"}
WATSON = {
    "results": [
        {
            "final": True,
            "word_alternatives": [{"start_time": 0.1, "alternatives": [{"confidence": 0.9, "word": "a"}]}],
            "keywords_result": {"a": [{"normalized_text": "a", "confidence": 0.9}]},
            "alternatives": [{"transcript": "a b ", "confidence": 0.9}, {"transcript": "a c "}],
        }
    ],
    "result_index": 0,
}
DEEPGRAM = {
    "metadata": {"request_id": "r", "channels": 1},
    "results": {
        "channels": [
            {
                "alternatives": [
                    {
                        "transcript": "a b",
                        "confidence": 0.9,
                        "words": [{"word": "a", "start": 0.1}],
                        "paragraphs": {
                            "transcript": "\nA b.",
                            "paragraphs": [{"sentences": [{"text": "A b."}]}],
                        },
                    },
                    {"transcript": "a c", "confidence": 0.5, "words": []},
                ],
                "detected_language": "en",
            }
        ],
        "utterances": [{"start": 0.1, "transcript": "a b", "words": [{"word": "a"}], "id": "x"}],
    },
}
AZURE_BATCH = {
    "source": "u1.wav",
    "combinedRecognizedPhrases": [{"channel": 0, "lexical": "a b", "display": "A b."}],
    "recognizedPhrases": [
        {
            "recognitionStatus": "Success",
            "nBest": [
                {"confidence": 0.9, "lexical": "a b", "itn": "a b", "maskedITN": "a b", "display": "A b."},
                {"confidence": 0.5, "lexical": "a c", "words": [{"word": "a"}]},
            ],
        }
    ],
}
VOSK = {"alternatives": [{"confidence": 297.0, "result": [{"word": "a"}], "text": "a b"}, {"text": "a c"}]}
GSTREAMER = {
    "status": 0,
    "result": {"hypotheses": [{"transcript": "a b"}, {"transcript": "a c"}], "final": True},
}
AWS_SEGMENTS = AWS | {"results": {**AWS["results"], "segments": [SEGMENT]}}
AWS_STREAM = {
    "Transcript": {
        "Results": [
            {"IsPartial": True, "Alternatives": [{"Transcript": "a", "Items": [{"Content": "a"}]}]},
            {"IsPartial": False, "Alternatives": [{"Transcript": "a b"}, {"Transcript": "a c"}]},
        ]
    }
}
DIARIZED = {
    "results": [GOOGLE["results"][0], {"alternatives": [{"words": [{"word": "a", "speakerTag": 1}]}]}]
}
RESPONSES = {
    "google": (GOOGLE, [["a b", "a"], [""]]),
    "google with speakers": (DIARIZED, [["a b", "a"]]),
    "azure": (AZURE, [["a b"]]),
    "azure batch": (AZURE_BATCH, [["a b", "a c"]]),
    "aws with segments": (AWS_SEGMENTS, [["A b.", "A c."]]),
    "aws": (AWS, [["A b."]]),
    "aws streaming": (AWS_STREAM, [["a b", "a c"]]),
    "watson": (WATSON, [["a b ", "a c "]]),
    "deepgram": (DEEPGRAM, [["a b", "a c"]]),
    "vosk": (VOSK, [["a b", "a c"]]),
    "vosk without alternatives": ({"result": [{"conf": 1.0, "word": "a"}], "text": "a"}, [["a"]]),
    "kaldi gstreamer": (GSTREAMER, [["a b", "a c"]]),
    "plain texts": (
        {"alternatives": ["a b", "a c"], "x": {"word": "b", "alternatives": ["c"]}},
        [["a b", "a c"]],
    ),
    "openai": (OPENAI, [["a b", "a c"]]),
    "dialogue logs": (LOGS, [["a b", "a"]]),
}
"""What each service writes, and the texts of its lists."""


def decorate(document: object, draw) -> str:
    """Write a document as another program may: keys in another order, more of them, other white space."""
    if isinstance(document, dict):
        members = draw(st.permutations(list(document.items())))
        members = [(key, json.loads(decorate(value, draw))) for key, value in members]
        document = dict([*members, *draw(st.sampled_from([[], [("x-extra", {"y": [1]})]]))])
    elif isinstance(document, list):
        document = [json.loads(decorate(value, draw)) for value in document]
    return json.dumps(document, indent=draw(st.sampled_from([None, 1, 4])), ensure_ascii=draw(st.booleans()))


@pytest.mark.parametrize("name", RESPONSES)
@settings(max_examples=15)
@given(data=st.data())
def test_detects_and_reads_decorated_responses(name, data):
    document, expected = RESPONSES[name]
    text = decorate(document, data.draw)
    text = data.draw(st.sampled_from(["", "\ufeff", "\n \n"])) + text + data.draw(st.sampled_from(["", "\n"]))
    text = text.replace("\n", data.draw(st.sampled_from(["\n", "\r\n"])))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "u1"
        path.write_bytes(text.encode())
        assert detect(path)[0] == "alternatives"
        found = [[h.text for h in nbest.hypotheses] for nbest in read_speech_services(path)]
    assert sorted(found) == sorted(expected)


INTERIM = [
    {"results": [{"alternatives": [{"transcript": "a"}], "stability": 0.9}]},
    {"results": [{"alternatives": [{"transcript": "a"}], "isFinal": False}]},
    {"results": [{"alternatives": [{"transcript": "a"}], "final": False}]},
    {"type": "Results", "is_final": False, "channel": {"alternatives": [{"transcript": "a"}]}},
    {"partial": "a", "partial_result": [{"word": "a"}]},
    {"result": {"hypotheses": [{"transcript": "a"}], "final": False}},
]


@pytest.mark.parametrize("document", INTERIM)
@pytest.mark.parametrize("indent", [None, 1])
def test_interim_results_are_no_lists(document, indent):
    text = "\n".join(json.dumps(part, indent=indent) for part in (document, VOSK, document))
    (nbest,) = read(text)
    assert [hypothesis.text for hypothesis in nbest.hypotheses] == ["a b", "a c"]
    final = json.loads(json.dumps(document).replace("false", "true").replace('"stability"', '"other"'))
    assert len(read(final)) == ("partial" not in document)


def test_reads_confidences_as_probabilities_also_from_text():
    document = {"NBest": [{"Lexical": "a", "Confidence": "0.5"}, {"Lexical": "b", "Confidence": 0.25}]}
    (nbest,) = read(document, score="Confidence", base="prob")
    assert nbest.streams == {"first_pass": (math.log(0.5), math.log(0.25))}


def test_reads_scores_only_with_base_and_sign():
    (without_scores,) = read(LOGS)
    assert without_scores.streams == {}
    assert without_scores.hypotheses[0].fields == {"score": -45.5}
    (with_scores,) = read(LOGS, score="score", base="10", sign="cost")
    assert with_scores.id == "[0][0].nbest"
    assert with_scores.streams == {"first_pass": pytest.approx((45.5 * math.log(10), 46 * math.log(10)))}
    assert with_scores.hypotheses == (Hypothesis("a b"), Hypothesis("a"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "score"}, "a score and its base must be given together"),
        ({"base": "e"}, "a score and its base must be given together"),
        ({"score": "score", "base": "7"}, "base is '7'"),
        ({"score": "score", "base": "e", "sign": "up"}, "sign is 'up'"),
    ],
)
def test_rejects_incomplete_or_unknown_units(options, message):
    with pytest.raises(ConfigError, match=message):
        read(LOGS, **options)


def test_reads_one_document_per_line_and_skips_invalid_lines():
    lines = [json.dumps(AZURE), "", "{broken", json.dumps(OPENAI), json.dumps(OPENAI), '{"a": "\xff"}']
    data = "\ufeff".encode() + "\r\n".join(lines).encode("latin-1")
    azure, broken, openai, duplicate, not_text = read_speech_services(io.BytesIO(gzip.compress(data)))
    assert (azure.id, openai.id) == ("1.NBest", "cmpl-1")
    assert "<stream>:3: not JSON" in str(broken)
    assert "<stream>:5, list 'cmpl-1': duplicate id" in str(duplicate)
    assert "<stream>:6: not UTF-8" in str(not_text)


IDS = ID | st.just("an id with spaces ü")
REFERENCES = st.none() | st.sampled_from(["", "a b"])
FIELDS = st.dictionaries(st.sampled_from(["note", "speaker"]), st.none() | st.integers() | st.text("ab"))


@given(
    several(nbest_lists(["first_pass"], ids=IDS, fields=lambda text: {"confidence": len(text)})), st.data()
)
def test_round_trip(lists, data):
    lists = [replace(nbest, fields=data.draw(FIELDS), reference=data.draw(REFERENCES)) for nbest in lists]
    with tempfile.TemporaryDirectory() as folder:
        with speech_services_writer(Path(folder) / "out.json.gz") as write:
            for nbest in lists:
                write(nbest)
        assert list(read_speech_services(Path(folder) / "out.json.gz", score="score", base="e")) == lists


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (3, "list 'NBest', hypothesis 1: expected an object, got a number"),
        (
            {},
            "message: no text in transcript, Transcript, Lexical, lexical, text, hyp; expected a string",
        ),
        ({"hyp": 3}, "hypothesis 1, hyp: no text in"),
        ({"message": {"content": None}}, "hypothesis 1, message: no text in"),
        ({"hyp": "a"}, "hypothesis 1, first_pass: no score, though other hypotheses"),
        ({"hyp": "a", "score": math.nan}, "hypothesis 1, first_pass: the score is nan"),
        ({"hyp": "a", "score": "tensor(-12.9)"}, "hypothesis 1, first_pass: 'tensor(-12.9)' is not a number"),
    ],
)
def test_yields_error_for_invalid_list_and_reads_on(item, message):
    document = {"NBest": [{"hyp": "a", "score": -1}, item], "more": {"nbest": [{"hyp": "b", "score": -1}]}}
    error, valid = read(document, score="score", base="e")
    assert isinstance(error, InvalidList)
    assert message in str(error)
    assert valid.id == "more.nbest"


def test_rejects_empty_list_and_ignores_other_values_of_its_key():
    (error,) = read({"alternatives": [], "config": {"alternatives": 3}})
    assert "list 'alternatives': no hypotheses; expected at least one" in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "<stream>: not JSON"),
        ('{\n"NBest": [', "<stream>:2: not JSON"),
        ("[" * 200_000, "cannot parse JSON"),
        ('{\n"a": 1, "a": 2}', "duplicate key 'a' in an object"),
    ],
)
def test_rejects_file_that_is_not_json(text, message):
    with pytest.raises(FormatError) as caught:
        read(text)
    assert message.removeprefix("<stream>: ") in str(caught.value)


def test_rejects_truncated_file(tmp_path):
    write_truncated_gzip(tmp_path / "a.json.gz", "{\n")
    with pytest.raises(FormatError, match="damaged gzip data"):
        list(read_speech_services(tmp_path / "a.json.gz"))


def test_writer_rejects_lists_that_a_document_cannot_hold(tmp_path):
    valid, scored = NBestList("u1", (Hypothesis("a"),)), Hypothesis("a", {"score": 1})
    with speech_services_writer(tmp_path / "out.json") as write:
        write(valid)
        for nbest, message in (
            (valid, "id: already written; expected each id once"),
            (replace(valid, id="u2", fields={"nbest": 1}), "nbest, choices, utterance_id are reserved"),
            (replace(valid, id="u2", hypotheses=(scored,)), "the names transcript and score are reserved"),
        ):
            with pytest.raises(InvalidList, match=message):
                write(nbest)
    assert list(read_speech_services(tmp_path / "out.json")) == [valid]


@pytest.mark.data
def test_reads_every_list_of_real_logs(data_dir):
    path = data_dir / "nbest" / "dstc10" / "logs-no-references.json"
    lists = list(read_speech_services(path, score="score", base="e"))
    assert all(isinstance(nbest, NBestList) and list(nbest.streams) == ["first_pass"] for nbest in lists)
    assert len(lists) == 1376
    distinct = {(tuple(h.text for h in nbest.hypotheses), nbest.streams["first_pass"]) for nbest in lists}
    assert len(distinct) == 689  # most lists were logged twice


def test_reads_folder_with_one_file_per_utterance(tmp_path):
    (tmp_path / "u2.json.gz").write_bytes(gzip.compress(json.dumps(OPENAI).encode()))
    (tmp_path / "u1.json").write_text(json.dumps(AZURE, indent=1))
    (tmp_path / "u3.json").write_text(json.dumps(GOOGLE))
    (tmp_path / "u4.json").write_text("{broken")
    (tmp_path / "u5.json").write_text("{}")
    (tmp_path / "u6.json").write_text('{\n"NBest": [{"hyp": "a"}, 3]}')
    (tmp_path / "README").write_text("not a response")
    azure, openai, first, second, broken, no_lists, error = read_speech_services(tmp_path)
    assert (azure.id, azure.fields) == ("u1", {"RecognitionStatus": "Success"})
    assert (openai.id, openai.fields) == ("u2", {"id": "cmpl-1"})
    assert (first.id, second.id) == ("u3.1.results[0].alternatives", "u3.1.results[1].alternatives")
    assert "u4.json:1: not JSON" in str(broken)
    assert "u5.json: no lists; expected an array named alternatives or NBest" in str(no_lists)
    assert "u6.json, list 'u6', hypothesis 1: expected an object, got a number" in str(error)
    with speech_services_writer(tmp_path / "out") as write:
        write(openai)
    assert list(read_speech_services(tmp_path / "out")) == [openai]


def test_rejects_duplicate_id_in_folder(tmp_path):
    (tmp_path / "u1.json").write_text(json.dumps(AZURE))
    (tmp_path / "u1.json.gz").write_bytes(gzip.compress(json.dumps(AZURE).encode()))
    valid, error = read_speech_services(tmp_path)
    assert valid.id == "u1"
    assert "u1.json.gz: duplicate id 'u1'" in str(error)


def test_ids_under_other_keys_are_fields():
    (nbest,) = read({"requestId": "77", "id": "u1", "nbest": [{"hyp": "a"}]})
    assert (nbest.id, nbest.fields) == ("u1", {"requestId": "77"})


def test_lists_in_arrays_come_before_the_other_lists_of_a_document():
    document = {
        "NBest": [{"hyp": "a"}],
        "parts": [{"nbest": [{"hyp": "b"}]}, 3],
        "more": {"nbest": [{"hyp": "c"}]},
    }
    lists = read(document)
    assert [nbest.id for nbest in lists] == ["parts[0].nbest", "NBest", "more.nbest"]
    assert lists[1].fields == {"parts": [3], "more": document["more"]}


def test_reads_lists_before_a_syntax_error():
    first, second, error = read(json.dumps([AZURE, AZURE], indent=1)[:-1] + "; ")
    assert (first.id, second.id) == ("[0].NBest", "[1].NBest")
    assert isinstance(error, FormatError)
    assert "not JSON: Expecting ',' delimiter" in str(error)

"""Incremental parsing gives the same values and errors as Python's json, in the memory of one value."""

from __future__ import annotations

import io
import json
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rescorer.errors import FormatError
from rescorer.formats.io import json_io
from rescorer.formats.io.json_io import JsonStream
from rescorer.formats.io.text_io import read_text_chunks
from rescorer.formats.registry import FORMATS

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("😀"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def open_chunked(text: str, size: int) -> JsonStream:
    return JsonStream((text[start : start + size] for start in range(0, len(text), size)), "a.json")


def walk(document: JsonStream, depth: int) -> object:
    """Read the next value, with its outermost ``depth`` arrays and objects element by element."""
    if depth and document.peek() == "[":
        return [walk(document, depth - 1) for _ in document.read_elements()]
    if depth and document.peek() == "{":
        return {key: walk(document, depth - 1) for key in document.read_members()}
    return document.read_value()


def parse_chunked(text: str, size: int, depth: int) -> str:
    """Parse a text in chunks of ``size`` characters; return the value as text, or the error message."""
    document = open_chunked(text, size)
    try:
        value = walk(document, depth)
        document.expect_end()
    except FormatError as error:
        return str(error)
    return repr(value)


@pytest.fixture(autouse=True)
def use_short_chunks(monkeypatch):
    monkeypatch.setattr(json_io, "CHUNK_CHARACTERS", 1)


@pytest.mark.slow
@given(VALUES, st.booleans(), st.none() | st.just(1), st.integers(1, 40), st.integers(0, 3))
def test_value_does_not_depend_on_chunks(value, ascii_only, indent, size, depth):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    if not isinstance(value, str) or value.encode("utf-8", "ignore").decode() == value:
        assert parse_chunked(text, size, depth) == repr(json.loads(text))


@given(VALUES, st.data())
def test_error_has_the_place_that_json_reports(value, data):
    text = json.dumps(value, indent=1, ensure_ascii=False)
    position = data.draw(st.integers(0, len(text)))
    text = (
        text[:position]
        + data.draw(st.sampled_from(["", "x", ",", "]", '"', "\\", ":", "\n"]))
        + text[position + 1 :]
    )
    found = parse_chunked(text, data.draw(st.integers(1, 40)), 0)
    if repeats_a_key(text):  # without the character that told two keys apart
        assert "duplicate key" in found or "not JSON" in found
    else:
        assert found == parse_with_json(text)


def repeats_a_key(text: str) -> bool:
    """Whether an object has a key twice, before the first error if there is one."""
    repeats = []

    def look(pairs):
        repeats.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    with suppress(json.JSONDecodeError):
        json.loads(text, object_pairs_hook=look)
    return any(repeats)


@example({"": None, "0": None}, 15)
@given(VALUES, st.integers(0, 40))
def test_repeated_keys_are_refused(value, position):
    text = json.dumps(value, indent=1, ensure_ascii=False)
    text = text[:position] + text[position + 1 :]
    found = parse_chunked(text, 1, 0)
    assert not repeats_a_key(text) or "duplicate key" in found or "not JSON" in found


def parse_with_json(text: str) -> str:
    try:
        return repr(json.loads(text))
    except json.JSONDecodeError as error:
        return f"a.json:{error.lineno}: not JSON: {error.msg} at column {error.colno}"


@pytest.mark.parametrize("number", ["12345", "-0.5e-3", "-Infinity", "NaN", "123456789012345678901234567890"])
def test_does_not_split_numbers(number):
    assert parse_chunked(f'{{"a": {number}}}', 1, 1) == repr({"a": json.loads(number)})
    assert parse_chunked(number, 1, 1) == repr(json.loads(number))


def test_rejects_text_that_is_not_utf8_with_line():
    with pytest.raises(FormatError, match=r"<stream>:3: not UTF-8: invalid start byte"):
        list(read_text_chunks(io.BytesIO(b'{"a": 1,\n\n"\xff"}')))
    with pytest.raises(FormatError, match=r"<stream>:2: not UTF-8: unexpected end of data"):
        list(read_text_chunks(io.BytesIO(b'{"a": 1,\n"\xc3')))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "indent"), [("mlm", None), ("mlm", 1), ("alternatives", 1), ("jsonl", 1)])
def test_needs_memory_of_one_list_only(name, indent, tmp_path, monkeypatch):
    monkeypatch.undo()
    hypotheses = {f"hyp_{n}": {"text": "a b c d e f g h " * 20, "score": -n} for n in range(1, 20)}
    lists = {f"u{n}": hypotheses for n in range(1_000)}
    if name == "alternatives":
        lists = {"results": [{"id": key, "alternatives": [*hypotheses.values()]} for key in lists]}
    elif name == "jsonl":
        lists = [{"id": key, "hypotheses": [*hypotheses.values()]} for key in lists]
    path = tmp_path / "lists.json"
    with path.open("w") as file:
        json.dump(lists, file, indent=indent)
    del lists
    tracemalloc.start()
    try:
        assert sum(1 for _ in FORMATS[name].read(path)) == 1_000
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 4
    finally:
        tracemalloc.stop()


NUMBERS = st.sampled_from(
    [
        "-0",
        "1e400",
        "NaN",
        "-Infinity",
        "18446744073709551616",
        "-9223372036854775809",
        "1.5e-400",
        "01",
        "9" * 400,
    ]
)
STRINGS = st.sampled_from(
    ['"\\ud800"', '"\\ud83d\\ude00"', '"\t"', '"\\u0000"', '"ü"', '"\ud800"', "tru", "null", ""]
)
VALUES = st.recursive(
    NUMBERS | STRINGS | (st.integers() | st.floats() | st.text(max_size=3)).map(json.dumps),
    lambda values: (
        st.lists(values, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | st.lists(values, max_size=3).map(
            lambda parts: "{" + ", ".join(f'"a": {part}' for part in parts) + "}"
        )
    ),
    max_leaves=6,
)


@given(VALUES, st.sampled_from([0, 1, 9]))
@example("1", 250)
@example('"' + "9" * 19 + '"', 0)
@example("[" * 100 + "1" + "]" * 100, 1)
@settings(max_examples=50)
def test_lines_are_parsed_as_json_parses_them(text, depth):
    text = "[" * depth + text + "]" * depth

    def parse(**options):
        try:
            return repr(json_io.parse_value(text, "f", 1, **options))
        except FormatError as error:
            return error.message

    assert parse() == parse(build=dict)

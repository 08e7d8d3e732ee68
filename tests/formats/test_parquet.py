"""Tables of lists: both layouts give what JSON lines give; errors name file, row and column."""

from __future__ import annotations

import datetime
import decimal
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats import jsonlines, parquet
from rescorer.formats.fields import parse_field_map
from rescorer.formats.io.text_io import MAX_LINE_VARIABLE
from rescorer.formats.parquet import BATCH_ROWS, read_lists, writer
from rescorer.formats.registry import detect
from rescorer.types import Hypothesis, NBestList, Phrase, Utterance
from tests.support.list_strategies import nbest_lists, several
from tests.support.tables import write_table, write_texts

FLOATS = pa.list_(pa.float64())


@pytest.mark.parametrize("part", [b"extra", b"hypotheses", b"element"])
def test_names_that_are_not_utf8_are_an_error_or_ignored(tmp_path, part):
    """A name stands in the schema, and again, without use, at each part of a column."""
    table = pa.table({"id": ["a"], "hypotheses": [["x y"]], "extra": ["z"]})
    pq.write_table(table, tmp_path / "sound.parquet", store_schema=False)
    content = (tmp_path / "sound.parquet").read_bytes()
    first = content.index(part)
    for start in (first, content.index(part, first + 1)):
        damaged = content[: start + 2] + b"\xff" + content[start + 3 :]
        (tmp_path / "damaged.parquet").write_bytes(damaged)
        if start == first:
            with pytest.raises(
                FormatError, match=r"damaged\.parquet: has the name of a column that is not UTF-8"
            ):
                list(read_lists(str(tmp_path / "damaged.parquet")))
        else:
            assert list(read_lists(str(tmp_path / "damaged.parquet"))) == list(
                read_lists(str(tmp_path / "sound.parquet"))
            )


@given(several(nbest_lists(streams=("acoustic", "lm"), references=True)), st.booleans())
@settings(max_examples=40)
def test_both_layouts_give_what_json_lines_give(lists, is_large):
    """The slow twin writes JSON lines and reads them."""
    with tempfile.TemporaryDirectory() as folder:
        names = [Path(folder) / name for name in ("objects.parquet", "arrays.parquet", "lists.jsonl")]
        with writer(names[0]) as write, jsonlines.writer(names[2]) as write_line:
            for nbest in lists:
                write(nbest)
                write_line(nbest)
        text = pa.large_string() if is_large else pa.string()
        texts = [[hypothesis.text for hypothesis in nbest.hypotheses] for nbest in lists]
        columns = {
            "id": pa.array([nbest.id for nbest in lists], text),
            "texts": pa.array(texts, pa.large_list(text) if is_large else pa.list_(text)),
            "reference": pa.array([nbest.reference for nbest in lists], text),
            "acoustic": pa.array([nbest.streams["acoustic"] for nbest in lists], FLOATS),
            "scores": pa.array([{"lm": nbest.streams["lm"]} for nbest in lists], pa.struct({"lm": FLOATS})),
        }
        write_table(names[1], columns, row_group_size=1)
        expected = list(jsonlines.read_lists(names[2]))
        assert expected == lists
        assert list(read_lists(names[0])) == expected
        assert list(read_lists(names[1])) == expected


def test_holds_all_but_fields(tmp_path):
    nbest = NBestList(
        "u1",
        (Hypothesis("a b"), Hypothesis("")),
        {"acoustic": (-1.5, -2.5)},
        context="so",
        group="ann",
        previous=(Utterance("well", "bob", 0.5), Utterance("yes")),
        phrases=(Phrase("Ann Lee", 2.0, ("an lee",)), Phrase("Bob"), Phrase("Cy", slot="$name")),
    )
    with writer(tmp_path / "a") as write:
        write(nbest)
    assert list(read_lists(tmp_path / "a")) == [nbest]
    assert detect(tmp_path / "a") == ("parquet", "its first bytes are PAR1")


def test_names_of_columns_and_units_can_be_given(tmp_path):
    columns = {
        "utt": [7, 8],
        "nbest": [["a", "b"], ["c"]],
        "am": [[-1, -2], [-3]],
        "cost": pa.array([[1.0, 2.0], [3.0]], pa.list_(pa.float32())),
        "embedding": [[0.5, 0.5, 0.5]] * 2,
    }
    names = parse_field_map(["id=utt,hypotheses=nbest"], ["acoustic=am", "lm=cost:e:cost"])
    first, second = read_lists(write_table(tmp_path / "a", columns), names)
    assert (first.id, [h.text for h in first.hypotheses]) == ("7", ["a", "b"])
    assert first.streams == {"acoustic": (-1.0, -2.0), "lm": (-1.0, -2.0)}
    assert second.fields == {"embedding": [0.5, 0.5, 0.5]}
    structs = [[{"words": "a", "am": -1.0, "times": None, "rank": 1}], [{"words": "b", "am": -2.0}]]
    names = parse_field_map(["text=words,id="], ["acoustic=am"])
    first, second = read_lists(write_table(tmp_path / "b", {"hypotheses": structs}), names)
    assert (first.id, first.streams) == ("1", {"acoustic": (-1.0,)})
    assert first.hypotheses == (Hypothesis("a", {"rank": 1}),)


def test_keeps_columns_that_json_can_hold(tmp_path):
    when = datetime.datetime(2026, 11, 1, 12, 30)
    columns = {
        "id": ["u1"],
        "hypotheses": [["a"]],
        "day": [when.date()],
        "time": pa.array([when], pa.timestamp("ns")),
        "price": [decimal.Decimal("1.5")],
        "labels": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())),
        "speaker": pa.array(["ann"]).dictionary_encode(),
        "nothing": pa.array([None], pa.string()),
        "zoned": pa.array([when], pa.timestamp("us", "No/Such_Zone")),
        "far": pa.array([10**7], pa.int32()).cast(pa.date32()),
        "audio": [{"bytes": b"RIFF", "path": "a.wav"}],
        "twice": pa.StructArray.from_arrays([[1], [2]], names=["same", "same"]),
    }
    (nbest,) = read_lists(write_table(tmp_path / "a", columns))
    assert nbest.fields == {
        "day": "2026-11-01",
        "time": "2026-11-01 12:30:00.000000000",
        "zoned": "2026-11-01 12:30:00.000000Z",
        "far": "29349-01-26",
        "price": 1.5,
        "labels": {"x": 1},
        "speaker": "ann",
    }
    json.dumps(nbest.fields)


def test_errors_name_file_row_and_column(tmp_path):
    columns = {
        "id": ["a", "b", "c", "d", None, "f"],
        "texts": [["x", "y"], ["x", "y"], ["x", None], [], ["x"], None],
        "am": [[-1.0], [-1.0, float("nan")], [-1.0, -1.0], [], [-1.0], [-1.0]],
    }
    errors = list(read_lists(write_table(tmp_path / "t.parquet", columns)))
    for row, (error, message) in enumerate(
        zip(
            errors,
            (
                "list 'a', am: 1 scores for 2 texts; expected one each. If these are not scores, name the "
                "columns that are with --stream",
                "list 'b', hypothesis 1, scores[\"am\"]: the score is nan; expected a finite number",
                "list 'c', hypothesis 1, text: expected a string, got nothing",
                "list 'd', hypotheses: expected a non-empty array, got an empty array",
                "list '', id: expected a non-empty string, got nothing",
                "list 'f', hypotheses: missing",
            ),
            strict=True,
        ),
        1,
    ):
        assert isinstance(error, InvalidList)
        assert f"t.parquet:{row}, {message}" in str(error)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"am": -1.0}, 'scores["am"]: expected an array of scores, one per text'),
        ([{"am": -1.0}], "scores: expected a struct or map of arrays beside an array of texts"),
    ],
)
def test_rejects_scores_that_are_not_arrays_beside_texts(scores, message, tmp_path):
    (error,) = read_lists(write_table(tmp_path / "a", {"id": ["u1"], "texts": [["x"]], "scores": [scores]}))
    assert f"a:1, list 'u1', {message}" in str(error)


@pytest.mark.parametrize(
    "texts",
    [
        pa.array([["a", "b"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        pa.array([["a", "b"]], pa.list_view(pa.string())),
        pa.array([["a", "b"]], pa.list_(pa.string_view())),
    ],
)
def test_reads_lists_of_all_kinds(texts, tmp_path):
    scores = pa.array([[decimal.Decimal("-1.5"), decimal.Decimal("-2.5")]])
    (nbest,) = read_lists(write_table(tmp_path / "a", {"id": ["u1"], "texts": texts, "am": scores}))
    assert nbest == NBestList("u1", (Hypothesis("a"), Hypothesis("b")), {"am": (-1.5, -2.5)})


def test_rejects_alone_what_python_cannot_hold(tmp_path):
    days = pa.array([[1], [10**8], [2]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    columns = {"id": ["a", "b", "c"], "texts": [["x"]] * 3, "days": days}
    first, error, last = read_lists(write_table(tmp_path / "a", columns))
    assert (first.fields, last.fields) == ({"days": ["1970-01-02"]}, {"days": ["1970-01-03"]})
    assert "a:2: has a value that cannot be read: date value out of range" in str(error)


@pytest.mark.parametrize("value", ["tensor(-12.9)", None])
def test_handles_odd_scores_ids_and_duplicates_as_documented(value, tmp_path):
    hypotheses = [[{"text": "a", "scores": {"am": value}}, {"text": "b", "scores": {"am": value}}]] * 2
    found = list(read_lists(write_table(tmp_path / "a", {"id": ["u 1", "u 1"], "hypotheses": hypotheses})))
    if value is None:
        assert [(item.id, item.streams) for item in found] == [("u 1", {})] * 2
    else:
        assert all("'tensor(-12.9)' is not a number" in str(error) for error in found)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"id": [b"u1"], "texts": [["a"]]},
            "id: the column has the type binary, which no field of lists has",
        ),
        ({"id": ["u1"], "hypotheses": [[b"a"]]}, r"hypotheses: the column has the type list<"),
        ({"id": ["u1"], "texts": ["a"]}, "texts: the column has the type string; expected a list of texts"),
        ({"utt": ["u1"], "texts": [["a"]]}, r"id: there is no such column; .* \(columns: utt, texts\)"),
        (
            {"id": ["u1"], "nbest": [["a"]]},
            "hypotheses: there is no such column; give --map hypotheses=COLUMN",
        ),
        ({}, r"id: there is no such column; .* \(columns: none\)"),
    ],
)
def test_says_which_column_is_missing_or_has_a_type_that_it_cannot_have(columns, message, tmp_path):
    with pytest.raises(FormatError, match=message):
        list(read_lists(write_table(tmp_path / "a", columns)))


def test_damage_ends_a_row_group_and_not_the_file(tmp_path):
    path = write_texts(tmp_path / "a", 9, row_group_size=3, compression="gzip", use_dictionary=False)
    content = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[start : start + 12] = b"\xff" * 12
    path.write_bytes(content)
    *found, error = sorted(read_lists(path), key=lambda item: isinstance(item, InputError))
    assert [item.id for item in found] == ["u0", "u1", "u2", "u6", "u7", "u8"]
    assert "a:4: damaged data in row group 1: " in str(error)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 100, b"\0" * 100])
def test_rejects_what_is_no_parquet(content, tmp_path):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(FormatError, match="a: is not a parquet file: "):
        list(read_lists(tmp_path / "a"))


def test_rejects_bytes_that_are_not_utf8_and_long_rows_alone(tmp_path, monkeypatch):
    raw = pa.array([b"u0", b"u\xff1", b"u2"]).view(pa.string())
    texts = [["a"], ["a"], ["a " * 2000]]
    path = write_table(tmp_path / "a", {"id": raw, "texts": texts})
    assert [type(item) for item in read_lists(path)] == [NBestList, FormatError, NBestList]
    assert "a:2: not UTF-8" in str(list(read_lists(path))[1])
    monkeypatch.setenv(MAX_LINE_VARIABLE, "1000")
    assert "a:3: longer than 1000 bytes" in str(list(read_lists(path))[2])
    assert [type(item) for item in read_lists(path)] == [NBestList, FormatError, FormatError]


def test_reads_few_rows_at_a_time(tmp_path, monkeypatch):
    path, sizes = write_texts(tmp_path / "a", 200), []
    parse = parquet._RowReader.parse_batch

    def count(reader, batch, first_row):
        sizes.append(batch.num_rows)
        return parse(reader, batch, first_row)

    monkeypatch.setattr(parquet._RowReader, "parse_batch", count)
    assert len(list(read_lists(path))) == 200
    assert max(sizes) <= BATCH_ROWS
    monkeypatch.setenv(MAX_LINE_VARIABLE, "1000")  # about as many bytes as are read at a time
    sizes.clear()
    assert len(list(read_lists(path))) == 200
    assert max(sizes) < BATCH_ROWS


def test_row_groups_of_long_lists_have_fewer_rows(tmp_path, monkeypatch):
    lists = [
        NBestList(f"u{i}", (Hypothesis("a" * 100),) * (1 + i), {"s": (0.5,) * (1 + i)}) for i in range(12)
    ]
    monkeypatch.setattr(parquet, "GROUP_BYTES", 3000)
    with parquet.writer(tmp_path / "out") as write:
        for nbest in lists:
            write(nbest)
    metadata = pq.ParquetFile(tmp_path / "out").metadata
    rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert (rows[0] > rows[-2], sum(rows)) == (True, 12)
    assert [nbest.id for nbest in parquet.read_lists(tmp_path / "out")] == [nbest.id for nbest in lists]

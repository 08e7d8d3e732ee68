"""Tables of hypotheses: what their columns hold, quoted and unquoted cells, and what is refused."""

from __future__ import annotations

import csv
import io
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.cli import app
from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.formats import delimited
from rescorer.formats.fields import parse_field_map
from rescorer.formats.io.text_io import open_output
from rescorer.formats.registry import choose, detect
from rescorer.formats.table_layout import DELIMITERS, MAX_CELL_CHARACTERS, MAX_COLUMNS, join_cells, parse_rows
from rescorer.types import Hypothesis, NBestList


def read(table: str, **options) -> list:
    return list(delimited.read_lists(io.BytesIO(table.encode()), **options))


def show(lists: list) -> list:
    """Ids with their texts and the first stream; errors as text."""
    return [
        str(item)
        if isinstance(item, InputError)
        else (item.id, [hypothesis.text for hypothesis in item.hypotheses], *item.streams.values())
        for item in lists
    ]


TWO_LISTS = [("u1", ["two, be", "to be"], (-3.0, -4.0)), ("u2", ["x"], (-1.0,))]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('id,text,score\nu1,"two, be",-3\nu1,to be,-4\nu2,x,-1\n', {}),
        ("hyp\tutt\tlogprob\ntwo, be\tu1\t-3\nto be\tu1\t-4\nx\tu2\t-1\n", {}),
        ("Audio File;Transcript;Score\nu1;two, be;-3\nu1;to be;-4\n\nu2;x;-1\n", {}),
        ("u1\ttwo, be\t-3\nu1\tto be\t-4\nu2\tx\t-1\n", {}),
        ("u1\t-3\ttwo, be\nu1\t-4\tto be\nu2\t-1\tx\n", {}),
        ("utt|text|rank|cost\nu1|to be|2|4\nu1|two, be|1|3\nu2|x|1|1\n", {}),
        ('u1,3,"two, be"\nu1,4,to be\nu2,1,x\n', {"id": "1", "text": "3", "score": "2", "sign": "cost"}),
        ('a,b,c\n-3,"two, be",u1\n-4,to be,u1\n-1,x,u2\n', {"id": "c", "text": "b", "score": "a"}),
        (
            '{"utt": "u1", "hyp": "two, be", "score": -3}\n{"hyp": "to be", "utt": "u1", "score": -4.0}\n'
            '{"utt": "u2", "hyp": "x", "score": -1}\n',
            {},
        ),
        ('id,text,score\nu1,"two, be",-3\nu1,to be,-4\nid,text,score\nu2,x,-1\n', {}),
    ],
)
def test_finds_columns_by_header_content_or_options(text, options):
    for variant in (text, "\ufeff" + text.replace("\n", "\r\n"), text + "\n\n"):
        assert show(read(variant, **options)) == TWO_LISTS


def test_columns_of_scores_become_streams_in_the_units_that_are_declared():
    (nbest,) = read("id,text,am,lm\nu1,a,-3,-1\nu1,b,-4,-2\n")
    assert nbest.streams == {"am": (-3.0, -4.0), "lm": (-1.0, -2.0)}
    (nbest,) = read("id,text,am,lm,x\nu1,a,-3,-1,5\n", score="am+lm", base="10")
    assert nbest.streams["lm"] == pytest.approx((-math.log(10),))
    assert nbest.hypotheses[0].fields == {"x": 5}
    (nbest,) = read("id,text,confidence\nu1,a,0.5\n")
    assert nbest.streams == {"first_pass": (math.log(0.5),)}
    (nbest,) = read("id,text,odds\nu1,a,0.5\n", score="odds", base="prob")
    assert nbest.streams == {"first_pass": (math.log(0.5),)}
    (nbest,) = read("u1\ta\t0.5\n", base="prob")
    assert nbest.streams == {"first_pass": (math.log(0.5),)}
    for columns in ({"score": "2"}, {"text": "3"}, {"id": "1", "score": "2"}):
        (nbest,) = read("u1\t1\ta\n", base="10", **columns)
        assert (nbest.id, nbest.streams) == ("u1", {"first_pass": (math.log(10),)})
    names = parse_field_map(["text=hyp"], ["acoustic=x:10:cost"])
    (nbest,) = read("utt,hyp,x\nu1,a,1\n", names=names)
    assert (nbest.id, nbest.streams) == ("u1", {"acoustic": (-math.log(10),)})
    (error,) = read("id,text,confidence\nu1,a,297\n")
    assert "297.0 is not a probability" in str(error)


def test_references_and_groups_are_those_of_all_rows():
    (nbest,) = read("id,text,ref,speaker\nu1,a,the sea,ann\nu1,b,,\n")
    assert (nbest.reference, nbest.group) == ("the sea", "ann")
    (error,) = read("id,text,ref\nu1,a,the sea\nu1,b,the c\n")
    assert "different texts here: 'the sea' and 'the c'" in str(error)
    pairs = read("reference,hypothesis\nthe sea,the c\nbye,bye\n")
    assert [(nbest.id, nbest.reference) for nbest in pairs] == [("1", "the sea"), ("2", "bye")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("audio_filepath,text,pred_text\na,b,c\n", "'text' and 'pred_text' could each be the text"),
        ("file,start,end,text\na.wav,0,1,hi\n", "'file' may be the id of several segments"),
        ("file,audio,text\na,b,c\n", "'file' and 'audio' could each be the id"),
        ("text,score\na,-1\n", "no column is the id of a list"),
        ("id,speaker\na,b\n", "no column is the text"),
        ("sid\twords\nu1\ta b\nu2\tc d\n", "the first row may be a header"),
        ("u1\t-1\t-2\nu1\t-2\t-3\n", "its columns cannot be guessed"),
        ("two words\tto be\t-3\n", "its columns cannot be guessed"),
        ("u1\ta\tb\t-3\n", "its columns cannot be guessed"),
        ("-3\ta b\tc d\n", "its columns cannot be guessed"),
        ("-3.5\tto be\n-4\tor not\n", "its columns cannot be guessed"),
        ("id,text,text\nu1,a,b\n", "two columns of the table are called 'text'"),
    ],
)
def test_refuses_what_could_be_read_in_two_ways(text, problem):
    with pytest.raises(FormatError) as raised:
        read(text)
    assert problem in str(raised.value)
    assert "--format table:" in str(raised.value) or "are called" in problem


def test_says_which_columns_there_are():
    with pytest.raises(ConfigError, match=r"text='hyps': .*'utt', 'hyp'; did you mean 'hyp'"):
        read("utt,hyp\nu1,a\n", text="hyps")
    with pytest.raises(ConfigError, match=r"score='4': .* its columns: 1 to 3"):
        read("u1\ta\t-1\n", id="1", text="2", score="4")
    with pytest.raises(ConfigError, match="one column of the table twice"):
        read("u1\ta\t-1\n", id="1", text="2", score="2")
    with pytest.raises(ConfigError, match="table: base is '3'"):
        read("", base="3")
    with pytest.raises(ConfigError, match="both name a column"):
        read("utt,hyp\nu1,a\n", text="hyp", names=parse_field_map(["text=utt"]))
    notes: list[str] = []
    read("utt,hyp,confidence,length\nu1,a,0.5,1\n", note=notes.append)
    assert "id=utt, text=hyp, stream first_pass=confidence (probabilities); not read: length" in notes[0]
    read("id,text,scores.am\nu1,a,0.5\n", note=notes.append)
    read("u1\ta\n", note=notes.append)
    assert len(notes) == 1
    read("u1;a;-1\n", note=notes.append, delimiter=";", id="1", text="2")
    assert "id=1, text=2; not read: 3" in notes[1]


def test_errors_stay_with_their_lists():
    text = (
        'id,text,score\nu1,a,-1\nu2,a,b,-1\nu3,"a" b,-1\nu4,"open,-1\nu5,a,much\n'
        "u6,a,\nu6,b,-1\nu7,a,-2\nu1,c,-3\n"
    )
    first, two, three, four, five, six, seven, again = show(read(text))
    assert first == ("u1", ["a"], (-1.0,))
    assert "<stream>:3: expected 3 columns as in the first row, got 4" in two
    assert three == ("u3", ['"a" b'], (-1.0,))
    assert four == ("u4", ['"open'], (-1.0,))
    assert "'much' is not a number" in five
    assert "no score, though other hypotheses of the list have one" in six
    assert seven == ("u7", ["a"], (-2.0,))
    assert "duplicate id: its rows do not follow each other" in again
    assert "sort the table by id" in again


def test_marks_in_unquoted_text_take_no_rows_with_them():
    rows = ['u1\t"well\t-1', 'u2\tdone"\t-2', 'u3\t5" disk\t-3', 'u4\t"all"\t-4', 'u5\t"\t-5', "u6\tx\t-6"]
    texts = ['"well', 'done"', '5" disk', "all", '"', "x"]
    lists = read("\n".join(rows), id="1", text="2", score="3")
    assert show(lists) == [(f"u{n}", [text], (-float(n),)) for n, text in enumerate(texts, start=1)]


def test_bounds_of_rows():
    wide = "id,text\n" + "a," * MAX_COLUMNS + "\nu1,b\n"
    assert [type(item) for item in read(wide)] == [FormatError, NBestList]
    long = "id,text\nu1," + "a" * (MAX_CELL_CHARACTERS + 1) + "\nu2,b\n"
    assert "a cell of more than" in show(read(long))[0]
    unclosed = 'id,text\nu1,"a, b\n' + "u2,c\n" * 3 + '"' * 3 + "\nu9,z\n"
    assert show(read(unclosed))[-1] == ("u9", ["z"])


CELLS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=8
) | st.sampled_from(['"', '""', "\n", "a\nb", ',"', '"\n"', "\t", ";", "", " ", '"a",b\n', '"a', 'b"'])


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=4), st.sampled_from(",;\t|"))
def test_rows_are_read_as_python_writes_them(rows, delimiter):
    rows = [["id", "text", "note"], *([f"u{n}", row[0], row[1]] for n, row in enumerate(rows))]
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter, lineterminator="\n").writerows(rows)
    for text in (stream.getvalue(), "".join(join_cells(row, delimiter) + "\n" for row in rows)):
        lines = enumerate(text.split("\n"), start=1)
        found = [cells for _, cells in parse_rows(lines, delimiter, "f")]
        are_rows = all(line.count(delimiter) == 2 for line in text.split("\n")[:-1])
        assert found == rows or (are_rows and text.count("\n") > len(rows))


STREAMS = st.sampled_from([(), ("first_pass",), ("acoustic", "lm x")])


@given(st.data(), STREAMS, st.sampled_from(["comma", "tab", "semicolon", "pipe"]))
def test_round_trip(data, streams, delimiter):
    lists = []
    for number in range(data.draw(st.integers(1, 3))):
        texts = data.draw(st.lists(CELLS, min_size=1, max_size=3))
        scores = {name: tuple(data.draw(st.floats(-1e6, 1e6)) for _ in texts) for name in streams}
        reference = data.draw(st.none() | CELLS.filter(bool))
        # lines that each have as many delimiters as the header are rows, whatever their quotation marks
        mark = DELIMITERS[delimiter]
        assume(not any("\n" in cell and mark in cell for cell in (*texts, reference or "")))
        list_id = f'u, {number}\t"x"'
        lists.append(
            NBestList(list_id, tuple(map(Hypothesis, texts)), scores, reference=reference, group="g")
        )
    choice = choose(f"table:delimiter={delimiter}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.gz"
        with choice.writer(path) as write:
            for nbest in lists:
                write(nbest)
        assert detect(path)[0] == "table"
        assert list(choice.read(path)) == lists


def test_writer_rejects_what_it_cannot_hold(tmp_path):
    with choose("table").writer(tmp_path / "a.tsv") as write:
        write(NBestList("u1", (Hypothesis("a"),), {"am": (-1.0,)}))
        for nbest, message in (
            (NBestList("u1", (Hypothesis("a"),)), "already written"),
            (NBestList("u2", (Hypothesis("a"),), {"lm": (-1.0,)}), "lm: the first list does not have"),
            (NBestList("u2 ", (Hypothesis("a"),)), "white space around"),
            (NBestList("u2", (Hypothesis("a\r"),)), "carriage return"),
        ):
            with pytest.raises(InputError, match=message):
                write(nbest)
    assert (tmp_path / "a.tsv").read_text() == "id\ttext\tscores.am\treference\tgroup\nu1\ta\t-1.0\t\t\n"
    empty = NBestList("u1", (Hypothesis("a"),), reference="")
    assert choose("table").find_losses(empty) == {"references that are empty"}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("x", "to be\t-3.5\nor not\t-4\n", "nemo"),
        ("x.tsv", "to be\t-3.5\nor not\t-4\n", "nemo"),
        ("x", "u1\tto be\t-3.5\nu1\tor not\t-4\n", "table"),
        ("x", "u1\tto be\nu2\tor not\n", "table"),
        ("x", "u1\tto be\t-3\n" * 10 + "u2\ta\ttab\t-4\n", "table"),
        ("x.CSV.gz", "a,b\n1,2\n", "table"),
        ("x", "u1-0:\tref=['A']\nu1-0:\thyp=['A']\n", "icefall"),
        ("x", "S-1\tx\nH-1\t-1\ty\nP-1\t-1\n", "fairseq"),
        ("x", "a b\t(u1)\n", "trn"),
    ],
)
def test_other_formats_with_tabs_stay_what_they_are(tmp_path, name, text, expected):
    with open_output(tmp_path / name) as stream:
        stream.write(text)
    assert detect(tmp_path / name)[0] == expected


def test_commands_name_columns_and_say_what_they_took_them_for(tmp_path):
    (tmp_path / "t.csv").write_text("utt,hyp,conf,am\nu1,two be,0.5,-3\nu1,to be,0.25,-4\n")

    def convert(*options):
        result = CliRunner().invoke(
            app, ["convert", str(tmp_path / "t.csv"), str(tmp_path / "out"), *options]
        )
        assert result.exit_code == 0, result.output
        (nbest,) = choose("jsonl").read(tmp_path / "out")
        return nbest.streams, result.stderr

    streams, notes = convert()
    assert streams == {"conf": (math.log(0.5), math.log(0.25)), "am": (-3.0, -4.0)}
    assert "id=utt, text=hyp, stream conf=conf (probabilities), stream am=am (log base e)" in notes
    streams, notes = convert("--from", "table:id=utt,text=hyp,score=conf,base=prob")
    assert (streams, "read as" in notes) == ({"first_pass": (math.log(0.5), math.log(0.25))}, False)
    streams, _ = convert("--map", "id=utt,text=hyp", "--stream", "acoustic=am:10")
    assert streams == {"acoustic": (-3.0 * math.log(10), -4.0 * math.log(10))}


def test_numbers_in_columns_are_no_stm(tmp_path):
    """Cells that look like the columns of a damaged stm, below a header, are those of a table."""
    path = tmp_path / "scores"
    path.write_text('id\ttext\tscores.am\tscores.lm\n"u, 0 x"\t\t0.0\t0.0\n')
    assert detect(path)[0] == "table"

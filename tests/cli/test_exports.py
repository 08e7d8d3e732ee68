"""Tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.escapes import FORMULA_STARTS
from rescorer.terminal.tables import ExportOptions, to_csv, to_latex, to_markdown
from tests.support.list_lines import GOOD, record, write

HEADINGS, ROWS = ("system", "WER %"), (("a|b_c", "1.5"), ('say "x", 5 %', "−2.0"))


def test_formats():
    assert to_markdown(HEADINGS, ROWS) == (
        '| system | WER % |\n| --- | ---: |\n| a\\|b_c | 1.5 |\n| say "x", 5 % | −2.0 |\n'
    )
    rows = list(csv.reader(io.StringIO(to_csv(HEADINGS, [("a|b_c", 1.5), ('say "x", 5 %', None)]))))
    assert rows == [["system", "WER %"], ["a|b_c", "1.5"], ['say "x", 5 %', ""]]
    latex = to_latex(HEADINGS, ROWS)
    assert latex.startswith(
        "\\begin{tabular}{lr}\n\\toprule\nsystem & WER \\% \\\\\n\\midrule\na\\textbar{}b\\_c & 1.5"
    )
    assert 'say "x", 5 \\% & $-$2.0 \\\\\n\\bottomrule\n\\end{tabular}\n' in latex


def test_escapes_markdown():
    text = to_markdown(("system",), [("<b> *x* `y` [z](w) _v_ a_b \\ |\n",)]).splitlines()[-1]
    assert text == r"| &lt;b> \*x\* \`y\` \[z\](w) \_v\_ a_b \\ \| |"


@pytest.mark.parametrize("command", [["evaluate"], ["compare"]])
def test_output_that_cannot_be_written(run, tmp_path, command):
    files = [write(tmp_path / name, *GOOD) for name in ("a.jsonl", "b.jsonl")]
    code, _, err = run(*command, *files, "--export", "/proc/table.md")
    assert (code, "cannot be written" in err) == (2, True)


def test_the_name_chooses_the_format(tmp_path):
    for name, beginning in (("a.md", "| system"), ("a.CSV", "system,"), ("a.tex", "\\begin")):
        options = ExportOptions(tmp_path / name)
        options.check()
        options.write(HEADINGS, ROWS, [{"system": "a", "wer": 1.5}])
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(beginning)
    ExportOptions().check()
    with pytest.raises(ConfigError, match=r"expected a name that ends in \.md, \.tex, \.csv"):
        ExportOptions(Path("table.xlsx")).check()
    with pytest.raises(ConfigError, match="no such folder"):
        ExportOptions(tmp_path / "missing" / "a.md").check()
    for export in (None, tmp_path / "a.md"):
        with pytest.raises(ConfigError, match=r"--raw: expected --export with a name that ends in \.csv"):
            ExportOptions(export, raw=True).check()


@given(cell=st.text(st.sampled_from("=+-@\t\r\n＝a1', \"\x1b\0")), number=st.floats(allow_nan=False))
def test_no_text_of_a_csv_file_is_a_formula_and_raw_texts_come_back(cell, number):
    rows = [(cell, number), (cell, None)]
    shown = list(csv.reader(io.StringIO(to_csv((cell, "b"), rows), newline="")))
    assert not any(row[0].startswith(FORMULA_STARTS) for row in shown)
    assert all(row[0].removeprefix("'") == cell.removeprefix("'") for row in shown)
    assert [float(shown[1][1]), shown[2][1]] == [number, ""]
    raw = list(csv.reader(io.StringIO(to_csv((cell, "b"), rows, is_raw=True), newline="")))
    assert [row[0] for row in raw] == [cell] * 3


def test_evaluate_exports_texts_for_spreadsheets_or_raw(run, tmp_path):
    source = write(tmp_path / "=1+1.jsonl", *GOOD)
    other = write(tmp_path / "b.jsonl", *GOOD)
    for options, name in (((), "'=1+1.jsonl"), (("--raw",), "=1+1.jsonl")):
        table = tmp_path / "pairs.csv"
        assert run("compare", source, other, "--export", table, *options)[0] == 0
        row = next(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
        assert row["baseline"] == name
        assert float(row["gain"]) == 0


def test_evaluate_exports_numbers_for_programs(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    table = tmp_path / "table.csv"
    code, out, _ = run("evaluate", source, "--bundle", bundle, "--json", "--export", table)
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert code == 0
    assert [row["system"] for row in rows][::5] == ["first pass", "oracle"]
    for row, system in zip(rows, json.loads(out)["systems"], strict=True):
        assert float(row["wer"]) == system["wer"]
        assert row["p_value"] == ("" if system["p_value"] is None else str(system["p_value"]))
        assert {"wer_low", "wer_high", "gain", "gain_low", "gain_high", "p_value_corrected"} < set(row)
    assert run("evaluate", source, "--export", tmp_path / "table.doc")[0] == 2


def test_compare_exports_numbers_for_programs(run, tmp_path):
    """Every cell but names is a number, or empty where it is not known."""
    texts = ("the cat sat", "the cat sad", "a cat sad")
    files = [
        write(tmp_path / f"{name}.jsonl", *(record(f"u{k}", text, reference=texts[k % 3]) for k in range(40)))
        for name, text in zip("abc", texts, strict=True)
    ]
    table = tmp_path / "pairs.csv"
    assert run("compare", *files, "--export", table)[0] == 0
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert (rows[0]["baseline"], rows[0]["system"]) == ("a.jsonl", "b.jsonl")
    for row in rows:
        assert float(row["gain_low"]) <= float(row["gain"]) <= float(row["gain_high"])
        assert 0 <= float(row["p_bootstrap"]) <= float(row["p_bootstrap_corrected"]) <= 1


@pytest.mark.parametrize("end", ["md", "tex"])
def test_evaluate_exports_what_it_prints(run, bundle, tmp_path, end):
    source = write(tmp_path / "in.jsonl", *GOOD)
    table = tmp_path / f"table.{end}"
    code, out, _ = run("evaluate", source, "--bundle", bundle, "--export", table)
    assert code == 0
    assert all(name in out and name in table.read_text(encoding="utf-8") for name in ("first pass", "oracle"))

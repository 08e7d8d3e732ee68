"""Tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from rescorer.errors import ConfigError
from rescorer.terminal.tables import check_export, to_csv, to_latex, to_markdown, write_export
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
        check_export(tmp_path / name)
        write_export(tmp_path / name, HEADINGS, ROWS, [{"system": "a", "wer": 1.5}])
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(beginning)
    check_export(None)
    with pytest.raises(ConfigError, match=r"expected a name that ends in \.md, \.tex, \.csv"):
        check_export(Path("table.xlsx"))
    with pytest.raises(ConfigError, match="no such folder"):
        check_export(tmp_path / "missing" / "a.md")


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

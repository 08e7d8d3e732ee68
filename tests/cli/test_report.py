"""The command ``report``."""

from __future__ import annotations

import csv
import json

import pytest

from tests.support.list_lines import GOOD, record, write

SOURCE = (*GOOD, record("u3", "the mat", "the cat", reference="the cat", speaker="s2"))


def test_writes_a_page_text_and_data(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    outputs = [tmp_path / f"report.{end}" for end in ("html", "md", "json")]
    flags = [argument for path in outputs for argument in ("-o", path)]
    code, out, err = run("report", source, "--bundle", bundle, "--tune", "--title", "Two lists", *flags)
    assert (code, err) == (0, "")
    assert all(str(path) in out for path in outputs)
    page, text, data = (path.read_text(encoding="utf-8") for path in outputs)
    assert "<title>Two lists</title>" in page
    assert text.startswith("## Two lists\n")
    described = json.loads(data)
    _, out, _ = run("evaluate", source, "--bundle", bundle, "--tune", "--json")
    evaluated = json.loads(out)["systems"]
    assert [row["name"] for row in described["systems"]] == [row["name"] for row in evaluated]
    for shown, row in zip(described["systems"], evaluated, strict=True):
        assert shown["wer"] == pytest.approx(row["wer"], abs=0.01)
        assert shown["errors"] == row["errors"]
    (file,) = described["files"]
    assert file["file"] == "in.jsonl"
    assert all(curve["fold_values"] for curve in file["curves"])
    assert described["command"].startswith("rescorer report ")
    assert described["system"] == "mixture, tuned"


def test_compares_what_several_systems_wrote(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, scale in zip(paths, ("1", "0"), strict=True):
        run("rescore", source, "-o", path, "--bundle", bundle, "-w", f"lm:mixture={scale}")
    output = tmp_path / "r.json"
    code, _, err = run("report", *paths, "-o", output)
    assert (code, err) == (0, "")
    names = [row["name"] for row in json.loads(output.read_text())["systems"]]
    assert names == ["a.jsonl: first pass", "a.jsonl", "b.jsonl: first pass", "b.jsonl"]
    other = write(tmp_path / "other.jsonl", record("u9", "the cat", reference="the cat"))
    code, _, err = run("report", paths[0], other, "-o", output)
    assert (code, "share no list" in err) == (2, True)


def test_limits_the_utterances(run, tmp_path):
    source = write(tmp_path / "in.jsonl", *SOURCE)
    run("report", source, "--max-utterances", 1, "-o", tmp_path / "r.json")
    utterances = json.loads((tmp_path / "r.json").read_text())["utterances"]
    assert (len(utterances["rows"]), utterances["total"]) == (1, 3)
    code, _, _ = run("report", source, "--max-utterances", 0, "-o", tmp_path / "r.html")
    assert code == 0
    assert 'id="utterances"' not in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_characters_are_reported_as_such(run, tmp_path):
    source = write(tmp_path / "in.jsonl", *SOURCE)
    run("report", source, "--characters", "--language", "tr", "-o", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "words compared by rules 2, language tr" in page
    assert "CER %" in page
    assert "reference characters" in page


def test_checks_its_options_before_it_scores(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    code, _, err = run("report", source, "-o", tmp_path / "report.pdf")
    assert (code, "expected a name that ends in .html, .md, .json" in err) == (2, True)
    code, _, err = run("report", source, "-o", tmp_path / "no" / "report.html")
    assert (code, "no such folder" in err) == (2, True)
    code, _, err = run("report", source, "-o", tmp_path / "r.html", "--tune")
    assert (code, "give --bundle" in err) == (2, True)
    code, _, err = run("report", source, "-o", tmp_path / "r.html", "--bundle", bundle, "--system", "mixtur")
    assert (code, "did you mean" in err) == (2, True)


def test_says_that_weights_were_tuned_on_the_lists(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    run("tune", source, "--bundle", bundle, "-o", tmp_path / "w.json", "--force")
    run("report", source, "--bundle", bundle, "--weights", tmp_path / "w.json", "-o", tmp_path / "r.json")
    notes = json.loads((tmp_path / "r.json").read_text())["notes"]
    assert any("optimistic" in note for note in notes)


def test_reports_rejected_lists(run, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD, record("u3", "no reference"))
    code, _, err = run("report", source, "-o", tmp_path / "r.json")
    assert (code, "'u3'" in err) == (1, True)
    assert any(
        "1 list was rejected" in note for note in json.loads((tmp_path / "r.json").read_text())["notes"]
    )


@pytest.mark.parametrize("command", ["report", "evaluate"])
def test_an_unknown_row_is_an_error_before_any_list_is_read(run, bundle, tmp_path, command):
    missing = tmp_path / "no.jsonl"
    output = ("-o", tmp_path / "r.md") if command == "report" else ()
    for options, known in (
        ((), "oracle"),
        (("--bundle", bundle), "ngram"),
        (("--bundle", bundle, "--tune"), "tuned"),
    ):
        code, _, err = run(command, missing, *output, *options, "--system", "orcale")
        assert (code, "did you mean 'oracle'?" in err, known in err) == (2, True, True)
        assert "cannot be read" in run(command, missing, *output, *options, "--system", "oracle")[2]


def test_a_row_of_several_files_needs_no_file_name(run, tmp_path):
    files = [write(tmp_path / name, *SOURCE) for name in ("a.jsonl", "b.jsonl")]
    for system, expected in (
        ("first pass", "b.jsonl: first pass"),
        ("a.jsonl: first pass",) * 2,
        ("a.jsonl",) * 2,
    ):
        code, _, err = run("report", *files, "--system", system, "-o", tmp_path / "r.json")
        assert (code, err) == (0, "")
        assert json.loads((tmp_path / "r.json").read_text())["system"] == expected


def test_the_oracle_has_no_gain_in_any_command(run, bundle, tmp_path):
    """It knows the references: that it is better than the first pass is not a finding."""
    source = write(tmp_path / "in.jsonl", *SOURCE)
    run("report", source, "--bundle", bundle, "-o", tmp_path / "r.json")
    _, out, _ = run("evaluate", source, "--bundle", bundle, "--json")
    rows = [json.loads((tmp_path / "r.json").read_text())["systems"][-1], json.loads(out)["systems"][-1]]
    for row in rows:
        assert (row["name"], row["gain"], row["gain_interval"], row["p_value"]) == (
            "oracle",
            None,
            None,
            None,
        )
    assert run("evaluate", source, "--export", tmp_path / "t.csv")[0] == 0
    *_, oracle = csv.DictReader((tmp_path / "t.csv").read_text().splitlines())
    assert (oracle["system"], oracle["gain"], oracle["p_value"]) == ("oracle", "", "")
    assert rows[0]["wer_interval"] == rows[1]["wer_interval"]

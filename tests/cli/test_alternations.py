"""Choices, and braces that are letters, in the commands that count errors; damaged files of NIST's."""

from __future__ import annotations

import json

import pytest

from tests.support.list_lines import record, write

RAW = {"drop": [], "variants": False, "multiwords": "", "hyphens": "keep", "punctuation": "keep", "keep": []}
TEXTS = ("{lbyt kbyr", "Albyt kbyr", "{ktb / }")


@pytest.fixture
def letters(tmp_path):
    """Lists of texts in which braces are letters; the first hypothesis is right in all but one."""
    lists = [
        record(f"u{i}", *(f"{text} w{i}" for text in TEXTS), reference=f"{TEXTS[0] if i else TEXTS[1]} w{i}")
        for i in range(8)
    ]
    (tmp_path / "raw.json").write_text(json.dumps(RAW | {"case": "keep"}))
    return write(tmp_path / "in.jsonl", *lists)


@pytest.mark.parametrize("command", ["evaluate", "inspect", "compare"])
@pytest.mark.parametrize("counting", ["levenshtein", "sclite"])
def test_braces_are_letters_on_request(run, letters, tmp_path, command, counting):
    files = [letters, f"{letters.parent}/./{letters.name}"] if command == "compare" else [letters]
    options = ["--normaliser", tmp_path / "raw.json", "--counting", counting]
    code, _, err = run(command, *files, *options)
    assert code
    assert """"{" without a "}" after it: '{lbyt kbyr w0'; where braces""" in err
    assert "--alternations off" in err
    code, out, _ = run(command, *files, *options, "--alternations", "off", "--json")
    found = json.loads(out)
    first = (found.get("systems") or found.get("files"))[0]
    assert (code, first["wer"]) == (0, 4.17)
    assert command == "compare" or first["reference_words"] == 24


def test_tune_and_calibrate_take_the_option(run, letters, ngram_bundle, tmp_path):
    for command in ("tune", "calibrate"):
        call = [command, letters, "--bundle", ngram_bundle, "-o", tmp_path / "out.json"]
        code, _, err = run(*call)
        assert code
        assert "--alternations off" in err
        code, _, err = run(*call, "--alternations", "off")
        assert (code, "rejected" in err) == (0, False)


@pytest.mark.parametrize("counting", ["levenshtein", "sclite"])
def test_alignments_and_places_of_errors_read_choices(run, tmp_path, counting):
    (tmp_path / "a.trn").write_text("we {saw / sow} the sea (u1)\nno { way / @ } out (u2)\n")
    (tmp_path / "b.trn").write_text("we saw the { see / bee } (u1)\nno out (u2)\n")
    (tmp_path / "r.trn").write_text("we saw the sea (u1)\nno out (u2)\n")
    options = ["--reference", tmp_path / "r.trn", "--counting", counting, "--json"]
    code, out, _ = run("evaluate", tmp_path / "a.trn", *options, "--alignments")
    assert (code, json.loads(out)["systems"][0]["errors"]) == (0, 0)
    code, out, _ = run("evaluate", tmp_path / "b.trn", *options[:-1], "--alignments", "--system", "b")
    assert "{" not in out
    code, out, _ = run("compare", tmp_path / "a.trn", tmp_path / "b.trn", *options)
    assert [system["errors"] for system in json.loads(out)["systems"]] == [0, 1]


def test_combine_publishes_no_words_of_choices(run, tmp_path):
    (tmp_path / "a.trn").write_text("we {saw / sow} the sea (u1)\nno way out (u2)\n{lbyt (u3)\n")
    (tmp_path / "b.trn").write_text("we saw the sea (u1)\nno way out (u2)\n{lbyt (u3)\n")
    call = ["combine", tmp_path / "a.trn", tmp_path / "b.trn", "--to", "trn", "-o", tmp_path / "out.trn"]
    code, _, err = run(*call)
    assert code == 1
    assert "list 'u1', hypothesis 0, text: has alternatives" in err
    assert "sow" not in (tmp_path / "out.trn").read_text()
    assert "(u3)" in (tmp_path / "out.trn").read_text()
    code, _, _ = run(*call, "--alternations", "off")
    assert (code, "(u1)" in (tmp_path / "out.trn").read_text()) == (0, True)


CTM = """\
f1 A zero 0.2 the
f1 A 0.2 0.2 sea
f2 A 0.0 0.2 a
f2 A * * <ALT_BEGIN>
f2 A 0.2 0.2 dog
f2 A * * <ALT>
f2 A 0.2 0.2 dock
f2 A * * <ALT_END>
f3 a 0.0 0.2 good
f3 a 0.3 0.2 day
"""
STM = "f1 A ann 0 9 the sea\nf2 A ann 0 9 a dock\nf3 A bob 0 9 good way\n"


def test_a_ctm_loses_damaged_recordings_alone(run, tmp_path):
    (tmp_path / "h").write_text(CTM)
    (tmp_path / "r.stm").write_text(STM)
    options = ["--reference", tmp_path / "r.stm", "--json"]
    code, out, err = run("evaluate", tmp_path / "h", *options)
    (system,) = json.loads(out)["systems"]
    assert (code, system["lists"], system["errors"], system["reference_words"]) == (1, 2, 1, 4)
    assert "h:1: start: expected a number, got 'zero'; recording 'f1 A' is left out" in err
    code, out, err = run("evaluate", tmp_path / "h", *options, "--alternations", "off")
    assert (code, json.loads(out)["systems"][0]["lists"]) == (1, 1)
    assert "has alternatives (<ALT_BEGIN>)" in err
    code, _, err = run("convert", tmp_path / "h", tmp_path / "out.jsonl")
    assert code == 1
    assert [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == ["f3 a"]
    assert "recording 'f1 A' is left out" in err
    assert "recording 'f2 A' is left out" in err


def test_names_ids_that_differ_in_case(run, tmp_path):
    (tmp_path / "h.trn").write_text("the sea (ANN-1)\na day (ann-2)\n")
    (tmp_path / "r.trn").write_text("the sea (ann-1)\na day (ann-2)\n")
    code, _, err = run("evaluate", tmp_path / "h.trn", "--reference", tmp_path / "r.trn")
    assert code == 1
    assert "no lists for 1 of 2 references: 'ann-1'; there is a list 'ANN-1' without a reference" in err
    assert "'ANN-1' and 'ann-1' differ in case: write the same ids in both files" in err

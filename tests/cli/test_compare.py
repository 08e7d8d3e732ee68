"""The command ``compare``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.list_lines import record, write

REFERENCES = {f"s{number % 3}-u{number}": "the cat sat on the mat today" for number in range(40)}


def write_system(path: Path, n_wrong: int, reference: bool = True) -> Path:
    """Lists whose first hypothesis has an error in the first ``n_wrong`` of them."""
    lines = []
    for number, (list_id, words) in enumerate(REFERENCES.items()):
        texts = [words.replace("sat", "sad")] if number < n_wrong else []
        lines.append(record(list_id, *texts, words, **({"reference": words} if reference else {})))
    return write(path, *lines)


@pytest.fixture
def systems(tmp_path) -> list[Path]:
    return [write_system(tmp_path / name, wrong) for name, wrong in (("a.jsonl", 30), ("b.jsonl", 10))]


def test_compares_two_systems(run, systems):
    code, out, err = run("compare", *systems, "--json", "--tests", "wilcoxon,sign")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert [system["name"] for system in report["systems"]] == ["a.jsonl", "b.jsonl"]
    assert [system["errors"] for system in report["systems"]] == [30, 10]
    (pair,) = report["pairs"]
    assert (pair["baseline"], pair["system"], pair["verdict"]) == ("a.jsonl", "b.jsonl", "better")
    assert pair["gain"] == round(100 * 20 / 280, 2)
    assert list(pair["rank_tests"]) == ["sign", "wilcoxon"]
    assert pair["p_values"] == pair["p_values_corrected"]
    assert report["shared_lists"] == report["bootstrap_units"] == 40


def test_prints_tables_and_a_verdict(run, systems, tmp_path):
    third = write_system(tmp_path / "c.jsonl", 10)
    code, out, _ = run("compare", *systems, third)
    assert code == 0
    assert "A → B" in out
    assert re.search(r"B has 7.14 ± 2.\d\d points fewer errors than A: more than chance \(p < 0.001\)", out)
    assert "C has the same errors as B in every list" in out
    assert "p corrected" in out
    assert "bootstrap of 40 lists" in out


def test_draws_groups_if_they_are_known(run, systems):
    _, out, _ = run("compare", *systems, "--groups", "^(s.)-", "--json")
    assert (json.loads(out)["bootstrap_unit"], json.loads(out)["bootstrap_units"]) == ("group", 3)
    assert "3 groups are too few" in json.loads(out)["warning"]
    (pair,) = json.loads(out)["pairs"]
    assert pair["gain_interval"] is pair["p_value"] is pair["p_values"]["bootstrap"] is None
    _, out, _ = run("compare", *systems, "--groups", "^(s.)-")
    assert "nothing can be shown about" in out
    assert "--by list draws single lists" in " ".join(out.split())
    _, out, _ = run("compare", *systems, "--groups", "^(s.)-", "--by", "list", "--json")
    assert (json.loads(out)["bootstrap_unit"], json.loads(out)["rank_test_unit"]) == ("list", "group")
    code, _, err = run("compare", *systems, "--by", "group")
    assert (code, "--groups" in err) == (2, True)


def test_compares_transcripts_of_several_formats(run, tmp_path):
    texts = {list_id: words.replace("mat", "rug") for list_id, words in REFERENCES.items()}
    trn = write(tmp_path / "a.trn", *(f"{text} ({list_id})" for list_id, text in texts.items()))
    kaldi = write(tmp_path / "text", *(f"{list_id} {text}" for list_id, text in texts.items()))
    tsv = write(tmp_path / "c.tsv", *(f"{list_id}\t{words}" for list_id, words in REFERENCES.items()))
    reference = write(tmp_path / "ref", *(f"{list_id} {words}" for list_id, words in REFERENCES.items()))
    code, out, err = run("compare", trn, kaldi, tsv, "--reference", reference, "--groups", "^(s.)-", "--json")
    assert (code, err) == (0, "")
    assert [system["errors"] for system in json.loads(out)["systems"]] == [40, 40, 0]
    assert json.loads(out)["bootstrap_units"] == 3


def test_compares_shared_lists_only(run, systems, tmp_path):
    lines = systems[1].read_text().splitlines()
    part = write(tmp_path / "part.jsonl", *lines[:25])
    _, out, _ = run("compare", systems[0], part)
    assert "compared on the 25 lists that all files have; others: a.jsonl 15, part.jsonl 0" in out
    other = write(tmp_path / "other.jsonl", record("v1", "a", reference="a"))
    code, _, err = run("compare", systems[0], other)
    assert (code, "other.jsonl 'v1'" in err) == (2, True)


def test_first_pass_weights_leave_reranked_lists_as_they_are(run, bundle, systems, tmp_path):
    assert run("rescore", systems[0], "-o", tmp_path / "out.jsonl", "--bundle", bundle)[0] == 0
    files = (systems[0], tmp_path / "out.jsonl")
    code, out, _ = run("compare", *files, "--first-pass", "acoustic=1", "--json")
    assert code == 0
    first, _ = json.loads(out)["systems"]
    assert first["errors"] == 30


def test_first_pass_weights_choose_the_text_of_unordered_lists(run, tmp_path):
    def lines(scores):
        for list_id, words in REFERENCES.items():
            hypotheses = [
                {"text": text, "scores": {"acoustic": score}}
                for text, score in zip(("the", words), scores, strict=True)
            ]
            yield json.dumps({"id": list_id, "reference": words, "hypotheses": hypotheses})

    unordered = write(tmp_path / "u.jsonl", *lines((-2.0, -1.0)))
    ordered = write(tmp_path / "o.jsonl", *lines((-1.0, -2.0)))
    _, out, _ = run("compare", unordered, ordered, "--first-pass", "acoustic=1", "--json")
    assert [system["errors"] for system in json.loads(out)["systems"]] == [0, 240]
    _, out, _ = run("compare", unordered, ordered, "--json")
    assert [system["errors"] for system in json.loads(out)["systems"]] == [240, 240]


@pytest.mark.parametrize("suffix", ["md", "csv", "tex"])
def test_exports_one_table_of_systems_and_gains(run, systems, tmp_path, suffix):
    export = tmp_path / f"pairs.{suffix}"
    first, second = systems
    code, out, _ = run("compare", f"base={first}", f"ours={second}", "--export", export)
    text = export.read_text(encoding="utf-8")
    assert (code, "A  base" in out, "fewer errors than A" in out) == (0, True, True)
    rows = [line for line in text.splitlines() if line.removeprefix("| ").startswith(("base", "ours"))]
    assert "7.14" in rows[-1]
    assert "3.57" in rows[-1]
    signature = next(line for line in out.splitlines() if line.startswith("signature: ")).split()[1]
    assert signature in text.replace("\\|", "|")


def test_names_of_systems(run, systems, tmp_path):
    first, second = systems
    odd = first.rename(tmp_path / "lr=0.1.jsonl")  # the name of a file, not a file with a name
    _, out, _ = run("compare", odd, f"ours={second}", "--json")
    assert [system["name"] for system in json.loads(out)["systems"]] == ["lr=0.1.jsonl", "ours"]
    code, _, err = run("compare", f"a={odd}", f"a={second}")
    assert (code, "two systems are named 'a'" in err) == (2, True)
    code, _, err = run("evaluate", f"a={odd}", f"b={odd}")
    assert (code, "one file with two names, 'a' and 'b'; expected one" in err) == (2, True)
    code, _, err = run("evaluate", odd, f"b={odd}")
    assert (code, "given twice, once as 'b'; expected it once" in err) == (2, True)
    code, _, err = run("evaluate", f"a={odd}", "--export", odd)
    assert (code, "expected a name that ends in" in err) == (2, True)
    table = (tmp_path / "in.csv").write_bytes(second.read_bytes())
    code, _, err = run("evaluate", f"a={tmp_path / 'in.csv'}", "--export", tmp_path / "in.csv")
    assert (code, "would overwrite" in err, table > 0) == (2, True, True)


def test_rejects_wrong_options(run, systems, tmp_path):
    assert run("compare", systems[0])[0] == 2
    code, _, err = run("compare", *systems, "--tests", "sing")
    assert (code, "did you mean 'sign'" in err) == (2, True)
    without = write_system(tmp_path / "n.jsonl", 0, reference=False)
    code, _, err = run("compare", systems[0], without)
    assert (code, "no list could be evaluated" in err, "--reference" in err) == (3, True, True)

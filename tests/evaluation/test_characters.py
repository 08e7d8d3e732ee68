"""Errors in characters, wherever errors are counted: a small Chinese task counted by hand."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from rescorer.cli import main
from rescorer.evaluation.error_rate.counting import CountingSettings
from rescorer.evaluation.error_rate.oracle import evaluate_list
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList

LISTS = {
    # reference, then hypotheses with their acoustic scores
    "u1": ("今天天气很好", {"今天天汽很号": -10.0, "今天天气很好": -12.0}),  # 2 errors of 6, then none
    "u2": ("我们去北京", {"我门 去北京": -8.0, "我们去背景": -9.0, "去北京": -9.5}),  # 1 of 5, 2, 2 left out
    "u3": ("他说中文", {"他说中文。": -5.0, "她说中文吗": -6.0}),  # none of 4: a full stop is no word; then 2
}
FIRST, ORACLE, WORST, LENGTH = 2 + 1 + 0, 0 + 1 + 0, 2 + 2 + 2, 6 + 5 + 4
"""By hand. Words count another way: only u3's first is right, and a space makes u2's two words."""


@pytest.fixture
def lists(tmp_path):
    path = tmp_path / "zh.jsonl"
    records = [
        {
            "id": name,
            "reference": spoken,
            "group": name,
            "hypotheses": [{"text": text, "scores": {"acoustic": am}} for text, am in heard.items()],
        }
        for name, (spoken, heard) in LISTS.items()
    ]
    path.write_text(
        "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records), encoding="utf-8"
    )
    return path


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["rescorer", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("method", ["levenshtein", "sclite"])
def test_the_library_counts_characters(method):
    for name, (spoken, heard) in LISTS.items():
        nbest = NBestList(name, tuple(map(Hypothesis, heard)), reference=spoken)
        found = evaluate_list(
            nbest, Normaliser().normalise, counting=CountingSettings(method, characters=True)
        )
        expected = {"u1": [2, 0], "u2": [1, 2, 2], "u3": [0, 2]}[name]
        assert [each.errors for each in found.hypotheses] == expected
        assert {each.reference_words for each in found.hypotheses} == {len(spoken)}


@pytest.mark.parametrize("method", ["levenshtein", "sclite"])
@pytest.mark.parametrize("command", ["evaluate", "inspect"])
def test_commands_count_characters(run, lists, command, method):
    _, out, _ = run(command, lists, "--characters", "--counting", method, "--json")
    found = json.loads(out)
    assert (found["unit"], found["reference_words"]) == ("character", LENGTH)
    rates = [found[key] for key in ("wer", "oracle_wer", "worst_wer")]
    assert rates == [round(100 * errors / LENGTH, 2) for errors in (FIRST, ORACLE, WORST)]
    _, out, _ = run(command, lists, "--characters")
    assert "CER %" in out
    _, out, _ = run(command, lists, "--json")
    assert json.loads(out)["wer"] == round(100 * (1 + 2 + 0) / 3, 2)  # as words, each utterance is one


def test_inspect_judges_weights_in_characters(run, lists, bundle):
    _, out, _ = run("inspect", lists, "--bundle", bundle, "--characters", "--json", "-w", "lm:mixture=0")
    assert (json.loads(out)["weights"]["first_errors"], json.loads(out)["weights"]["errors"]) == (
        FIRST,
        FIRST,
    )


@pytest.mark.parametrize(("options", "unit", "errors"), [((), "W", 3), (("--characters",), "C", FIRST)])
def test_tuning_minimises_what_is_counted(run, lists, bundle, tmp_path, options, unit, errors):
    out_file = tmp_path / "w.json"
    code, out, _ = run("tune", lists, "--bundle", bundle, "-w", "lm:mixture=0", "-o", out_file, *options)
    assert (code, f"{unit}ER %" in out) == (0, True)
    rows = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    length = {"W": 3, "C": LENGTH}[unit]
    assert f"{100 * errors / length:.2f}" in rows["first pass"]


def test_tuning_finds_fewer_characters_where_words_see_no_difference(run, bundle, tmp_path):
    """The better hypotheses are written with blanks, which makes them longer in words: more words wrong, as
    words are counted, and fewer characters."""
    spoken = ("今天天气好", "明天下雨吗", "我喜欢喝茶", "他们在学校", "火车很准时", "请你慢慢说")
    path = tmp_path / "tune.jsonl"
    records = [
        {
            "id": f"u{i}",
            "group": f"g{i}",
            "reference": reference,
            "hypotheses": [
                {"text": "金添舔汽", "scores": {"acoustic": -1.0}},  # 5 errors
                {"text": " ".join(reference[:-1] + "错"), "scores": {"acoustic": -2.0}},  # 1 error
            ],
        }
        for i, reference in enumerate(spoken)
    ]
    path.write_text(
        "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records), encoding="utf-8"
    )
    start = (
        "--bundle",
        bundle,
        "-w",
        "lm:mixture=0",
        "-w",
        "word=0",
        "-w",
        "oov=0",
        "-o",
        tmp_path / "w.json",
    )
    _, out, _ = run("tune", path, *start)
    assert json.loads((tmp_path / "w.json").read_text())["word"] == 0.0  # 1 error, against 5 with blanks
    _, out, _ = run("tune", path, *start, "--characters")
    assert json.loads((tmp_path / "w.json").read_text())["word"] > 0.0
    (held_out,) = [line.split() for line in out.splitlines() if line.startswith("held out")]
    assert held_out[4] == "20.00"
    _, out, _ = run("evaluate", path, "--bundle", bundle, "--weights", tmp_path / "w.json",
                    "--characters", "--json")  # fmt: skip
    assert json.loads(out)["systems"]["mixture"]["errors"] == 6


def test_the_option_is_the_same_everywhere(run):
    said = set()
    for command in ("evaluate", "tune", "inspect"):
        _, out, _ = run(command, "--help")
        options = ("-characters", "-counting", "-optional-words", "-fragments", "-reference")
        said.add(tuple("".join(each.split()) for each in out.split("\n  -") if each.startswith(options)))
    assert len(said) == 1
    assert len(said.pop()) == 5


@pytest.mark.skipif(not shutil.which("sctk"), reason="sclite is not installed (Debian: sctk)")
def test_sclite_counts_the_same_characters(tmp_path):
    """Of what the normaliser leaves: sclite takes a full stop for a character."""
    normalised = Normaliser().normalise
    for name, side in (("r", lambda spoken, heard: spoken), ("h", lambda spoken, heard: next(iter(heard)))):
        lines = [f"{' '.join(normalised(side(*each)))} (s-{key})\n" for key, each in LISTS.items()]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    done = subprocess.run(
        ["sctk", "sclite", "-r", tmp_path / "r", "trn", "-h", tmp_path / "h", "trn", "-i", "spu_id", "-c",
         "-e", "utf-8", "-o", "rsum", "stdout"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (row,) = [line for line in done.stdout.splitlines() if line.strip().startswith("| s ")]
    sentences, length, correct, substitutions, *_ = [int(each) for each in row.replace("|", " ").split()[1:]]
    assert (sentences, length, correct, substitutions) == (3, LENGTH, LENGTH - FIRST, FIRST)

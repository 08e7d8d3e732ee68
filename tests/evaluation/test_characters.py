"""Character errors in all commands, on a small Chinese task counted by hand."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from rescorer.cli import main
from rescorer.evaluation.error_rate import CountingSettings
from rescorer.evaluation.list_errors import evaluate_list
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList

LISTS = {
    # reference, and hypotheses with their acoustic scores
    "u1": ("今天天气很好", {"今天天汽很号": -10.0, "今天天气很好": -12.0}),  # 2 errors, 0
    "u2": ("我们去北京", {"我门 去北京": -8.0, "我们去背景": -9.0, "去北京": -9.5}),  # 1 error, 2, 2
    "u3": ("他说中文", {"他说中文。": -5.0, "她说中文吗": -6.0}),  # 0 errors (the full stop is ignored), 2
}
FIRST, ORACLE, WORST, LENGTH = 2 + 1 + 0, 0 + 1 + 0, 2 + 2 + 2, 6 + 5 + 4
"""Counted by hand. In words, only the first of u3 is correct, and the first of u2 is two words."""


@pytest.fixture
def lists(tmp_path):
    path = tmp_path / "zh.jsonl"
    records = [
        {
            "id": name,
            "reference": reference,
            "group": name,
            "hypotheses": [
                {"text": text, "scores": {"acoustic": score}} for text, score in hypotheses.items()
            ],
        }
        for name, (reference, hypotheses) in LISTS.items()
    ]
    path.write_text(
        "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8"
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
def test_library_counts_characters(method):
    for name, (reference, hypotheses) in LISTS.items():
        nbest = NBestList(name, tuple(map(Hypothesis, hypotheses)), reference=reference)
        found = evaluate_list(
            nbest, Normaliser().normalise, counting=CountingSettings(method, unit="character")
        )
        expected = {"u1": [2, 0], "u2": [1, 2, 2], "u3": [0, 2]}[name]
        assert [counts.errors for counts in found.hypotheses] == expected
        assert {counts.reference_words for counts in found.hypotheses} == {len(reference)}


def flatten(report: dict) -> dict:
    """The report of ``inspect`` or ``evaluate``, with the figures of its only file, which come first."""
    return report | (report.get("systems") or report["files"])[0]


@pytest.mark.parametrize("method", ["levenshtein", "sclite"])
@pytest.mark.parametrize("command", ["evaluate", "inspect"])
def test_commands_count_characters(run, lists, command, method):
    _, out, _ = run(command, lists, "--characters", "--counting", method, "--json")
    found = flatten(json.loads(out))
    assert (found["unit"], found["reference_words"]) == ("character", LENGTH)
    rates = [found[key] for key in ("wer", "oracle_wer", "worst_wer")]
    assert rates == [round(100 * errors / LENGTH, 2) for errors in (FIRST, ORACLE, WORST)]
    _, out, _ = run(command, lists, "--characters")
    assert "CER %" in out
    _, out, _ = run(command, lists, "--json")
    # without spaces, each utterance is one word
    assert flatten(json.loads(out))["wer"] == round(100 * (1 + 2 + 0) / 3, 2)


def test_inspect_counts_errors_of_weights_in_characters(run, lists, bundle):
    _, out, _ = run("inspect", lists, "--bundle", bundle, "--characters", "--json", "-w", "lm:mixture=0")
    (found,) = json.loads(out)["files"]
    assert (found["weights"]["first_errors"], found["weights"]["errors"]) == (FIRST, FIRST)


@pytest.mark.parametrize(("options", "unit", "errors"), [((), "W", 3), (("--characters",), "C", FIRST)])
def test_tuning_counts_in_the_chosen_unit(run, lists, bundle, tmp_path, options, unit, errors):
    out_file = tmp_path / "w.json"
    code, out, _ = run("tune", lists, "--bundle", bundle, "-w", "lm:mixture=0", "-o", out_file, *options)
    assert (code, f"{unit}ER %" in out) == (0, True)
    rows = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    length = {"W": 3, "C": LENGTH}[unit]
    assert f"{100 * errors / length:.2f}" in rows["first pass"]


def test_tuning_minimises_character_errors(run, bundle, tmp_path):
    """The better hypotheses contain spaces: they have more wrong words, but fewer wrong characters."""
    references = ("今天天气好", "明天下雨吗", "我喜欢喝茶", "他们在学校", "火车很准时", "请你慢慢说")
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
        for i, reference in enumerate(references)
    ]
    path.write_text(
        "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8"
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
    assert json.loads((tmp_path / "w.json").read_text())["word"] == 0.0  # 1 word error, against 5 with spaces
    _, out, _ = run("tune", path, *start, "--characters", "--force")  # six equal lists prove nothing
    assert json.loads((tmp_path / "w.json").read_text())["word"] > 0.0
    (held_out,) = [line.split() for line in out.splitlines() if line.startswith("held out ")]
    assert held_out[2] == "20.00"
    _, out, _ = run("evaluate", path, "--bundle", bundle, "--weights", tmp_path / "w.json",
                    "--characters", "--json")  # fmt: skip
    assert {system["name"]: system["errors"] for system in json.loads(out)["systems"]}["mixture"] == 6


def test_counting_options_are_the_same_in_all_commands(run):
    help_texts = set()
    for command in ("evaluate", "tune", "inspect"):
        _, out, _ = run(command, "--help")
        options = ("-characters", "-counting", "-optional-words", "-fragments", "-reference")
        help_texts.add(
            tuple("".join(text.split()) for text in out.split("\n  -") if text.startswith(options))
        )
    assert len(help_texts) == 1
    assert len(help_texts.pop()) == 5


@pytest.mark.skipif(not shutil.which("sctk"), reason="sclite is not installed (Debian: sctk)")
def test_sclite_counts_the_same_characters(tmp_path):
    """Compares normalised texts, because sclite counts a full stop as a character."""
    normalise = Normaliser().normalise
    pairs = {key: (reference, next(iter(hypotheses))) for key, (reference, hypotheses) in LISTS.items()}
    for side, name in enumerate(("r", "h")):
        lines = [f"{' '.join(normalise(pair[side]))} (s-{key})\n" for key, pair in pairs.items()]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    done = subprocess.run(
        ["sctk", "sclite", "-r", tmp_path / "r", "trn", "-h", tmp_path / "h", "trn", "-i", "spu_id", "-c",
         "-e", "utf-8", "-o", "rsum", "stdout"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (row,) = [line for line in done.stdout.splitlines() if line.strip().startswith("| s ")]
    sentences, length, correct, substitutions, *_ = map(int, row.replace("|", " ").split()[1:])
    assert (sentences, length, correct, substitutions) == (3, LENGTH, LENGTH - FIRST, FIRST)

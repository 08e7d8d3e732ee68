"""Mixed error rates in all commands, and equal to those of NIST's sclite on a small fixture."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rescorer.cli import main
from rescorer.decision import expected_errors
from rescorer.errors import ConfigError
from rescorer.evaluation.error_rate import CountingSettings
from rescorer.text import Normaliser
from tests.support.decision_twins import plain_expected_errors

GOLDEN = Path(__file__).parents[1] / "golden" / "sclite_mixed"
FIGURES = json.loads((GOLDEN / "figures.json").read_text(encoding="utf-8"))
SCLITE = next(
    ([path, *rest] for name, *rest in (["sclite"], ["sctk", "sclite"]) if (path := shutil.which(name))), []
)
SETTINGS = {
    "-c NOASCII": CountingSettings("sclite", "mixed"),
    "-c NOASCII -D": CountingSettings("sclite", "mixed", optional_words=True),
    "-c": CountingSettings("sclite", "character"),
}


def lower_case(text: str) -> tuple[str, ...]:
    """The only normalisation of words that sclite does."""
    return tuple(text.lower().split())


def read_texts(name: str) -> dict[str, str]:
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    return {line[line.rindex("(") + 1 : -1]: line[: line.rindex("(")].strip() for line in lines}


@pytest.mark.parametrize("options", SETTINGS)
def test_counts_equal_those_of_sclite(options):
    references, hypotheses = read_texts("ref.trn"), read_texts("hyp.trn")
    found = {}
    for name, reference in references.items():
        counts = SETTINGS[options].counter_for(reference, lower_case, name)(hypotheses[name])
        correct = counts.reference_words - counts.substitutions - counts.deletions
        found[name] = [correct, counts.substitutions, counts.deletions, counts.insertions]
    assert found == FIGURES["utterances"][options]


@pytest.mark.skipif(not SCLITE, reason="sclite is not installed (Debian: sctk)")
@pytest.mark.parametrize("options", SETTINGS)
def test_fixture_matches_the_installed_sclite(options):
    files = ["-r", GOLDEN / "ref.trn", "trn", "-h", GOLDEN / "hyp.trn", "trn"]
    command = [*SCLITE, *files, *FIGURES["command"].split(), *options.split(), "-o", "pralign", "stdout"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = r"^id: \((.*)\)\n(?:\w+: .*\n)*?Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)$"
    found = {name: list(map(int, kinds)) for name, *kinds in re.findall(pattern, text, re.MULTILINE)}
    assert found == FIGURES["utterances"][options]


LISTS = {
    # reference, and hypotheses with their scores; counted by hand
    "u1": ("我要 book 房间", {"我要 look 房间": -1.0, "我要book房间": -2.0}),  # 1 error of 5, 0
    "u2": ("明天 ส่ง report", {"明天ส่งreports": -1.0, "明 天 ส่ง report": -1.5}),  # 1 of 5, 0
    "u3": ("好的 see you", {"好 的 see you": -1.0, "好 see you": -3.0}),  # 0 of 4, 1
    "u4": ("関西 空港 まで", {"関西空港": -1.0, "関西空港まで": -1.1}),  # 2 of 6, 0
}  # fmt: skip
FIRST, ORACLE, WORST, LENGTH = 1 + 1 + 0 + 2, 0, 1 + 1 + 1 + 2, 5 + 5 + 4 + 6


@pytest.fixture
def lists(tmp_path):
    path = tmp_path / "mixed.jsonl"
    records = [
        {
            "id": name,
            "reference": reference,
            "group": name,
            "hypotheses": [{"text": text, "scores": {"acoustic": score}} for text, score in texts.items()],
        }
        for name, (reference, texts) in LISTS.items()
    ]
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8")
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


def test_the_published_example(run, tmp_path):
    """One of three Han characters and one of three words are wrong: 2 of 6 units, not 4 of 19 letters."""
    path = tmp_path / "mer.jsonl"
    path.write_text('{"id": "a", "reference": "他 学习 deep nets 吗", "hypotheses": '
                    '[{"text": "他学习 deep net 么"}]}\n', encoding="utf-8")  # fmt: skip
    _, out, _ = run("evaluate", path, "--unit", "mixed", "--json")
    found = json.loads(out)
    assert (found["unit"], found["notes"]) == ("mixed", [])
    system = found["systems"][0]
    assert (system["errors"], system["reference_words"], system["wer"]) == (2, 6, 33.33)


@pytest.mark.parametrize("method", ["levenshtein", "sclite"])
@pytest.mark.parametrize("command", ["evaluate", "inspect"])
def test_commands_count_mixed_units(run, lists, command, method):
    _, out, _ = run(command, lists, "--unit", "mixed", "--counting", method, "--json")
    found = json.loads(out)
    found |= (found.get("systems") or found["files"])[0]
    assert (found["unit"], found["reference_words"]) == ("mixed", LENGTH)
    rates = [found[key] for key in ("wer", "oracle_wer", "worst_wer")]
    assert rates == [round(100 * errors / LENGTH, 2) for errors in (FIRST, ORACLE, WORST)]
    _, out, _ = run(command, lists, "--unit", "mixed")
    assert "MER %" in out


def test_errors_and_alignments_are_of_mixed_units(run, lists):
    code, out, _ = run("evaluate", lists, "--unit", "mixed", "--errors", "--alignments", "--json")
    found = json.loads(out)
    (errors,) = found["errors"]
    assert code == 0
    assert {(pair["reference"], pair["hypothesis"]) for pair in errors["substitutions"]} == {
        ("book", "look"),
        ("report", "reports"),
    }
    assert {item["word"] for item in errors["deletions"]} == {"ま", "で"}
    (aligned,) = [item for item in found["alignments"] if item["id"] == "u1"]
    assert aligned["first_pass"] == [["我", "我"], ["要", "要"], ["book", "look"], ["房", "房"], ["间", "间"]]
    _, out, _ = run("evaluate", lists, "--unit", "mixed", "--errors")
    assert "reference units" in out
    _, out, _ = run("evaluate", lists, "--unit", "mixed", "--alignments")
    assert "look" in out


@pytest.mark.slow
def test_other_commands_count_mixed_units(run, lists, bundle, tmp_path):
    both = [lists, tmp_path / "other.jsonl"]
    shutil.copy(*both)
    _, out, _ = run("compare", *both, "--unit", "mixed", "--json")
    found = json.loads(out)
    assert (found["unit"], found["systems"][0]["errors"]) == ("mixed", FIRST)
    _, out, _ = run("compare", *both, "--unit", "mixed")
    assert all(text in out for text in ("MER %", "units"))
    _, out, _ = run("combine", *both, "--unit", "mixed", "-o", tmp_path / "c.jsonl")
    assert "MER %" in out
    weights = ("--bundle", bundle, "-w", "lm:mixture=0")
    tune = ("tune", lists, *weights, "--force", "-o", tmp_path / "w.json")
    _, out, err = run(*tune, "--unit", "mixed")
    assert ("MER %" in out, "no spaces between words" in err) == (True, False)
    _, _, err = run(*tune)
    assert "no spaces between words" in err
    run("report", lists, "--unit", "mixed", "-o", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert all(text in page for text in ("MER %", f"{LENGTH} reference units", "characters of scripts"))
    acoustic = (*weights, "-w", "word=0", "-w", "oov=0")
    _, out, _ = run("inspect", lists, *acoustic, "--unit", "mixed", "--json")
    weighted = json.loads(out)["files"][0]["weights"]
    assert (weighted["first_errors"], weighted["errors"]) == (FIRST, FIRST)


def test_unknown_words_are_not_looked_for_among_characters(run, lists, bundle):
    """A model knows words: of characters it would say that all are known."""
    options = ("--bundle", bundle, "-w", "lm:mixture=0", "--errors", "--json")
    parts = {}
    for unit in ("word", "mixed"):
        _, out, _ = run("evaluate", lists, "--unit", unit, *options)
        parts[unit] = json.loads(out)["errors"][0]["parts"]
    assert "language models" in parts["word"]
    assert "language models" not in parts["mixed"]


def test_options_that_contradict_each_other_are_refused(run, lists):
    code, _, err = run("evaluate", lists, "--characters", "--unit", "mixed")
    assert (code, "--characters and --unit mixed contradict each other" in err) == (2, True)
    code, _, err = run("evaluate", lists, "--unit", "mixed", "--counting", "sclite", "--fragments")
    assert (code, "fragments are parts of words" in err) == (2, True)
    assert run("evaluate", lists, "--characters", "--unit", "character")[0] == 0
    with pytest.raises(ConfigError, match="unit is 'words'; expected one of word, character, mixed"):
        CountingSettings(unit="words")


def test_minimum_bayes_risk_minimises_mixed_units():
    words = [Normaliser().normalise(text) for text in ("我要 book", "我要 look", "我 要 book 吗", "窝要book")]
    posteriors = np.array([0.4, 0.3, 0.2, 0.1])
    for unit in ("word", "character", "mixed"):
        found = expected_errors(words, posteriors, unit)
        assert found == pytest.approx(plain_expected_errors(words, posteriors, unit)), unit
    assert expected_errors(words[:2], np.array([0.5, 0.5]), "mixed").tolist() == [0.5, 0.5]


@pytest.mark.slow
def test_words_in_text_without_spaces_are_warned_of(run, tmp_path):
    path = tmp_path / "zh.jsonl"
    lines = (
        json.dumps({"id": f"u{i}", "reference": text, "hypotheses": [{"text": text[:-1] + "吗"}]})
        for i, text in enumerate(("今天天气很好", "我们去北京", "ฉันชอบกาแฟ"))
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for command in ("evaluate", "inspect"):
        code, out, _ = run(command, path)
        text = " ".join(out.split())
        assert ("have no spaces between words" in text, "--unit mixed" in text) == (True, True), command
        assert code == (command == "inspect")
        _, out, _ = run(command, path, "--characters")
        assert "no spaces" not in out
    _, out, _ = run("evaluate", path, "--json")
    assert "6 of 6 texts" in json.loads(out)["notes"][0]
    _, out, _ = run("inspect", path, "--json")
    assert "no_spaces" in [finding["code"] for finding in json.loads(out)["files"][0]["findings"]]
    other = tmp_path / "other.jsonl"
    shutil.copy(path, other)
    _, out, _ = run("compare", path, other)
    assert "3 of 3 texts have no spaces between words" in " ".join(out.split())
    run("report", path, "-o", tmp_path / "r.html")
    assert "no spaces between words" in (tmp_path / "r.html").read_text(encoding="utf-8")

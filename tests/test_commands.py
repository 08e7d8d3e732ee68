"""The commands as their users meet them: files in and out, exit codes, messages."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rescorer.cli import main
from rescorer.formats.jsonlines import read_lists
from rescorer.pipeline import Rescorer
from rescorer.service.settings import ServiceSettings
from training.cli import main as train_main


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command in this process; gives its exit code, output and error output."""

    def call(*arguments, command=main):
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        code = 0
        try:
            command()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


REJECT_KEYS = tuple(
    re.findall(
        r"^\| `(\w+)` \|",
        (Path(__file__).parents[1] / "docs" / "formats.md")
        .read_text()
        .split("## Rejected lists")[1]
        .split("\n## ")[0],
        re.MULTILINE,
    )
)


def record(name: str, *texts: str, **fields) -> str:
    hypotheses = [{"text": text, "scores": {"acoustic": -1.0 - i}} for i, text in enumerate(texts)]
    return json.dumps({"id": name, "hypotheses": hypotheses, **fields})


GOOD = [record("u1", "the cat", "the mat", reference="the mat", group="s1", note="kept"),
        record("u2", "on the cat", "", reference="on the mat", group="s2")]  # fmt: skip


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_rescore_equals_the_library(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    code, _, err = run("rescore", source, "-o", tmp_path / "out.jsonl.gz", "--bundle", bundle)
    assert (code, "2 lists, 4 hypotheses" in err) == (0, True)
    with gzip.open(tmp_path / "out.jsonl.gz", "rt") as file:
        written = [json.loads(line) for line in file]
    answers = Rescorer.load(bundle).rescore(list(read_lists(source)))
    for record_, answer in zip(written, answers, strict=True):
        assert record_["id"] == answer.id
        assert record_["model"] == "tiny/1"
        for hypothesis, expected in zip(record_["hypotheses"], answer.hypotheses, strict=True):
            assert hypothesis["text"] == expected.text
            assert hypothesis["total"] == pytest.approx(expected.total, abs=1e-5)
            assert hypothesis["original_rank"] == expected.original_rank + 1
    assert written[0]["note"] == "kept"
    assert not (tmp_path / "out.jsonl.gz.rejects").exists()


def test_a_bad_list_goes_to_the_rejects_and_the_rest_goes_on(run, bundle, tmp_path):
    no_score = json.dumps({"id": "u3", "hypotheses": [{"text": "the"}]})
    nan = '{"id": "u4", "hypotheses": [{"text": "the", "scores": {"acoustic": NaN}}]}'
    empty = '{"id": "u5", "hypotheses": []}'
    source = write(tmp_path / "in.jsonl", GOOD[0], no_score, nan, "{broken", empty, GOOD[1])
    code, out, err = run("rescore", source, "--bundle", bundle, "--rejects", tmp_path / "bad.jsonl", "--json")
    assert code == 1
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["u1", "u2"]
    rejects = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert json.loads(err.splitlines()[-1])["rejected"] == len(rejects) == 4
    assert rejects[0]["list"]["id"] == "u3"  # what could be read comes back
    assert 'streams["acoustic"]' in rejects[0]["reason"]
    assert [reject["reason"].count("in.jsonl:") for reject in rejects[1:]] == [1, 1, 1]
    assert {tuple(reject) for reject in rejects} == {REJECT_KEYS}
    known = [{name for name, value in reject.items() if value is not None} for reject in rejects]
    place = {"file", "line"}
    assert known == [
        {"reason", "id", "field", "list"},
        {"reason", "id", "hypothesis", "field", *place},
        {"reason", *place},
        {"reason", "id", "field", *place},
    ]
    assert [reject["line"] for reject in rejects] == [None, 3, 4, 5]
    assert (rejects[1]["id"], rejects[1]["hypothesis"]) == ("u4", 0)


def test_a_pipe_works_as_a_real_process(bundle):
    command = [sys.executable, "-m", "rescorer.cli", "rescore", "-", "--bundle", str(bundle), "--quiet"]
    done = subprocess.run(command, input="\n".join(GOOD), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["rescore", "/no/such/file", "--bundle", "BUNDLE"], 3, "/no/such/file"),
        (["rescore", "IN", "--bundle", "/no/such/bundle"], 4, "no such bundle folder"),
        (["rescore", "IN", "--bundle", "BUNDLE", "-w", "word=much"], 2, "expected NAME=NUMBER"),
        (["rescore", "IN", "--bundle", "BUNDLE", "-w", "lm:gpt=1"], 2, "gpt"),
        (["rescore", "IN", "--bundle", "BUNDLE", "--weights", "other"], 2, "other"),
        (["rescore", "IN", "--bundle", "BUNDLE", "--map", "txt=a"], 2, "txt"),
        (["rescore", "IN", "--bundle", "BUNDLE", "--stream", "a=b:7"], 2, "a=b:7"),
        (["rescore", "IN", "--bundle", "BUNDLE", "-w", "acustic=1"], 2, "did you mean 'acoustic'?"),
        (["rescore", "IN", "--bundle", "BUNDLE", "-w", "wrod=1"], 2, "did you mean 'word'?"),
        (["rescore", "IN", "--bundle", "BUNDLE", "-w", "graph=1"], 2, "`-w graph=0` leaves it out"),
        (["rescore", "IN", "--bundle", "BUNDLE", "-w", "mixture=9"], 2, "did you mean `-w lm:mixture=9`?"),
        (["rescore", "IN", "--bundle", "BUNDLE", "-w", "lm:neurl=1"], 2, "did you mean 'neural'?"),
        (["rescore", "IN", "--bundle", "BUNDLE", "-w", "mix:neurl=1"], 2, "did you mean 'neural'?"),
        (["rescore", "IN", "--bundle", "BUNDLE", "--weights", "defualt"], 2, "did you mean 'default'?"),
        (["rescore", "IN", "--bundle", "BUNDLE", "--map", "hypothesis=h"], 2, "did you mean 'hypotheses'?"),
        (["rescore", "IN", "--bundle", "BUNDLE", "--stream", "am=acustic"], 2, "did you mean 'acoustic'?"),
        (["rescore", "IN", "--bundle", "BUNDLE", "--format", "jsnl"], 2, "did you mean 'jsonl'?"),
        (["evaluate", "IN", "--bundle", "BUNDLE", "-w", "acustic=1"], 2, "did you mean 'acoustic'?"),
        (["evaluate", "IN", "--first-pass", "acustic=1"], 2, "did you mean 'acoustic'?"),
        (["tune", "IN", "-o", "OUT", "--bundle", "BUNDLE", "-w", "acustic=1"], 2, "mean 'acoustic'?"),
        (["evaluate", "IN", "--tune"], 2, "--bundle"),
        (["score", "/no/such/file", "--bundle", "BUNDLE"], 3, "/no/such/file"),
    ],
)
def test_faults_are_one_line_and_an_exit_code(run, bundle, tmp_path, arguments, code, message):
    source = write(tmp_path / "in.jsonl", *GOOD)
    places = {"BUNDLE": bundle, "IN": source, "OUT": tmp_path / "out.json"}
    found, _, err = run(*(places.get(argument, argument) for argument in arguments))
    assert (found, message in err, len(err.splitlines())) == (code, True, 1)


def test_a_stream_that_only_some_lists_have_costs_only_the_others(run, bundle, tmp_path):
    bare = json.dumps({"id": "u3", "hypotheses": [{"text": "the"}]})
    source = write(tmp_path / "in.jsonl", bare, *GOOD)
    code, out, _ = run("rescore", source, "--bundle", bundle)
    assert (code, len(out.splitlines())) == (1, 2)
    code, out, err = run("rescore", write(source, bare), "--bundle", bundle)
    assert (code, out, "no scores at all" in err) == (2, "", True)


def test_evaluate_counts_and_compares(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    code, out, _ = run("evaluate", source, "--json")
    report = json.loads(out)
    assert (code, report["wer"], report["oracle_wer"], report["errors"]) == (0, 40.0, 20.0, 2)
    assert set(report["groups"]) == {"s1", "s2"}
    code, out, _ = run("evaluate", source, "--bundle", bundle, "--tune", "--json")
    compared = json.loads(out)
    assert set(compared["systems"]) == {
        "first pass", "ngram", "ngram, tuned", "neural", "neural, tuned", "mixture", "mixture, tuned",
    }  # fmt: skip
    assert compared["systems"]["first pass"]["wer"] == 40.0
    assert compared["references"][str(source)]["tokens"] == 7
    run("rescore", source, "-o", tmp_path / "out.jsonl", "--bundle", bundle)
    _, out, _ = run("evaluate", tmp_path / "out.jsonl", "--json")
    rescored = json.loads(out)
    assert rescored["wer"] == compared["systems"]["mixture"]["wer"]
    assert rescored["first_pass_wer"] == 40.0


def test_tuned_weights_say_which_lists_tuned_them(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    assert run("tune", source, "--bundle", bundle, "-o", tmp_path / "w.json")[0] == 0
    _, _, err = run("evaluate", source, "--bundle", bundle, "--weights", tmp_path / "w.json")
    assert "2 of 2 lists tuned the weights 'w'" in err
    other = write(tmp_path / "other.jsonl", record("u9", "the cat", "the mat", reference="the mat"))
    _, _, err = run("evaluate", other, "--bundle", bundle, "--weights", tmp_path / "w.json")
    assert err == ""


def test_evaluate_takes_references_from_elsewhere(run, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "the cat"), record("u2", "the mat"))
    trn = write(tmp_path / "ref.trn", "the cat (u1)", "the { mat / rug } (u2)")
    code, out, err = run("evaluate", source, "--reference", trn, "--json")
    assert (code, json.loads(out)["wer"], err) == (0, 0.0, "")
    part = write(tmp_path / "part.jsonl", record("u1", "the cat"))
    code, _, err = run("evaluate", part, "--reference", trn)
    assert (code, err) == (0, f"{part}: no lists of 1 of 2 references: 'u2'\n")
    code, _, err = run("evaluate", source)
    assert (code, "u1" in err, "reference" in err) == (3, True, True)


def test_a_list_that_cannot_be_evaluated_does_not_stop_the_others(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", GOOD[0], record("u3", "no reference"), GOOD[1])
    for options in ((), ("--bundle", bundle)):
        code, out, err = run("evaluate", source, "--json", *options)
        report = json.loads(out)
        assert (code, report["rejected"], "'u3'" in err) == (1, 1, True)
        assert report.get("systems", {"x": report}).popitem()[1]["lists"] == 2
    code, out, _ = run("tune", source, "--bundle", bundle, "-o", tmp_path / "w.json")
    assert (code, "1 lists rejected" in out) == (0, True)


def test_many_rejected_lists_are_summed_up(run, tmp_path):
    """The first few of each kind of fault by name, and how many more; all of them in the JSON."""
    unsaid = [record(f"u{i}", "the cat") for i in range(100, 150)]
    source = write(
        tmp_path / "in.jsonl", *GOOD, *unsaid, "{broken", json.dumps({"id": "e", "hypotheses": []})
    )
    code, out, err = run("evaluate", source, "--json")
    assert code == 1
    assert len(err.splitlines()) == 3 + 1 + 1 + 1
    assert all(f"'u{i}'" in err for i in (100, 101, 102))
    assert "rejected: 47 more lists for their reference; --json names them all" in err
    assert "in.jsonl:53" in err  # faults of another kind do not drown
    report = json.loads(out)
    assert report["rejected"] == len(report["rejected_lists"]) == 52
    assert sum("no reference" in reason for reason in report["rejected_lists"]) == 50
    _, out, err = run("inspect", write(tmp_path / "bad.jsonl", GOOD[0], *["{broken"] * 9), "--json")
    assert (len(json.loads(out)["rejected_lists"]), len(err.splitlines())) == (9, 4)


def test_merged_hypotheses_keep_their_first_pass(run, bundle, tmp_path):
    """The recogniser's first choice lives on in the hypothesis that it was merged into."""
    first = record("u1", "the cat", "the mat", "The CAT", reference="the cat")
    scores = json.loads(first)
    for hypothesis, score in zip(scores["hypotheses"], (-1.0, -50.0, -0.5), strict=True):
        hypothesis["scores"]["acoustic"] = score
    source = write(tmp_path / "in.jsonl", json.dumps(scores))
    _, _, err = run("rescore", source, "-o", tmp_path / "out.jsonl", "--bundle", bundle, "--merge")
    assert "changed in 0" in err
    _, out, _ = run("evaluate", tmp_path / "out.jsonl", "--json")
    assert (json.loads(out)["first_pass_wer"], json.loads(out)["wer"]) == (0.0, 0.0)


def test_evaluate_counts_as_sclite_does(run, tmp_path):
    source = write(
        tmp_path / "in.jsonl",
        record("u1", "b c d a", reference="d a b a c"),
        record("u2", "word on", reference="(uh) wo- on"),
    )

    def errors(*options):
        code, out, _ = run("evaluate", source, "--json", *options)
        result = json.loads(out)
        assert code == 0
        return result["counting"], result["unit"], result["errors"], result["reference_words"]

    assert errors() == ("levenshtein", "word", 6, 8)
    assert errors("--counting", "sclite") == ("sclite", "word", 7, 8)
    assert errors("--counting", "sclite", "--optional-words", "--fragments") == ("sclite", "word", 5, 8)
    assert errors("--characters") == ("levenshtein", "character", 8, 11)
    _, out, _ = run("evaluate", source, "--characters")
    assert "CER %" in out.splitlines()[0]
    code, _, err = run("evaluate", source, "--fragments")
    assert (code, "count with sclite" in err) == (2, True)


def test_score_prints_words_and_perplexity(run, bundle, tmp_path):
    text = write(tmp_path / "t.txt", "The cat sat.", "zork on")
    code, out, _ = run("score", text, "--bundle", bundle, "--words", "--json")
    *sentences, totals = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert sentences[1]["words"] == ["zork", "on", "</s>"]
    assert sentences[1]["unknown"] == [True, False, False]
    assert totals["tokens"] == 7
    summed = sum(sum(each["word_log_probs"]["mixture"]) for each in sentences)
    assert totals["log_prob"]["mixture"] == pytest.approx(summed, abs=1e-3)
    code, out, _ = run("score", text, "--bundle", bundle, "--words")
    assert "zork (unknown)" in out


@pytest.mark.parametrize("command", [main, train_main])
def test_every_command_teaches(run, command):
    _, out, _ = run("--help", command=command)
    names = [
        line.split()[1]
        for line in out.split("Commands")[1].splitlines()
        if line.startswith("│ ") and line[2] != " "
    ]
    assert len(names) >= 3
    for name in names:
        code, out, _ = run(name, "--help", command=command)
        assert (code, "Example:" in out) == (0, True), name


def test_serve_shows_the_defaults_of_its_settings(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # one line an option
    _, out, _ = run("serve", "--help")
    shown = dict(re.findall(r"--([a-z-]+) .*\(default (.+?)\)", out))
    assert {"max-message-bytes", "max-lists", "grace-s"} <= set(shown)
    for option, default in shown.items():
        setting = ServiceSettings.model_fields[option.replace("-", "_")].default
        assert type(setting)(default) == setting, option


def test_training_commands_end_in_a_bundle_that_serves(run, tmp_path):
    text = write(tmp_path / "t.txt", *("the cat sat on the mat", "a dog ran", "the dog sat on a mat") * 20)
    held_out = write(tmp_path / "v.txt", *("a cat sat on the mat", "the dog ran", "a zebra sat") * 5)
    arpa, neural = tmp_path / "m.arpa.gz", tmp_path / "run"
    assert run("ngram", text, "-o", arpa, "--order", 3, command=train_main)[0] == 0
    sizes = ("--embedding", 8, "--hidden", 12, "--epochs", 2, "--batch-words", 64)
    elsewhere = (*sizes, "--device", "foo")
    code, _, err = run("neural", text, "--validation", held_out, "-o", neural, *elsewhere, command=train_main)
    assert (code, err) == (2, "rescorer-train: device is 'foo'; torch has here: cpu\n")
    assert run("neural", text, "--validation", held_out, "-o", neural, *sizes, command=train_main)[0] == 0
    code, _, err = run("neural", text, "--validation", held_out, "-o", neural, *sizes, command=train_main)
    assert (code, "--resume" in err) == (2, True)
    # A resumed run must be the same run, and an inherited network has its own sizes.
    code, _, err = run(
        "neural", held_out, "--validation", held_out, "-o", neural, *sizes, "--resume", command=train_main
    )
    assert (code, "texts was" in err) == (2, True)
    other = ("neural", text, "--validation", held_out, "-o", tmp_path / "run2", "--start-from", neural)
    code, _, err = run(*other, "--hidden", 64, command=train_main)
    assert (code, "hidden_size" in err) == (2, True)
    assert run(*other, "--epochs", 1, "--dropout", 0.3, command=train_main)[0] == 0
    assert json.loads((tmp_path / "run2" / "best" / "config.json").read_text())["dropout"] == 0.3
    made = tmp_path / "models" / "mine" / "3"
    parts = ("--ngram", arpa, "--neural", neural / "best", "--validation", held_out, "--half", "--json")
    code, out, _ = run("bundle", made, *parts, "--note", "text=ours", command=train_main)
    manifest = json.loads(out)
    assert (code, manifest["name"], manifest["version"], manifest["training"]["text"]) == (
        0,
        "mine",
        3,
        "ours",
    )
    measured = manifest["measured"]["validation"]["perplexity"]
    assert measured["mixture"] <= min(measured["ngram"], measured["neural"]) + 1e-6
    assert Rescorer.load(made).bundle.label == "mine/3"
    assert run("bundle", made, *parts, command=train_main)[0] == 2  # immutable


def test_lists_are_not_overwritten_by_what_becomes_of_them(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    code, _, err = run("rescore", source, "-o", source, "--bundle", bundle)
    assert (code, "is the file of the lists" in err) == (2, True)
    assert source.read_text().splitlines() == GOOD
    code, _, err = run("rescore", source, "-o", tmp_path / "no" / "out.jsonl", "--bundle", bundle)
    assert (code, "--output" in err, "no such folder" in err) == (2, True, True)


def test_weights_that_leave_all_scores_out_are_told(run, bundle, tmp_path):
    source, weights = (
        write(tmp_path / "in.jsonl", *GOOD),
        write(tmp_path / "w.json", '{"lm": {"mixture": 9}}'),
    )
    code, _, err = run(
        "rescore", source, "-o", tmp_path / "o.jsonl", "--bundle", bundle, "--weights", weights
    )
    assert (code, "warning: weights 'w' count no score of the lists (acoustic)" in err) == (0, True)

"""The commands end to end: files in and out, exit codes, messages."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pyarrow.json
import pytest
from pyarrow import parquet as pq

from rescorer.cli import main
from rescorer.cli.program import REMOVED
from rescorer.formats.io.text_io import MAX_LINE_VARIABLE
from rescorer.formats.jsonlines import read_lists
from rescorer.pipeline import Rescorer
from rescorer.service.settings import ServiceSettings
from rescorer.terminal import progress
from rescorer.terminal.progress import count_json_lines
from rescorer_training.cli import main as train_main
from tests.support.list_lines import GOOD, write

REJECT_KEYS = tuple(
    re.findall(
        r"^\| `(\w+)` \|",
        (Path(__file__).parents[2] / "docs" / "formats.md")
        .read_text()
        .split("## Rejected lists")[1]
        .split("\n## ")[0],
        re.MULTILINE,
    )
)


def test_rescore_equals_the_library(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    code, _, err = run("rescore", source, "-o", tmp_path / "out.jsonl.gz", "--bundle", bundle)
    assert (code, "2 lists, 4 hypotheses" in err) == (0, True)
    with gzip.open(tmp_path / "out.jsonl.gz", "rt") as file:
        written = [json.loads(line) for line in file]
    results = Rescorer.load(bundle).rescore(list(read_lists(source)))
    for record, result in zip(written, results, strict=True):
        assert record["id"] == result.id
        assert record["model"] == "tiny/1"
        for hypothesis, expected in zip(record["hypotheses"], result.hypotheses, strict=True):
            assert hypothesis["text"] == expected.text
            assert hypothesis["total"] == pytest.approx(expected.total, abs=1e-5)
            assert hypothesis["original_rank"] == expected.original_rank + 1
    assert written[0]["note"] == "kept"
    assert not (tmp_path / "out.jsonl.gz.rejects").exists()


@pytest.mark.parametrize("to", ["jsonl", "parquet", "trn"])
def test_writes_only_the_best_hypotheses(run, ngram_bundle, tmp_path, to):
    source, outputs = write(tmp_path / "in.jsonl", *GOOD), (tmp_path / "whole", tmp_path / "best")
    for output, options in zip(outputs, ([], ["--best-only"]), strict=True):
        code, _, err = run("rescore", source, "-o", output, "--to", to, *options, "--bundle", ngram_bundle)
        assert (code, "2 lists, 4 hypotheses" in err) == (0, True)
    if to == "trn":  # has only them anyway
        assert outputs[0].read_text() == outputs[1].read_text()
        return
    read = pq.read_table if to == "parquet" else pyarrow.json.read_json
    whole, best = (read(output)["hypotheses"].to_pylist() for output in outputs)
    assert [len(hypotheses) for hypotheses in whole] == [2, 2]
    assert best == [hypotheses[:1] for hypotheses in whole]
    for output in outputs:
        code, out, _ = run("evaluate", output)
        assert (code, "2 lists" in out) == (0, True)


def test_writes_invalid_lists_to_the_rejects_and_continues(run, bundle, tmp_path):
    no_score = json.dumps({"id": "u3", "hypotheses": [{"text": "the"}]})
    nan = '{"id": "u4", "hypotheses": [{"text": "the", "scores": {"acoustic": NaN}}]}'
    empty = '{"id": "u5", "hypotheses": []}'
    source = write(tmp_path / "in.jsonl", GOOD[0], no_score, nan, "{broken", empty, GOOD[1])
    code, out, err = run("rescore", source, "--bundle", bundle, "--rejects", tmp_path / "bad.jsonl", "--json")
    assert code == 1
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["u1", "u2"]
    rejects = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert json.loads(err.splitlines()[-1])["rejected"] == len(rejects) == 4
    assert rejects[0]["list"]["id"] == "u3"  # a list that could be read is included
    assert 'streams["acoustic"]' in rejects[0]["reason"]
    assert [reject["reason"].count("in.jsonl:") for reject in rejects[1:]] == [1, 1, 1]
    assert {tuple(reject) for reject in rejects} == {REJECT_KEYS}
    filled = [{name for name, value in reject.items() if value is not None} for reject in rejects]
    place = {"file", "line"}
    assert filled == [
        {"reason", "id", "field", "list"},
        {"reason", "id", "hypothesis", "field", *place},
        {"reason", *place},
        {"reason", "id", "field", *place},
    ]
    assert [reject["line"] for reject in rejects] == [None, 3, 4, 5]
    assert (rejects[1]["id"], rejects[1]["hypothesis"]) == ("u4", 0)


@pytest.mark.slow
def test_works_in_a_pipe(bundle):
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
        (["rescore", "IN", "--bundle", "BUNDLE", "-w", "lm=9"], 2, "`-w lm:mixture=9`; `-w lm=0` leaves"),
        (["rescore", "IN", "--bundle", "BUNDLE", "-w", "reranker=1"], 2, "write `-w reranker:NAME=1`"),
        (["explain", "IN", "--bundle", "BUNDLE", "-w", "lm=9"], 2, "write `-w lm:mixture=9`"),
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
def test_errors_are_one_line_and_an_exit_code(run, bundle, tmp_path, arguments, code, message):
    source = write(tmp_path / "in.jsonl", *GOOD)
    paths = {"BUNDLE": bundle, "IN": source, "OUT": tmp_path / "out.json"}
    exit_code, _, err = run(*(paths.get(argument, argument) for argument in arguments))
    assert (exit_code, message in err, len(err.splitlines())) == (code, True, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["rescore", "LONG", "--bundle", "BUNDLE"],
        ["rescore", "IN", "--bundle", "LONG"],
        ["rescore", "IN", "--bundle", "BUNDLE", "-o", "LONG"],
        ["rescore", "IN", "--lm", "lm=LONG"],
        ["evaluate", "LONG"],
        ["tune", "IN", "--bundle", "LONG", "-o", "OUT"],
    ],
)
def test_a_path_that_cannot_be_looked_at_is_named_in_one_line(run, bundle, tmp_path, arguments):
    """``Path.exists`` raises if a name is too long, or if the folder above may not be read."""
    source, long = write(tmp_path / "in.jsonl", *GOOD), "n" * 300
    paths = {
        "BUNDLE": bundle,
        "IN": source,
        "OUT": tmp_path / "out.json",
        "LONG": long,
        "lm=LONG": f"lm={long}",
    }
    exit_code, out, err = run(*(paths.get(argument, argument) for argument in arguments))
    assert (out, len(err.splitlines()), "File name too long" in err, long[:40] in err) == ("", 1, True, True)
    assert exit_code in (2, 3, 4)


def test_rejects_only_the_lists_that_lack_a_stream(run, bundle, tmp_path):
    bare = json.dumps({"id": "u3", "hypotheses": [{"text": "the"}]})
    source = write(tmp_path / "in.jsonl", bare, *GOOD)
    code, out, _ = run("rescore", source, "--bundle", bundle)
    assert (code, len(out.splitlines())) == (1, 2)
    code, out, err = run("rescore", write(source, bare), "--bundle", bundle)
    assert (code, out, "no scores at all" in err) == (2, "", True)


def test_score_prints_words_and_perplexity(run, bundle, tmp_path):
    text = write(tmp_path / "t.txt", "The cat sat.", "zork on")
    code, out, _ = run("score", text, "--bundle", bundle, "--words", "--json")
    *sentences, totals = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert sentences[1]["words"] == ["zork", "on", "</s>"]
    assert sentences[1]["unknown"] == [True, False, False]
    assert totals["tokens"] == 7
    summed = sum(sum(sentence["word_log_probs"]["mixture"]) for sentence in sentences)
    assert totals["log_prob"]["mixture"] == pytest.approx(summed, abs=1e-3)
    code, out, _ = run("score", text, "--bundle", bundle, "--words")
    assert "zork (unknown)" in out


@pytest.mark.parametrize("command", [main, train_main])
def test_help_of_every_command_has_an_example(run, command):
    _, out, _ = run("--help", command=command)
    names = re.findall(r"^  (\w+) ", out.split("Commands:")[1].split("Exit codes")[0], re.MULTILINE)
    assert len(names) >= 3
    for name in names:
        code, out, _ = run(name, "--help", command=command)
        assert code == 0
        parts = (
            re.findall(r"^  (\w+) ", out.split("Commands:")[1], re.MULTILINE) if "Commands:" in out else []
        )
        for arguments in [(name, part) for part in parts] or [(name,)]:
            code, out, _ = run(*arguments, "--help", command=command)
            assert (code, "Example:" in out) == (0, True), arguments


def test_help_of_serve_shows_whole_names_and_defaults(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("serve", "--help")
    assert max(map(len, out.splitlines())) <= 80
    options = re.split(r"^  (?:-b, )?--", out, flags=re.MULTILINE)[1:]
    texts = {name: " ".join(rest) for name, *rest in map(str.split, options)}
    assert {name.replace("_", "-") for name in ServiceSettings.model_fields} <= texts.keys()
    shown = {
        name: text[9:-1] for name, text in texts.items() for text in re.findall(r"\(default .+?\)", text)
    }
    assert {"max-message-bytes", "max-lists", "grace-s"} <= set(shown)
    for option, default in shown.items():
        setting = ServiceSettings.model_fields[option.replace("-", "_")].default
        assert type(setting)(default) == setting, option


@pytest.mark.slow
def test_trains_a_bundle_from_text(run, tmp_path):
    text = write(tmp_path / "t.txt", *("the cat sat on the mat", "a dog ran", "the dog sat on a mat") * 20)
    held_out = write(tmp_path / "v.txt", *("a cat sat on the mat", "the dog ran", "a zebra sat") * 5)
    arpa, neural = tmp_path / "m.arpa.gz", tmp_path / "run"
    assert run("ngram", text, "-o", arpa, "--order", 3, command=train_main)[0] == 0
    sizes = ("--embedding", 8, "--hidden", 12, "--epochs", 2, "--batch-words", 64)
    elsewhere = (*sizes, "--device", "foo")
    code, _, err = run("neural", text, "--validation", held_out, "-o", neural, *elsewhere, command=train_main)
    assert (code, err) == (2, "rescorer-train: device 'foo' is not available; torch has: cpu\n")
    assert run("neural", text, "--validation", held_out, "-o", neural, *sizes, command=train_main)[0] == 0
    code, _, err = run("neural", text, "--validation", held_out, "-o", neural, *sizes, command=train_main)
    assert (code, "--resume" in err) == (2, True)
    # A run can only be resumed with its own options, and an inherited network keeps its sizes.
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
    code, out, _ = run("bundle", made, *parts, "--note", "text=mine", command=train_main)
    manifest = json.loads(out)
    assert (code, manifest["name"], manifest["version"], manifest["training"]["text"]) == (
        0,
        "mine",
        3,
        "mine",
    )
    measured = manifest["measured"]["validation"]["perplexity"]
    assert measured["mixture"] <= min(measured["ngram"], measured["neural"]) + 1e-6
    assert Rescorer.load(made).bundle.label == "mine/3"
    assert run("bundle", made, *parts, command=train_main)[0] == 2  # immutable


def test_does_not_overwrite_its_input(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    code, _, err = run("rescore", source, "-o", source, "--bundle", bundle)
    assert (code, "would overwrite the input lists" in err) == (2, True)
    assert source.read_text().splitlines() == GOOD
    code, _, err = run("rescore", source, "-o", tmp_path / "no" / "out.jsonl", "--bundle", bundle)
    assert (code, "--output" in err, "no such folder" in err) == (2, True, True)


def test_warns_if_weights_use_no_scores(run, bundle, tmp_path):
    source, weights = (
        write(tmp_path / "in.jsonl", *GOOD),
        write(tmp_path / "w.json", '{"lm": {"mixture": 9}}'),
    )
    code, _, err = run(
        "rescore", source, "-o", tmp_path / "o.jsonl", "--bundle", bundle, "--weights", weights
    )
    assert (code, "warning: weights 'w' use no score of the lists (acoustic)" in err) == (0, True)


def test_rescore_warns_if_choices_look_reversed(run, ngram_bundle, tmp_path):
    """Costs that are read as log-probabilities choose the recogniser's worst hypotheses."""
    lists = []
    for i in range(12):
        nbest = {"id": f"u{i}", "hypotheses": []}
        for rank, text in enumerate(("the cat", "the mat", "a mat", "on")):
            nbest["hypotheses"].append({"text": text, "scores": {"acoustic": 50.0 * rank + i}})
        lists.append(json.dumps(nbest))
    source = write(tmp_path / "in.jsonl", *lists)
    options = ("-o", tmp_path / "out.jsonl", "--bundle", ngram_bundle)
    assert (
        "in 12 of 12 lists the best hypothesis comes from the lower half"
        in run("rescore", source, *options)[2]
    )
    assert "lower half" not in run("rescore", source, *options, "--stream", "acoustic=acoustic:e:cost")[2]


def test_progress_has_a_total_where_the_size_is_known(tmp_path):
    lines = ['{"id": "a", "hypotheses": []}', "", '{"id": "b", "hypotheses": []}']
    plain = write(tmp_path / "a.jsonl", *lines)
    assert count_json_lines(str(plain)) == 2
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert count_json_lines(str(packed)) == 2
    header = write(tmp_path / "b.jsonl", '{"format": "x"}', *lines)
    assert count_json_lines(str(header)) == 2
    one_line = write(tmp_path / "document.json", '{"results": [{}, {}]}')
    for other in (write(tmp_path / "c.txt", "the cat (u1)"), one_line, tmp_path, "-"):
        assert count_json_lines(str(other)) is None


@pytest.mark.parametrize("n_before", [0, 2])
def test_counting_lists_never_holds_a_line_that_is_too_long(n_before, tmp_path, monkeypatch):
    monkeypatch.setenv(MAX_LINE_VARIABLE, "100000")
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(b"{}\n" * n_before + b"{" + bytes(1 << 24), compresslevel=1))
    tracemalloc.start()
    try:
        assert count_json_lines(str(packed)) == (n_before or None)
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("is_terminal", "is_quiet"), [(True, False), (True, True), (False, False)])
def test_inputs_are_counted_only_for_a_bar_that_is_shown(is_terminal, is_quiet, monkeypatch):
    counted: list[str] = []
    monkeypatch.setattr(progress, "count_json_lines", counted.append)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with progress.show_rescoring(not is_quiet, ["a.jsonl"]):
        pass
    assert bool(counted) == (is_terminal and not is_quiet)


@pytest.mark.parametrize("command", REMOVED)
def test_a_command_that_was_removed_names_what_to_use_instead(run, command):
    code, out, err = run(command, "--any", "options")
    assert (code, out) == (2, "")
    assert f"'{command}' was removed: " in err

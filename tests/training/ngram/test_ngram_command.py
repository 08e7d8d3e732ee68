"""The command ``rescorer-train ngram``: options, files, KenLM's tools and errors."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rescorer.errors import FormatError
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.cli import app, main
from rescorer_training.corpus import read_sentences
from rescorer_training.evaluation.perplexity import TextPerplexity, measure, open_ngram, score_tokens
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from tests.support.arpa_dicts import read_arpa

GOLDEN = Path(__file__).parents[2] / "golden" / "kneser-ney"
TEXT = str(GOLDEN / "text.txt")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command and returns its exit status, stdout and stderr."""

    def run(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rescorer-train", "ngram", *map(str, args)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        return int(exit_info.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def fake_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that puts a shell script on the PATH in place of a tool."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def install(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return install


def test_writes_arpa_and_json_summary(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "new" / "model.arpa.gz"
    status, out, _ = run(TEXT, "-o", output, "--order", 3, "--prune", 0, 0, 1, "--validation", TEXT, "--json")
    summary = json.loads(out)
    assert status == 0
    orders = read_arpa(output)
    assert [order["n_kept"] for order in summary["orders"]] == [len(order) for order in orders]
    assert summary["output_bytes"] == output.stat().st_size
    assert (summary["n_words"], summary["n_sentences"], summary["n_unknown"]) == (227, 37, 0)
    assert summary["validation"]["n_tokens"] == 227 + 37
    assert 1 < summary["validation"]["perplexity"] < 28
    assert sorted(path.name for path in output.parent.iterdir()) == [output.name, f"{output.name}.text.json"]


def test_prints_readable_summary(run: Run, tmp_path: Path) -> None:
    status, out, _ = run(
        TEXT, "-o", tmp_path / "model.arpa", "--order", 2, "--vocabulary-size", 5, "--validation", TEXT
    )
    assert status == 0
    assert "D3+" in out
    assert "37 sentences" in out
    assert "perplexity" in out


def test_warns_of_text_that_is_not_divided_into_words(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = tmp_path / "zh.txt"
    sentences = ["今天天气很好", "我们去北京", "他说中文", "ฉันชอบกาแฟ"]
    for written, warned in ((sentences, True), ([" ".join(sentence) for sentence in sentences], False)):
        text.write_text("\n".join(written) + "\n", encoding="utf-8")
        caplog.clear()
        status, _, _ = run(text, "-o", tmp_path / "model.arpa", "--order", 2)
        assert (status, "4 of 4 texts have no spaces between words" in caplog.text) == (0, warned)


def test_counts_unknown_words_only_on_request(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a <unk> b\na b\n")
    raw = Normaliser(NormaliserSettings.raw())
    train_ngram([text], raw, tmp_path / "c.arpa", NGramOptions(2, vocabulary_size=1, count_unknown=True))
    counted = read_arpa(tmp_path / "c.arpa")
    assert ("a", "<unk>") in counted[1]
    assert ("<unk>", "<unk>") in counted[1]
    text.write_text("a c b\na b\n")
    train_ngram([text], raw, tmp_path / "d.arpa", NGramOptions(2, vocabulary_size=1))
    pruned = read_arpa(tmp_path / "d.arpa")
    assert set(pruned[0]) == {("<unk>",), ("<s>",), ("</s>",), ("a",)}
    assert set(pruned[1]) == {("<s>", "a")}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--order", "7"], "order is 7; expected 2 to 6"),
        (["--prune", "0", "2", "1"], "decrease"),
        (["--prune", "1"], "order 1"),
        (["--prune", "few"], "whole numbers"),
        (["--vocabulary-size", "0"], "at least 1"),
        (["--vocabulary", TEXT, "--vocabulary-size", "3"], "one of them"),
        (["--vocabulary", "/dev/null"], "has no words; expected one per line"),
        (["--engine", "srilm"], "expected ours or lmplz"),
        (["--engine", "lmplz", "--count-unk"], "lmplz"),
        (["--normaliser", "/dev/null"], "expected a regular file"),
        (["--normaliser", "default"], "normaliser default: no such file; expected 'raw' for text that"),
    ],
)
def test_reports_invalid_options_in_one_line(args: list[str], message: str, run: Run, tmp_path: Path) -> None:
    status, _, err = run(TEXT, "-o", tmp_path / "model.arpa", *args)
    assert status == 2
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["the 23", "the\t23", "23 the"])
def test_a_vocabulary_with_counts_is_refused(line: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(f"and\n\n{line}\n")
    status, _, err = run(TEXT, "-o", tmp_path / "model.arpa", "--vocabulary", tmp_path / "words.txt")
    assert status == 2
    assert f"words.txt:3: expected one word per line, got {line!r}; leave out counts" in err


@pytest.mark.parametrize("special", ["<s>", "</s>", "<unk>"])
def test_rejects_special_words_in_the_text(special: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"one {special} two\n")
    status, _, err = run(tmp_path / "text.txt", "-o", tmp_path / "model.arpa", "--normaliser", "raw")
    assert status == 2
    assert f"{special} occurs 1 times" in err


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe\n"])
def test_unusable_text_keeps_the_old_model(content: bytes | None, run: Run, tmp_path: Path) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "model.arpa"
    output.write_text("old model")
    if content is not None:
        text.write_bytes(content)
    status, _, err = run(text, "-o", output)
    assert status == 2
    assert "text.txt" in err
    assert output.read_text() == "old model"


def test_rejects_output_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = run(TEXT, "-o", tmp_path / "file" / "model.arpa")
    assert status == 2
    assert "file: is not a folder" in err


def test_runs_lmplz_on_the_text_and_keeps_its_model(run: Run, fake_tool: Callable, tmp_path: Path) -> None:
    statistics = (
        "Statistics:\n1 31 D1=0.5 D2=1 D3+=1.5\n2 77 D1=0.5 D2=1 D3+=1.5\n3 50/114 D1=0.5 D2=1 D3+=1.5"
    )
    fake_tool(
        "lmplz",
        f'echo "$@" > {tmp_path}/args; cat > {tmp_path}/text; cat {GOLDEN}/cutoffs.arpa\n'
        f'echo "{statistics}" >&2',
    )
    output = tmp_path / "model.arpa.gz"
    status, out, _ = run(TEXT, "-o", output, "--order", 3, "--prune", "0,0,1", "--engine", "lmplz", "--json")
    assert status == 0
    assert (tmp_path / "text").read_text() == Path(TEXT).read_text()
    assert "--prune 0 0 1" in (tmp_path / "args").read_text()
    assert read_arpa(output) == read_arpa(GOLDEN / "cutoffs.arpa")
    assert json.loads(out)["orders"][2] == {"n_counted": 114, "n_kept": 50, "discounts": [0.5, 1.0, 1.5]}


def test_reports_the_message_of_a_failing_tool(run: Run, fake_tool: Callable, tmp_path: Path) -> None:
    fake_tool("lmplz", 'echo "out of disk" >&2; exit 3')
    status, _, err = run(TEXT, "-o", tmp_path / "model.arpa", "--engine", "lmplz")
    assert status == 2
    assert "lmplz failed with exit status 3: out of disk" in err


def test_names_missing_tools(run: Run, fake_tool: Callable, tmp_path: Path) -> None:
    assert "lmplz is not on the PATH" in run(TEXT, "-o", tmp_path / "model.arpa", "--engine", "lmplz")[2]
    assert "build_binary is not on the PATH" in run(TEXT, "-o", tmp_path / "model.bin")[2]


def test_writes_the_words_of_a_binary_beside_it(run: Run, fake_tool: Callable, tmp_path: Path) -> None:
    fake_tool("build_binary", 'cp "$1" "$2"')
    output = tmp_path / "out" / "model.bin"
    assert run(TEXT, "-o", output, "--order", 2)[0] == 0
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "model.bin",
        "model.bin.text.json",
        "model.words.txt",
    ]
    unigrams = {ngram[0] for ngram in read_arpa(output)[0]}
    assert set(output.with_suffix(".words.txt").read_text().split()) == unigrams - {"<unk>", "<s>", "</s>"}


@pytest.mark.skipif(shutil.which("lmplz") is None, reason="KenLM's lmplz is not on the PATH")
@pytest.mark.parametrize("options", [NGramOptions(3, (0, 0, 1)), NGramOptions(4, vocabulary_size=15)])
def test_both_engines_agree(options: NGramOptions, tmp_path: Path) -> None:
    models = []
    for engine in ("ours", "lmplz"):
        output = tmp_path / f"{engine}.arpa"
        train_ngram([Path(TEXT)], Normaliser(), output, options, engine=engine, memory="200M")
        models.append({ngram: values for order in read_arpa(output) for ngram, values in order.items()})
    in_memory, by_lmplz = models
    assert in_memory.keys() == by_lmplz.keys()
    for ngram, values in by_lmplz.items():
        assert in_memory[ngram] == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "complete ARPA file"),
        ("\\data\\\nngram 1=1\n\n\\1-grams:\n-1\ta\n", "complete ARPA file"),
        ("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\ta\n\\end\\\n", ":6: the header announces"),
        ("\\data\\\nngram 1=1\n\n\\1-grams:\nmany\ta\n\\end\\\n", ":5: expected an n-gram, got 'many"),
    ],
)
def test_rejects_damaged_arpa_files(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.arpa").write_text(content)
    with pytest.raises(FormatError, match=message.replace("\\", ".")):
        read_arpa(tmp_path / "model.arpa")


def measure_perplexity(model: Path, text: Path) -> TextPerplexity:
    words = list(read_sentences([text], Normaliser(NormaliserSettings.raw())))
    return measure(score_tokens({"ngram": open_ngram(model)}, words))


@pytest.mark.data
@pytest.mark.parametrize(("order", "including", "excluding"), [(3, 232.18, 174.95), (5, 226.09, 170.21)])
def test_perplexity_agrees_with_kenlm(
    order: int, including: float, excluding: float, data_dir: Path, tmp_path: Path
) -> None:
    raw, folder = Normaliser(NormaliserSettings.raw()), data_dir / "kneser-ney"
    train_ngram([folder / "small.txt"], raw, tmp_path / "model.arpa", NGramOptions(order))
    found = measure_perplexity(tmp_path / "model.arpa", folder / "small-heldout.txt")
    assert (found.n_tokens, found.n_excluded, found.models["ngram"].n_unknown) == (7992, 380, 380)
    assert found.models["ngram"].counted == pytest.approx(including, abs=0.01)
    assert found.models["ngram"].excluded == pytest.approx(excluding, abs=0.01)


@pytest.mark.data
@pytest.mark.slow
def test_perplexity_of_penn_treebank(data_dir: Path, tmp_path: Path) -> None:
    raw, folder = Normaliser(NormaliserSettings.raw()), data_dir / "text" / "ptb"
    options = NGramOptions(order=5, count_unknown=True)
    train_ngram([folder / "ptb.train.txt"], raw, tmp_path / "ptb.arpa", options)
    found = measure_perplexity(tmp_path / "ptb.arpa", folder / "ptb.test.txt")
    assert found.n_tokens == 82430
    assert found.models["ngram"].counted == pytest.approx(141.19, abs=0.02)


def test_reports_marks_of_the_text_that_the_normaliser_drops(tmp_path):
    (tmp_path / "t.txt").write_text("the | cat | sat\na dog [NOISE] ran | fast\nthe cat ran\n" * 8)
    arguments = ["ngram", str(tmp_path / "t.txt"), "-o", str(tmp_path / "m.arpa"), "--order", "2"]
    facts = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    kept = json.loads(
        CliRunner().invoke(app, [*arguments, "--normaliser", "raw", "--json"], catch_exceptions=False).stdout
    )
    assert (kept["n_dropped"], kept["n_words"]) == (0, facts["n_words"] + facts["n_dropped"])
    assert "[NOISE]" in facts["dropped"]

"""The commands ``rescorer-train classify train``, ``evaluate`` and ``predict``."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from rescorer.errors import BundleError
from rescorer_training.classification import load_classifier
from rescorer_training.cli import main
from tests.support.toy_classifiers import write_texts

SMALL = ["--embedding", "8", "--hidden", "8", "--batch-words", "64", "--warmup-steps", "5", "--epochs", "6"]


def call(monkeypatch, *arguments) -> int:
    """Run ``rescorer-train classify`` and return its exit code."""
    monkeypatch.setattr("sys.argv", ["rescorer-train", "classify", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code or 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classify")
    texts = write_texts(folder)
    with pytest.MonkeyPatch.context() as patch:
        pairs = [f"{name}={path}" for name, path in texts.items()]
        for name, more in (("run", ()), ("forward", ("--forward",))):
            options = [*SMALL, "--learning-rate", "0.02", *more]
            assert call(patch, "train", *pairs, "-o", folder / name, *options) == 0
    return folder


def pairs(folder, *names):
    return [f"{name}={folder / name}.txt" for name in names or ("sea", "farm", "town")]


def test_evaluate_compares_with_naive_bayes_and_other_runs(folder, monkeypatch, capsys):
    arguments = ["evaluate", folder / "run", *pairs(folder), "--against", folder / "forward"]
    assert call(monkeypatch, *arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [str(folder / "run"), "naive Bayes", str(folder / "forward")]
    for name, facts in found.items():
        assert facts["sentences"] == 180
        assert facts["interval"][0] < facts["accuracy"] < facts["interval"][1]
        assert sum(map(sum, facts["confusions"])) == 180
        assert (facts["paired_test"] is None) == (name == str(folder / "run"))
    monkeypatch.setenv("COLUMNS", "80")
    assert call(monkeypatch, *arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("2 to 3" in line for line in lines)


def test_evaluate_works_without_sentences_of_a_class_and_without_training_text(folder, monkeypatch, capsys):
    assert call(monkeypatch, "evaluate", folder / "run" / "best", *pairs(folder, "sea"), "--json") == 0
    (facts,) = json.loads(capsys.readouterr().out).values()
    assert facts["recall"]["sea"] == facts["accuracy"]
    assert facts["recall"]["farm"] is None
    assert call(monkeypatch, "evaluate", folder / "run" / "best", *pairs(folder, "sea")) == 0
    assert "–" in capsys.readouterr().out


def test_evaluate_compares_runs_on_the_same_sentences_only(folder, monkeypatch, capsys):
    arguments = ["--embedding", "4", "--hidden", "4", "--epochs", "1", "--normaliser", "raw"]
    assert call(monkeypatch, "train", *pairs(folder), "-o", folder / "raw", *arguments) == 0
    compared = ["evaluate", folder / "run", *pairs(folder), "--against", folder / "raw"]
    assert call(monkeypatch, *compared) == 2
    assert "different normalisers" in capsys.readouterr().err
    assert call(monkeypatch, *compared, "--normaliser", "raw") == 0


def test_predict_writes_a_line_per_line(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "asked.txt").write_text("Ship sail!\n\nthe cow\n")
    assert call(monkeypatch, "predict", folder / "run", tmp_path / "asked.txt") == 0
    header, *rows = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert header == ["class", "sea", "farm", "town"]
    assert len(rows) == 3
    assert rows[0][0] == "sea"
    assert rows[2][0] == "farm"
    assert all(sum(map(float, row[1:])) == pytest.approx(1, abs=1e-5) for row in rows)
    assert call(monkeypatch, "predict", folder / "run", tmp_path / "asked.txt", "--json") == 0
    first, *_ = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["class"], first["words"], first["unknown_words"]) == ("sea", 2, 0)


def test_predict_names_the_line_that_is_not_text(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "asked.txt").write_bytes(b"ship\nsail\n\xff\xfe\n")
    assert call(monkeypatch, "predict", folder / "run", tmp_path / "asked.txt") == 2
    assert "asked.txt:3" in capsys.readouterr().err.replace(", line ", ":")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sea",), "expected NAME=VALUE, got 'sea'"),
        (("=x.txt", "sea=y.txt"), "expected NAME=FILE"),
        (("sea=x.txt",), "there is one class"),
        (("sea=x.txt", "sea=y.txt"), "class 'sea' is given twice"),
        (("sea=missing.txt", "farm=missing.txt"), "missing.txt"),
    ],
)
def test_train_refuses_arguments_that_do_not_name_texts(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "train", *arguments, "-o", "run") == 2
    assert message in capsys.readouterr().err


def test_refuses_a_language_model(tmp_path, folder, monkeypatch, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"vocabulary_size": 3}))
    assert call(monkeypatch, "predict", tmp_path, folder / "sea.txt") == 2
    assert "not the configuration of a classifier" in capsys.readouterr().err


def test_documents_have_line_ends_inside_and_are_cut_with_a_warning(folder, tmp_path, monkeypatch, capsys):
    texts = []
    for name in ("sea", "farm"):
        lines = (folder / f"{name}.txt").read_text().splitlines()[:60]
        documents = ["\n".join(lines[i : i + 4]) for i in range(0, len(lines), 4)]
        (tmp_path / name).write_text("\n\n \n".join(documents) + "\n")
        texts.append(f"{name}={tmp_path / name}")
    run = tmp_path / "run"
    options = [*SMALL, "--epochs", "1", "--paragraphs", "--longest", "5"]
    assert call(monkeypatch, "train", *texts, "-o", run, *options, "--json") == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    assert facts["training_sentences"] + facts["validation_sentences"] == 30
    warning = "of 30 texts have more than 5 words, with their end, and are cut"
    assert re.search(rf"WARNING: \d+ {warning}", captured.err)
    assert json.loads((run / "best" / "config.json").read_text())["longest"] == 5
    assert call(monkeypatch, "evaluate", run, *texts, "--paragraphs", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)[str(run)]["sentences"] == 30
    assert warning in captured.err
    probabilities = []
    for words in ("the ship\nand the sea\n\n", "the ship\nand the sea and the farm\n"):
        (tmp_path / "text").write_text(words)
        assert call(monkeypatch, "predict", run, tmp_path / "text", "--paragraphs", "--json") == 0
        captured = capsys.readouterr()
        probabilities.append(json.loads(captured.out)["probabilities"])
    assert probabilities[0] == probabilities[1]
    assert "1 of 1 texts have more than 5 words" in captured.err


def test_configurations_without_the_longest_text_have_200_words(folder, tmp_path):
    shutil.copytree(folder / "run" / "best", tmp_path / "old")
    file = tmp_path / "old" / "config.json"
    values = json.loads(file.read_text())
    assert values.pop("longest") == 200
    file.write_text(json.dumps(values))
    assert load_classifier(tmp_path / "old")[0].config.longest == 200
    file.write_text(json.dumps(values | {"longest": 0}))
    with pytest.raises(BundleError, match=r"longest is 0; expected 1 to 100,000 words"):
        load_classifier(tmp_path / "old")

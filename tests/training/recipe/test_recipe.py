"""Recipes: from raw text to a bundle and a report in one command, and checks of the recipe file."""

from __future__ import annotations

import json
import random
import sys
import tomllib
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.models.bundle import read_bundle
from rescorer.service.repository import read_model_facts
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.cli import app
from rescorer_training.corpus import record_normaliser
from rescorer_training.recipe.config import make_recipe, read_recipe
from rescorer_training.recipe.report import Report, plot_curves, render_markdown
from rescorer_training.recipe.run import open_run, run_recipe
from rescorer_training.state_files import lock_folder

TOML = """
title = "Toy"

[text]
train = ["texts/own.txt", "texts/other.txt"]
held_out_lines = 20
tests = ["texts/test.txt"]

[vocabulary]
size = 6
all_of = ["texts/own.txt"]

[ngram]
order = 3

[networks.general]
hidden_size = 8
embedding_size = 8
n_classes = 3
epochs = 1
batch_words = 256
train = ["texts/own.txt", "texts/other.txt"]
weights = [2.0, 0.5]

[networks.lstm]
note = "finished on its own text"
start_from = "general"
train = ["texts/own.txt"]
epochs = 2
batch_words = 256

[networks.windowed]
kind = "lbl"
window = 2
activation = "linear"
embedding_size = 8
hidden_size = 8
n_classes = 2
epochs = 1
batch_words = 256
carried = true
batch_rows = 4

[bundle]
network = "lstm"
store = "int8"
keep_ngrams = 60

[bundle.notes]
licence = "CC0"
"""


@pytest.fixture
def data(tmp_path):
    generator = random.Random(0)
    words_by_position = (
        ["a", "the", "one"],
        ["cat", "dog", "ship", "king"],
        ["sat", "slept", "sank"],
        ["", "here", "now"],
    )
    folder = tmp_path / "data" / "texts"
    folder.mkdir(parents=True)
    for name, n in (("own", 200), ("other", 200), ("test", 30)):
        lines = (" ".join(generator.choice(words) for words in words_by_position) for _ in range(n))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "toy.toml").write_text(TOML)
    return tmp_path / "data"


@pytest.mark.slow
def test_makes_a_bundle_and_a_report(tmp_path, data):
    recipe = read_recipe(str(tmp_path / "toy.toml"))
    report = run_recipe(recipe, data, tmp_path / "out", threads=1)
    bundle = read_bundle(tmp_path / "out" / "bundle" / "toy" / "1")
    assert bundle.manifest["training"]["licence"] == "CC0"
    assert "held-out.txt" in bundle.manifest["measured"]["validation"]["text"]
    assert [model.name for model in report.models] == ["n-gram", "general", "lstm", "windowed"]
    for model in report.models:
        assert set(model.perplexity) == {"held-out.txt", "test.txt"}
        assert all(1 < value < 20 for value in model.perplexity.values())
    lstm = report.models[2]
    assert lstm.with_ngram["held-out.txt"] <= lstm.perplexity["held-out.txt"]  # λ was fitted there
    page = (tmp_path / "out" / "report.md").read_text()
    assert "lstm: finished on its own text" in page
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    kept = (tmp_path / "out" / "text" / "own-kept.txt").read_text().splitlines()
    held = (tmp_path / "out" / "text" / "held-out.txt").read_text().splitlines()
    assert kept + held == (data / "texts" / "own.txt").read_text().splitlines()


@pytest.mark.slow
def test_second_run_reuses_all_results(tmp_path, data):
    command = ["run", str(tmp_path / "toy.toml"), "--data", str(data), "-o", str(tmp_path / "out"), "--json"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.safetensors")}
    second = CliRunner().invoke(app, command)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert json.loads(first.stdout) == json.loads(second.stdout)


def test_a_run_begun_by_other_rules_goes_on_with_them(tmp_path, data):
    recipe, folder = read_recipe(str(tmp_path / "toy.toml")), tmp_path / "out"
    folder.mkdir()
    (folder / "ngram.arpa.gz").touch()
    record_normaliser(folder / "ngram.arpa.gz", Normaliser(NormaliserSettings.first_rules()))
    with (
        open_run(recipe, data, folder, "cpu", 1) as old,
        open_run(recipe, data, tmp_path / "new", "cpu", 1) as new,
    ):
        assert old.normaliser.settings == NormaliserSettings.first_rules()
        assert new.normaliser.settings == NormaliserSettings()


def test_missing_plot_library_is_noticed_before_any_work(tmp_path, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"matplotlib: pip install 'rescorer\[training\]'"):
        run_recipe(read_recipe(str(tmp_path / "toy.toml")), data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_plot_gives_each_network_its_own_look_and_plain_numbers(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    entries = [{"seconds": 60 * i, "validation_perplexity": 600 / (i + 1)} for i in range(6)]
    plot_curves({f"network-{i}": entries for i in range(12)}, tmp_path / "curves.png")
    (axes,) = figures[0].axes
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines if line.get_marker() == "."}
    assert len(looks) == 12
    figures[0].canvas.draw()
    labels = [label.get_text() for label in axes.get_yticklabels(which="both") if label.get_text()]
    assert len(labels) >= 5
    assert all(label.replace(",", "").isdigit() for label in labels)


def test_plot_shows_the_loss_on_both_texts(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    entries = [
        {"seconds": 60 * i, "validation_perplexity": 600 / i, "training_perplexity": 500 / i} for i in (1, 2)
    ]
    contrast = [{"seconds": 90, "validation_perplexity": 300.0, "training_loss": 2.5}]
    plot_curves({"plain": entries}, tmp_path / "curves.png")
    plot_curves({"plain": entries, "noise contrast": contrast}, tmp_path / "curves.png")
    (axes,), (_, losses) = (figure.axes for figure in figures)
    validation, training = (list(line.get_ydata()) for line in axes.lines)
    assert (validation, training) == ([600, 300], [500, 250])
    assert axes.lines[0].get_color() == axes.lines[1].get_color()
    assert losses.get_ylabel() == "training loss"
    assert list(losses.lines[1].get_ydata()) == [2.5]


def test_rejects_a_missing_text_before_any_work(tmp_path, data):
    (data / "texts" / "test.txt").unlink()
    with pytest.raises(ConfigError, match=r"has no texts/test\.txt"):
        run_recipe(read_recipe(str(tmp_path / "toy.toml")), data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[ngram]", "[ngrams]", r"\[ngrams.order\] is 3; expected a table"),
        ("order = 3", "order = 9", r"\[ngram\] order is 9"),
        ("order = 3", 'order = "three"', r"\[ngram\] order: .*integer"),
        ("hidden_size = 8", "hiden_size = 8", r"\[networks.general\] unknown hiden_size"),
        ('start_from = "general"', 'start_from = "windowed"', "not a network above it"),
        ('network = "lstm"', 'network = "gru"', "expected one of general, lstm, windowed"),
        ("held_out_lines = 20", "", "validation or held_out_lines"),
        ("epochs = 2", "epochs = 0", r"\[networks.lstm\] epochs is 0"),
    ],
)
def test_rejects_an_invalid_recipe(tmp_path, old, new, message):
    assert old in TOML
    with pytest.raises(ConfigError, match=message):
        make_recipe(tomllib.loads(TOML.replace(old, new, 1)), tmp_path / "toy.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "n_classes = 3",
            "n_classes = 256",
            r"\[networks.general\] 256 classes for 14 words; expected between",
        ),
        ("n_classes = 3", 'class_by = "size"', r"\[networks.general\] class_by is 'size'; expected one of"),
        ("carried = true", "layers = 2", r"\[networks.windowed\] layers is 2 for lbl; expected 1"),
        ("carried = true", "weight_dropout = 0.5", r"\[networks.windowed\] weight_dropout is 0.5 for lbl"),
        ('start_from = "general"', 'start_from = "general"\nlayers = 1', "layers cannot be given too"),
    ],
)
def test_notices_impossible_networks_before_any_estimation(tmp_path, data, old, new, message):
    assert old in TOML
    (tmp_path / "toy.toml").write_text(TOML.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        run_recipe(read_recipe(str(tmp_path / "toy.toml")), data, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["text", "vocabulary.txt"]


def test_names_the_setting_that_was_meant(tmp_path):
    with pytest.raises(ConfigError, match="unknown hiden_size; did you mean 'hidden_size'"):
        make_recipe(tomllib.loads(TOML.replace("hidden_size", "hiden_size", 1)), tmp_path / "toy.toml")


def test_missing_weights_set_is_reported_before_training(tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("own.txt", "other.txt", "test.txt"):
        (tmp_path / "texts" / name).write_text("a b\n" * 30)
    toml = TOML.replace("[bundle]", '[bundle]\nweight_sets = ["../sets/mine.json"]')
    recipe = make_recipe(tomllib.loads(toml), tmp_path / "toy.toml")
    with pytest.raises(ConfigError, match=r"weight_sets: .*mine.json does not exist; .* names pocketsphinx"):
        run_recipe(recipe, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_in_which_a_process_trains_stays_as_it_is(tmp_path, data):
    folder = tmp_path / "out"
    folder.mkdir()
    with lock_folder(folder), pytest.raises(ConfigError, match="out: another process is training there"):
        run_recipe(read_recipe(str(tmp_path / "toy.toml")), data, folder)
    assert [*folder.iterdir()] == []


def test_names_the_shipped_normalisers(tmp_path):
    toml = TOML.replace("[vocabulary]", 'normaliser = "conversations"\n[vocabulary]')
    with pytest.raises(ConfigError, match=r"\[text\] normaliser: .* names conversation, which come with"):
        make_recipe(tomllib.loads(toml), tmp_path / "toy.toml").load_normaliser()


def test_report_without_networks_has_no_curves():
    report = Report("T", ("v",), (), {}, "a machine", "unknown words.")
    assert "curves" not in render_markdown(report)


NGRAMS_TOML = """
[text]
train = ["texts/own.txt", "texts/other.txt"]
held_out_lines = 20
tests = ["texts/test.txt"]

[ngram]
order = 3

[ngrams.katz]
smoothing = "katz"

[ngrams.classes]
order = 3
classes = 4

[ngrams.gap]
skip = 1

[mixtures]
two = ["ngram", "classes"]
three = ["classes", "ngram", "gap"]

[bundle]
ngrams = ["classes", "gap"]
"""


def test_a_recipe_of_ngrams_measures_mixtures_and_publishes_them(tmp_path, data):
    (tmp_path / "grams.toml").write_text(NGRAMS_TOML)
    recipe = read_recipe(str(tmp_path / "grams.toml"))
    report = run_recipe(recipe, data, tmp_path / "out", threads=1)
    rows = {model.name: model for model in report.models}
    assert list(rows) == ["n-gram", "katz", "classes", "gap", "two", "three"]
    assert rows["classes"].note == "Kneser-Ney, order 3, 4 Brown classes"
    held_out = {name: row.perplexity["held-out.txt"] for name, row in rows.items()}
    assert rows["classes"].with_ngram["held-out.txt"] == pytest.approx(held_out["two"], rel=1e-6)
    best = min(held_out["n-gram"], held_out["classes"])  # EM ends a little before the optimum
    assert held_out["three"] <= held_out["two"] * 1.001 <= best * 1.002
    assert rows["classes"].minutes is not None
    bundle = read_bundle(tmp_path / "out" / "bundle" / "grams" / "1")
    assert list(bundle.model_kinds) == ["ngram", "classes", "gap"]
    shares = bundle.weights["default"].mixture
    assert sum(shares.values()) == pytest.approx(1)
    words = {facts.name: facts.vocabulary_size for facts in read_model_facts(bundle)}
    assert words["ngram"] == words["classes"] == words["gap"] > 4
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.ngram")}
    run_recipe(recipe, data, tmp_path / "out", threads=1)
    assert {path: path.stat().st_mtime_ns for path in written} == written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ngrams": {"neural": {}}}, "[ngrams.neural] has the name of another model"),
        (
            {"mixtures": {"one": ["ngram"]}},
            "[mixtures] one is of ngram; expected two or more of ngram,",
        ),
        ({"mixtures": {"two": ["ngram", "gap"]}}, "[mixtures] two is of ngram, gap"),
        (
            {"ngrams": {"suffix": {"backward": True}}, "mixtures": {"both": ["ngram", "suffix"]}},
            "[mixtures] both mixes forward and backward models",
        ),
        ({"bundle": {"ngrams": ["gap"]}}, "[bundle] ngrams are gap; expected some of classes"),
        ({"bundle": {"network": "lstm"}}, "[bundle] network is 'lstm'"),
    ],
)
def test_names_of_ngrams_and_mixtures_are_checked(change, message):
    values = {"text": {"train": ["a"], "held_out_lines": 1}, "ngrams": {"classes": {"classes": 4}}}
    with pytest.raises(ConfigError) as caught:
        make_recipe(values | change, Path("toy.toml"))
    assert message in str(caught.value)


IN_PIECES = """
[text]
train = ["texts/own.txt"]
held_out_lines = 20

[networks.pieces]
units = "bpe:300"
hidden_size = 8
embedding_size = 8
epochs = 1
batch_words = 800

[bundle]
network = "pieces"
"""


def test_a_network_in_pieces_of_words_is_measured_alone_and_published(tmp_path, data):
    (tmp_path / "toy.toml").write_text(IN_PIECES)
    report = run_recipe(read_recipe(str(tmp_path / "toy.toml")), data, tmp_path / "out", threads=1)
    assert [model.name for model in report.models] == ["n-gram", "pieces"]
    assert not report.models[1].with_ngram
    best = json.loads((tmp_path / "out/networks/pieces/best/training.json").read_text())
    assert report.models[1].perplexity["held-out.txt"] == pytest.approx(
        best["validation_perplexity"], rel=1e-3
    )
    bundle = read_bundle(tmp_path / "out" / "bundle" / "toy" / "1")
    assert bundle.model_kinds == {"ngram": "ngram", "pieces": "units"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bpe:300", "bpe", "expected bpe:N or unigram:N"),
        ("epochs = 1", 'kind = "lbl"', "see a few units only"),
        (
            "[bundle]",
            '[mixtures]\nboth = ["ngram", "pieces"]\n[bundle]',
            "expected models of words, not of pieces",
        ),
    ],
)
def test_notices_impossible_networks_in_pieces_before_any_work(tmp_path, data, old, new, message):
    (tmp_path / "toy.toml").write_text(IN_PIECES.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        run_recipe(read_recipe(str(tmp_path / "toy.toml")), data, tmp_path / "out", threads=1)
    assert not list((tmp_path / "out").glob("*.arpa.gz"))

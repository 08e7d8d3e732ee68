"""The option ``--lm``: models of other toolkits in ``evaluate``, ``report``, ``tune`` and ``rescore``."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import shutil

import pytest

from rescorer.errors import ConfigError
from rescorer.evaluation import tuning, weight_search
from rescorer.models.bundle import Composition, read_bundle
from rescorer.pipeline import Rescorer
from rescorer.terminal.language_models import name_sources
from rescorer.types import ImportedModel, Weights
from rescorer.units.cache import use_imported
from rescorer.units.importing import import_model, read_huggingface
from rescorer.weights import parse_weights, weights_to_dict
from rescorer_training.cli import main as train
from tests.support.list_lines import record, write
from tests.support.unit_models import write_letter_model

pytest.importorskip("tokenizers")
TEXTS = [
    "the cat sat on the mat",
    "a dog ran on",
    "the dog sat",
    "on the mat a cat ran",
    "a cat sat on a dog",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model, ``llama``, and lists in which the second hypothesis is often right."""
    folder = tmp_path_factory.mktemp("lm")
    write_letter_model(folder / "llama")
    lists = []
    for i in range(10):
        words = TEXTS[i % len(TEXTS)].split() + ["so"] * (i // len(TEXTS))
        right, wrong = " ".join(words), " ".join([*words[:-1], "zebra"])
        texts = (right, wrong) if i % 3 else (wrong, right)
        lists.append(record(f"u{i:02}", *texts, "zebra", reference=right))
    write(folder / "lists.jsonl", *lists)
    return folder


@pytest.fixture
def call(run, folder, monkeypatch):
    """Run a command in the folder, with caches there."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(weight_search, "N_RANDOM_STARTS", 0)  # faster, and the same for all commands
    monkeypatch.setattr(tuning.choose_method, "__defaults__", (weight_search.METHODS[:2], None))
    return run


@pytest.mark.parametrize("beside", [False, True])
def test_evaluates_without_weights_what_tune_would_hold_out(call, ngram_bundle, beside):
    models = ("--lm", "llama", *(("--bundle", ngram_bundle) if beside else ()))
    code, out, err = call("evaluate", "lists.jsonl", *models)
    assert code == 0, err
    row = "mixture + llama, tuned" if beside else "llama, tuned"
    assert re.search(rf"^{re.escape(row)} ", out, re.M)
    assert not re.search(r"^llama  ", out, re.M)  # it has no weight before tuning
    found = re.search(
        r"^llama: held out ([\d.]+) %.* first pass ([\d.]+) %: each list was ranked by", out, re.M
    )
    assert "weights tuned on all of these lists, where they reach" in out
    command = re.search("^to keep them: rescorer (.*)$", out, re.M)[1]
    cells = re.search(rf"^{re.escape(row)} +([\d.]+) ", out, re.M)
    code, tuned, err = call(*shlex.split(command), "--json")
    assert code == 0, err
    assert float(found[1]) == float(cells[1]) == pytest.approx(json.loads(tuned)["held_out_wer"], abs=0.005)


def test_imports_once(call, folder):
    shutil.rmtree(folder / "cache", ignore_errors=True)
    _, first, err = call("evaluate", "lists.jsonl", "--lm", "llama", "--json")
    assert err.startswith("imported llama (llama, 5,872 parameters): start ")
    assert f"kept in {folder}/cache/rescorer/models" in err
    _, second, err = call("evaluate", "lists.jsonl", "--lm", "llama", "--json")
    assert err.startswith("llama (llama, 5,872 parameters): start ")
    assert first == second
    (found,) = json.loads(first)["tuned"]
    (row,) = (row for row in json.loads(first)["systems"] if row["name"] == "llama, tuned")
    assert found["held_out_wer"] == pytest.approx(row["wer"], abs=0.01)
    assert "lm:llama" in found["weights"]
    code, _, err = call("evaluate", "lists.jsonl", "--lm", "llama", "--lm-cache", "lists.jsonl")
    assert (code, "lists.jsonl: cannot keep imported models: File exists" in err) == (2, True)


def test_rescores_with_weights_that_the_printed_command_finds(call, folder):
    code, _, err = call("rescore", "lists.jsonl", "--lm", "my=llama", "-o", "out.jsonl", "--merge")
    assert code == 2
    assert not (folder / "out.jsonl").exists()
    found = re.search("no weight is known for my; .* --weights my.json: rescorer (.*)$", err, re.M)
    assert found[1] == "tune lists.jsonl --lm my=llama --merge -o my.json"
    code, _, err = call(*shlex.split(found[1]), "--force")
    assert code == 0, err
    weights = json.loads((folder / "my.json").read_text())
    assert weights["imported"]["my"].keys() == {"source", "start", "end", "text", "whole"}
    options = ("--weights", "my.json", "-o", "out.jsonl", "--merge")
    code, _, err = call("rescore", "lists.jsonl", "--lm", "my=llama", *options)
    assert code == 0, err
    answer = json.loads((folder / "out.jsonl").read_text().splitlines()[0])
    assert answer["model"] == "my/1"
    assert answer["weights"]["imported"] == weights["imported"]
    assert answer["hypotheses"][0]["components"]["my"] < 0
    code, _, err = call("evaluate", "lists.jsonl", "--lm", "my=llama", "--weights", "my.json", "--merge")
    assert code == 0
    assert "weights 'my' were tuned on 10 of these 10 lists" in err


def test_weights_know_their_model(call, folder):
    call("tune", "lists.jsonl", "--lm", "llama", "-o", "llama.json")
    write_letter_model(folder / "other", "qwen2")
    shutil.copytree(folder / "llama", folder / "copy")
    given = ("--weights", "llama.json", "-o", "out.jsonl")
    assert call("rescore", "lists.jsonl", "--lm", "llama=copy", *given)[0] == 0
    code, _, err = call("rescore", "lists.jsonl", "--lm", "llama=other", *given)
    assert (code, "other: the weights were tuned with another model" in err) == (2, True)
    code, _, err = call("rescore", "lists.jsonl", "--lm", "name=llama", *given)
    assert (code, "no weight is known for name" in err) == (2, True)
    code, _, err = call("rescore", "lists.jsonl", *given)
    assert (code, "no language models: give --bundle, --lm, or both" in err) == (2, True)


def test_weights_that_need_a_model_say_so(call, ngram_bundle):
    call("tune", "lists.jsonl", "--lm", "llama", "-b", ngram_bundle, "-o", "both.json", "--force")
    code, _, err = call(
        "rescore", "lists.jsonl", "-b", ngram_bundle, "--weights", "both.json", "-o", "out.jsonl"
    )
    assert (code, "tuned with --lm llama=DIR: give that too" in err) == (2, True)


def test_takes_an_imported_folder_as_it_is(call, folder):
    sentences = [tuple(text.split()) for text in TEXTS]
    import_model(read_huggingface(folder / "llama"), folder / "units", sentences)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    code, _, err = call(
        "rescore", "lists.jsonl", "--lm", "units", "-w", "lm:units=0.1", "-w", "acoustic=1", "-o", "-"
    )
    assert (code, "kept in" in err) == (0, False)
    assert not (folder / "cache").exists()


def test_a_report_holds_out_too(call, folder):
    code, _, err = call("report", "lists.jsonl", "--lm", "llama", "-o", "report.json")
    assert code == 0, err
    report = json.loads((folder / "report.json").read_text())
    assert report["system"] == "llama, tuned"
    assert report["files"][0]["weights"] == "tuned on these lists"
    code, _, err = call("report", "lists.jsonl", "--lm", "llama", "-w", "lm:llama=0.1", "-o", "report.json")
    assert json.loads((folder / "report.json").read_text())["system"] == "llama"


def test_names_do_not_collide(call, ngram_bundle, tmp_path):
    for values, message in (
        (["ngram=llama"], "the bundle has a model 'ngram'; write OTHER=llama"),
        (["llama", "./llama"], "llama is named 'llama' too; write NAME=./llama"),
        (["words=llama"], "is named 'words', which is another component of a total"),
        (["a b=llama"], "expected at most 100 letters, digits, '_' and '-'"),
        (["acoustic=llama"], "a model is named 'acoustic', which is a score stream of the weights"),
    ):
        options = [word for value in values for word in ("--lm", value)]
        code, _, err = call("evaluate", "lists.jsonl", "--bundle", ngram_bundle, *options)
        assert (code, message in err) == (2, True), err
    code, _, err = call("evaluate", "lists.jsonl", "--lm", "acoustic=llama")
    assert (code, "a model is named 'acoustic', as a score of the lists is" in err) == (2, True), err
    names = name_sources(["/models/Smol LM2.Q4.GGUF", "x=y", "/"])
    assert list(names) == ["Smol_LM2_Q4", "x", "lm"]


def test_a_pipe_cannot_choose(call):
    code, _, err = call("rescore", "-", "--lm", "llama", "-w", "lm:llama=1", "-o", "out.jsonl")
    assert (code, "lists from a pipe cannot choose start and end" in err) == (2, True)


def test_a_bundle_in_memory_can_be_read_in_other_processes(folder, ngram_bundle):
    import_model(read_huggingface(folder / "llama"), folder / "model", [("the", "cat")])
    composition = Composition({"llm": use_imported(folder / "model").added}, ngram_bundle)
    bundle = read_bundle(pickle.loads(pickle.dumps(composition)))
    base = read_bundle(ngram_bundle)
    assert bundle.label == f"{base.name}+llm/{base.version}"
    assert list(bundle.model_kinds) == [*base.model_kinds, "llm"]
    assert bundle.open_vocabulary == {"llm"}
    rescorer = Rescorer.load(composition)
    (text,) = rescorer.score_text("the cat")
    assert {*base.model_kinds, "llm"} < set(text.log_probs)
    other = Weights("w", lm={"llm": 1.0}, imported={"llm": ImportedModel("0", 0)})
    with pytest.raises(ConfigError, match="tuned with another model 'llm' than the given one"):
        rescorer.ranker.effective_weights(other)
    with pytest.raises(ConfigError, match="has a model 'llm' already"):
        Composition(composition.models, composition).read()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (1, r"weights.imported is '1'; expected an object of models by name"),
        ({"m": 1}, r"settings of weights.imported\['m'\] are '1'"),
        ({"m": {"source": "0"}}, r"weights.imported\['m'\] is incomplete"),
        ({"m": {"source": 0, "start": 1}}, r"weights.imported\['m'\] is incomplete"),
        ({"m": {"source": "0", "start": "<s>"}}, r"weights.imported\['m'\].start is '<s>'"),
        (
            {"m": {"source": "0", "start": 1, "whole": 1}},
            r"weights.imported\['m'\].whole is '1'; expected true",
        ),
        ({"m": {"source": "0", "start": 1, "ends": 2}}, r"unknown settings of weights.imported\['m'\]"),
    ],
)
def test_records_of_models_are_checked(record, message):
    with pytest.raises(ConfigError, match=message):
        parse_weights({"imported": record})


def test_records_of_models_come_back():
    weights = Weights("w", imported={"m": ImportedModel("0", None, 2, "upper")})
    assert parse_weights(json.loads(json.dumps(weights_to_dict(weights)))) == weights
    assert "imported" not in weights_to_dict(Weights())  # readable by versions without it


def test_import_takes_lists_and_bundles_keep_licences(call, folder, tmp_path):
    source = write_letter_model(tmp_path / "licensed")
    (source / "README.md").write_text("---\nlicense: mit\n---\n")
    (source / "LICENSE").write_text("Permission is hereby granted")
    code, _, err = call("import", "hf", source, "-o", tmp_path / "units", command=train)
    assert (code, "give either --validation TEXT or --lists LISTS" in err) == (2, True)
    lists = ("--lists", "lists.jsonl")
    code, out, err = call("import", "hf", source, "-o", tmp_path / "units", *lists, command=train)
    assert (code, "licence mit" in out) == (0, True), err
    assert "float32" in out
    assert "takes the lower one" not in err
    worst = next(
        line.split()[0].strip("'") for line in reversed(out.partition("end:")[0].splitlines()) if line
    )
    named = (*lists, "--start", worst)
    _, out, err = call("import", "hf", source, "-o", tmp_path / "worse", *named, command=train)
    assert f"start: {worst!r} was chosen" in out
    assert f"per word after {worst!r}" in err
    (tmp_path / "text").write_text("the cat\n")
    models = ("--units", f"llm={tmp_path / 'units'}", "--validation", tmp_path / "text")
    code, _, err = call("bundle", tmp_path / "toy" / "1", *models, command=train)
    assert code == 0, err
    assert (tmp_path / "toy" / "1" / "llm" / "LICENSE").read_text() == "Permission is hereby granted"
    _, out, _ = call("inspect", "lists.jsonl", "--bundle", tmp_path / "toy" / "1")
    assert "llm (llama, in pieces of words, licence mit)" in out

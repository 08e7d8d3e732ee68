"""``rescorer-train adapt``: what it writes, what it reports, and its errors."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import pytest

from rescorer.models.bundle import publish, read_bundle
from rescorer.models.neural import save_model
from rescorer.pipeline import Rescorer, load_bundle_models
from rescorer.text import Normaliser
from rescorer_training.adaptation import measure_texts
from rescorer_training.cli import main
from rescorer_training.evaluation.perplexity import ModelSet
from rescorer_training.neural.checkpoint import find_precision
from tests.support.domain_text import write_domain_lists, write_domain_text
from tests.support.tiny_models import random_network, write_bundle
from tests.support.tiny_rerankers import add_tiny_rerankers

SHORT = ("--epochs", 3, "--learning-rate", 0.02)


@pytest.fixture
def text(tmp_path):
    return write_domain_text(tmp_path / "domain.txt")


@pytest.fixture
def adapt(run, text, tmp_path):
    """Run the command on the text of the domain; returns exit code, JSON data or None, and stderr."""

    def call(bundle, *arguments, output=tmp_path / "new" / "1"):
        command = ("adapt", bundle, "--text", text, "-o", output, "--json", *SHORT, *arguments)
        code, out, err = run(*command, command=main)
        return code, json.loads(out) if code == 0 else None, err

    return call


def test_adapts_both_models_and_measures(adapt, bundle, text, tmp_path):
    general = tmp_path / "general.txt"
    general.write_text("the cat sat on the mat\n" * 5)
    lists = write_domain_lists(tmp_path / "lists.jsonl", text)
    code, facts, err = adapt(bundle, "--general", general, "--lists", lists)
    assert code == 0, err
    domain = facts["texts"]["domain"]
    assert domain["text"] == "domain.txt"
    assert all(after < before for before, after in domain["perplexity"].values())
    assert set(domain["perplexity"]) == {"ngram", "neural", "mixture"}
    assert domain["unknown_words"][0] > 0 == domain["unknown_words"][1]
    assert facts["texts"]["general"]["tokens"] == 35
    assert facts["ngram"]["interpolation"]["source"] >= 0.01
    network = facts["networks"]["neural"]
    assert network["improved"]
    assert network["unknown_words"] == 4  # a, gnu, slept, zebra
    before, after = (facts["error_rates"]["systems"][i] for i in (1, 2))
    assert after["errors"] < before["errors"]
    assert facts["error_rates"]["after_over_before"]["p_value"] < 0.05

    adapted = read_bundle(facts["bundle"])
    assert (adapted.name, adapted.version) == ("new", 1)
    assert list(adapted.model_kinds) == ["ngram", "neural"]
    recorded = adapted.manifest["training"]["adaptation"]
    assert recorded == {key: facts[key] for key in recorded}
    assert (recorded["source"], recorded["text"]) == ("tiny/1", "domain.txt")
    measured = adapted.manifest["measured"]["domain"]["perplexity"]
    assert measured == {name: after for name, (_, after) in domain["perplexity"].items()}
    assert Rescorer.load(adapted.folder).score_text(["a gnu slept"])[0].unknown == (False, False, False)


def test_same_seed_gives_the_same_bundle(adapt, bundle, tmp_path):
    files = []
    for version, seed in ((1, 1), (2, 1), (3, 2)):
        _, facts, _ = adapt(bundle, "--seed", seed, output=tmp_path / "new" / str(version))
        files.append(read_bundle(facts["bundle"]).manifest["files"])
    assert files[0] == files[1]
    assert files[0] != files[2]


def test_prints_tables(run, bundle, text, tmp_path, monkeypatch):
    lists = write_domain_lists(tmp_path / "lists.jsonl", text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run("adapt", bundle.parent, "--text", text, "--lists", lists, *SHORT, command=main)
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    assert "perplexity of held-out text of the domain" in out
    assert "does not know 4 words of the text" in out
    assert "after against before: +" in out
    assert (tmp_path / "tiny-domain" / "1" / "manifest.json").exists()


def republish(bundle, folder, change):
    """Publish a bundle again after ``change`` has edited its files and the entries of its models."""

    def fill(partial):
        shutil.copytree(bundle, partial, dirs_exist_ok=True)
        manifest = json.loads((partial / "manifest.json").read_text())
        (partial / "manifest.json").unlink()
        del manifest["files"]
        change(partial, manifest["models"])
        return manifest

    publish(folder, fill)
    return folder


def test_weights_sets_and_phrases_keep_what_does_not_depend_on_models(adapt, bundle, tmp_path):
    def add_weights(partial, _):
        own = {"streams": {"acoustic": 0.5}, "lm": {"mixture": 3.0}, "word": -1.0, "empty": -5.0}
        plain = {"streams": {"acoustic": 1.0}, "lm": {"ngram": 2.0}}
        own |= {"mixture": {"ngram": 0.9, "neural": 0.1}, "tuned_on": ["ab"], "held_out": {"wer": 5.0}}
        for name, values in (("own", own), ("plain", plain)):
            (partial / "weights" / f"{name}.json").write_text(json.dumps(values))
        (partial / "phrases").mkdir()
        (partial / "phrases" / "animals.txt").write_text("a zebra\n")

    source = republish(bundle, tmp_path / "more" / "1", add_weights)
    _, facts, _ = adapt(source)
    weights = read_bundle(facts["bundle"]).weights
    shares = {name: after for name, (_, after) in facts["mixture"].items()}
    assert weights["own"].mixture == pytest.approx(shares, abs=1e-4)
    assert weights["default"].mixture == weights["own"].mixture
    old = read_bundle(source).weights
    assert weights["own"] == replace(old["own"], mixture=weights["own"].mixture, held_out={})
    assert weights["plain"] == old["plain"]
    assert facts["stale_weights"] == ["own"]
    assert (tmp_path / "new" / "1" / "phrases" / "animals.txt").read_text() == "a zebra\n"


def test_ngram_that_cannot_be_read_back_stays_beside(adapt, bundle, monkeypatch):
    monkeypatch.setattr("rescorer_training.adaptation.contains_words", lambda path: False)
    _, facts, _ = adapt(bundle)
    adapted = read_bundle(facts["bundle"])
    assert list(adapted.model_kinds) == ["ngram", "neural", "domain"]
    assert adapted.ngram == "ngram"
    assert "KenLM binary" in facts["ngram"]["beside_because"]
    assert set(adapted.weights["default"].mixture) == {"ngram", "neural", "domain"}
    assert facts["texts"]["domain"]["perplexity"]["domain"][0] is None
    old, new = (folder / "ngram" / "model.arpa" for folder in (bundle, adapted.folder))
    assert old.read_bytes() == new.read_bytes()


def test_a_table_is_interpolated_as_an_arpa_file_is(adapt, ngram_bundle, run, tmp_path):
    tables = tmp_path / "tables" / "1"
    assert run("tables", ngram_bundle, "-o", tables, command=main)[0] == 0
    _, expected, _ = adapt(ngram_bundle)
    _, facts, _ = adapt(tables, output=tmp_path / "new" / "2")
    assert facts["ngram"] == expected["ngram"]
    assert facts["texts"]["domain"]["perplexity"]["ngram"] == pytest.approx(
        expected["texts"]["domain"]["perplexity"]["ngram"], rel=1e-5
    )


def test_bundle_without_network(adapt, ngram_bundle):
    code, facts, err = adapt(ngram_bundle)
    assert code == 0, err
    assert facts["networks"] == {}
    assert facts["mixture"] == {"ngram": [1.0, 1.0]}


def test_bundle_without_ngram_gets_one(adapt, bundle, tmp_path):
    def drop_ngram(partial, models):
        shutil.rmtree(partial / "ngram")
        del models["ngram"]
        (partial / "weights" / "default.json").write_text(json.dumps({"mixture": {"neural": 1.0}}))

    source = republish(bundle, tmp_path / "network" / "1", drop_ngram)
    _, facts, _ = adapt(source)
    assert list(read_bundle(facts["bundle"]).model_kinds) == ["neural", "domain"]
    assert facts["ngram"]["beside_because"] == "the bundle has no n-gram"


def test_network_keeps_its_precision_and_stays_unless_it_improves(adapt, bundle, tmp_path, monkeypatch):
    def quantise(partial, _):
        import torch

        save_model(*random_network(), partial / "neural", torch.int8)

    source = republish(bundle, tmp_path / "int8" / "1", quantise)
    _, facts, _ = adapt(source)
    assert facts["networks"]["neural"]["improved"]
    assert find_precision(read_bundle(facts["bundle"]).folder / "neural") == "int8"
    monkeypatch.setattr("rescorer_training.adaptation.perplexity", lambda *_: 1.0)
    _, facts, _ = adapt(source, output=tmp_path / "new" / "2")
    assert not facts["networks"]["neural"]["improved"]
    weights = [folder / "neural" / "model.safetensors" for folder in (source, tmp_path / "new" / "2")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_leaves_out_rerankers_and_weights_that_use_them(adapt, text, tmp_path):
    source = add_tiny_rerankers(write_bundle(tmp_path, neural=False))
    assert {"linear", "mlp"} <= set(read_bundle(source).weights)
    _, facts, _ = adapt(source)
    adapted = read_bundle(facts["bundle"])
    assert list(adapted.weights) == ["default"]
    assert not adapted.rerankers
    assert facts["stale_weights"] == ["linear", "mlp"]
    lists = write_domain_lists(tmp_path / "lists.jsonl", text)
    arguments = ("--lists", lists, "--weights", "linear")
    code, _, err = adapt(source, *arguments, output=tmp_path / "new" / "2")
    assert code == 2
    assert "weights 'linear' use the reranker linear, which an adapted bundle does not have" in err


def test_perplexities_before_and_after_are_over_the_same_words(bundle, text):
    """The bundle's n-gram shares P(<unk>) out among <unk> and the words that only the others know."""
    models = load_bundle_models(read_bundle(bundle))
    ngram = {"ngram": models["ngram"]}
    before = ModelSet(ngram, Normaliser(), {"ngram": 1.0})
    after = ModelSet(models, Normaliser(), {"ngram": 0.5, "neural": 0.5})
    lines = text.read_text().splitlines()
    judged = {"domain": ("domain.txt", list(map(Normaliser().normalise, lines)))}
    measured = measure_texts(before, after, judged)["domain"]
    scores = Rescorer.load(bundle).score_text(lines)  # of a bundle that knows the same words
    log_prob = sum(sum(score.log_probs["ngram"]) for score in scores)
    n_tokens = sum(len(line.split()) + 1 for line in lines)
    assert measured.tokens == n_tokens
    assert measured.perplexity["ngram"].before == pytest.approx(math.exp(-log_prob / n_tokens))
    assert measured.perplexity["neural"].before is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--text", "none.txt"), "none.txt: no such text"),
        (("--general", "none.txt"), "none.txt: no such text"),
        (("-o", "name"), "the last part of the path must be a version number"),
        (("-o", "domain.txt/name/1"), "cannot be written: Not a directory; choose another folder"),
        (("--seed", "-1"), "greater than or equal to 0"),
        (("-o", "taken/1"), "taken/1 exists, and bundles are immutable"),
        (("--text", "short.txt"), "short.txt has 3 sentences with words; expected at least 120"),
        (("--text", "foreign.txt"), "100 % of its words are unknown to tiny/1"),
        (("--valid", "domain.txt"), "is the text to learn from"),
        (("--lists", "lists.jsonl", "-w", "acustic=1"), "need the stream 'acustic'"),
        (("--lists", "bare.jsonl", "-w", "acoustic=0"), "no list has a reference"),
        (("--general", "empty.txt"), "the general text empty.txt has no words"),
        (("--epochs", "0"), "epochs is 0; expected at least 1"),
    ],
)
def test_errors_come_before_any_work(run, ngram_bundle, text, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken" / "1").mkdir(parents=True)
    (tmp_path / "short.txt").write_text("the cat\n" * 3)
    (tmp_path / "foreign.txt").write_text("le chat dort\n" * 150)
    write_domain_lists(tmp_path / "lists.jsonl", text)
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bare.jsonl").write_text('{"id": "1", "hypotheses": ["the cat"]}\n')
    code, _, err = run("adapt", ngram_bundle, "--text", "domain.txt", *arguments, command=main)
    assert code == 2
    assert message in err
    assert not (tmp_path / "tiny-domain").exists()

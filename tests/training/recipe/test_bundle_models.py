"""Bundles of several n-grams and networks: their names, λ, and scores as components of their own."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rescorer import ConfigError, Hypothesis, NBestList, Rescorer
from rescorer.evaluation.scored_lists import collect_components
from rescorer.evaluation.systems import weights_by_system
from rescorer_training.cli import main as train_main
from rescorer_training.evaluation.perplexity import fit_mixture
from rescorer_training.recipe.bundles import check_shares, choose_shares, name_models
from tests.support.tiny_models import ARPA, random_network, write_arpa

NAMES = ["ngram", "lodr", "neural", "small"]
TEXTS = ("the cat sat", "a zebra ran", "")
LISTS = [NBestList("a", tuple(map(Hypothesis, TEXTS)), {"acoustic": (0.0, -1.0, -2.0)})]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Two n-grams, the second of which does not know "zebra" and likes "the cat" less, and two networks."""
    from rescorer.models.neural import save_model

    folder = tmp_path_factory.mktemp("inputs")
    write_arpa(folder)
    other = ARPA.replace("-1.6\tzebra\t0\n", "").replace("ngram 1=9", "ngram 1=8")
    (folder / "other.arpa").write_text(other.replace("-0.5\tthe cat", "-1.5\tthe cat"))
    (folder / "run").mkdir()
    save_model(*random_network(), folder / "run" / "best")
    save_model(*random_network(seed=1), folder / "small")
    (folder / "run" / "best" / "training.json").write_text('{"words": 7}')
    (folder / "empty.txt").write_text("\n")
    (folder / "valid.txt").write_text("the cat sat on the mat\na dog ran\n" * 5)
    return folder


@pytest.fixture
def make(run, inputs, tmp_path, monkeypatch):
    """Run ``rescorer-train bundle`` on the inputs; returns its exit code, standard output and error."""
    monkeypatch.chdir(inputs)

    def make_bundle(*options):
        output = tmp_path / "many" / "1"
        return run("bundle", output, "--validation", "valid.txt", *options, command=train_main)

    return make_bundle


def test_bundles_several_models_and_scores_each(make, tmp_path):
    ngrams = ("--ngram", "model.arpa", "--ngram", "lodr=other.arpa")
    networks = ("--neural", "run", "--neural", "small=small")
    code, out, err = make(*ngrams, *networks, "--share", "lodr=0", "--json")
    assert code == 0, err
    manifest = json.loads(out)
    assert list(manifest["models"]) == NAMES
    assert manifest["training"] == {"neural": {"words": 7}}
    facts = manifest["measured"]["validation"]
    assert list(facts["perplexity"]) == [*NAMES, "mixture"]
    rescorer = Rescorer.load(tmp_path / "many" / "1")
    default = rescorer.bundle.weights["default"]
    assert default.mixture["lodr"] == 0
    assert sum(default.mixture.values()) == pytest.approx(1)
    assert facts["perplexity"]["mixture"] <= min(facts["perplexity"].values())
    assert rescorer.bundle.ngram == "ngram"  # whose vocabulary has the zebra

    weights = replace(default, lm={"mixture": 1.0, "lodr": -0.3})
    answer = rescorer.rescore(LISTS, weights)[0]
    components = collect_components(answer)
    assert components["oov"].tolist() == [0, 2, 0]
    scores = [components[name] for name in NAMES]
    assert all((a != b).any() for i, a in enumerate(scores) for b in scores[:i])
    expected = np.array(LISTS[0].streams["acoustic"]) + components["mixture"] - 0.3 * components["lodr"]
    assert [h.total for h in answer.hypotheses] == pytest.approx(sorted(expected, reverse=True))
    systems = weights_by_system(rescorer, weights)
    assert list(systems) == [*NAMES, "mixture", "mixture + lodr"]
    assert systems["mixture"].lm == {"mixture": 1.0}
    assert systems["mixture + lodr"].lm == weights.lm


def test_says_why_a_perplexity_is_not_that_of_training(make, inputs):
    """Neither n-gram knows "a" and "ran", but only the second one lacks "zebra"."""
    (inputs / "zebra.txt").write_text("the cat sat\na zebra ran\n" * 5)
    models = ("--ngram", "model.arpa", "--ngram", "lodr=other.arpa", "--validation", "zebra.txt")
    code, out, err = make(*models)
    assert code == 0, err
    line = next(line for line in out.splitlines() if line.startswith("lodr: perplexity "))
    assert "on zebra.txt, because 15 words of the text are unknown to it. Training counts these" in line
    before, after = (
        float(word) for word in line.split() if word.replace(".", "").isdecimal() and "." in word
    )
    assert before < after
    assert f"{after:.2f}" in out.splitlines()[2]
    assert "ngram: perplexity" not in out


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--ngram", "model.arpa", "--ngram", "ngram=other.arpa"], 2, "already a model 'ngram', model.arpa"),
        (["--ngram", "a=model.arpa", "--neural", "a=run"], 2, "same name"),
        (["--ngram", "mixture=model.arpa"], 2, "'mixture', which is another component of a total"),
        (["--ngram", "reranker=model.arpa"], 2, "'reranker', which is a folder of every bundle"),
        (["--ngram", "acoustic=model.arpa"], 2, "'acoustic', which is a score stream"),
        (["--ngram", "a/b=model.arpa"], 2, "'a/b'; expected at most 100 letters, digits"),
        (["--ngram", "..=model.arpa"], 2, "'..'; expected"),
        (["--ngram", "=model.arpa"], 2, "''; expected"),
        (["--ngram", f"{'a' * 101}=model.arpa"], 2, "expected at most 100 letters"),
        (["--ngram", "model.arpa", "--ngram", "lodr=missing.arpa"], 2, "missing.arpa: no such file"),
        (["--ngram", "model.arpa", "--neural", "big=missing"], 2, "missing/config.json: is missing"),
        ([*["--ngram", "model.arpa"] * 17], 2, "17 models; a bundle has at most 16"),
        (["--ngram", "model.arpa", "--share", "lodr=0"], 2, "unknown model 'lodr'; the models are ngram"),
        (["--ngram", "model.arpa", "--share", "ngram=0"], 2, "sum to 1"),
        ([], 2, "give --ngram, --neural or --units"),
        (["--ngram", "model.arpa", "--validation", "empty.txt"], 2, "empty.txt: no words in the text"),
    ],
)
def test_names_what_is_wrong_with_models(make, tmp_path, options, code, message):
    found, _, err = make(*options)
    assert (found, message in err) == (code, True), err
    assert not list(tmp_path.glob("many/*"))


def test_names_models_by_kind_unless_they_have_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    models = name_models("neural", ["a", "big=b", "c", "lr=0.1"])
    assert {name: str(path) for name, path in models.items()} == {
        "neural": "a",
        "big": "b",
        "neural2": "c",
        "neural3": "lr=0.1",
    }


def test_fits_the_shares_of_models_that_are_not_left_out():
    log_probs = dict(zip("abc", np.log(np.random.default_rng(1).dirichlet(np.ones(9), 3)), strict=True))
    fitted = fit_mixture({name: log_probs[name] for name in "ac"})
    assert choose_shares({"b": 0.0}, log_probs) == {"a": fitted["a"], "b": 0.0, "c": fitted["c"]}
    assert choose_shares({}, log_probs) == fit_mixture(log_probs)
    assert choose_shares({"a": 0.4, "b": 0.6}, log_probs) == {"a": 0.4, "b": 0.6, "c": 0.0}
    with pytest.raises(ConfigError, match="sum to 1"):
        check_shares({"a": 0.4}, "abc")
    with pytest.raises(ConfigError, match="sum to 1"):
        check_shares(dict.fromkeys("abc", 0.0), "abc")

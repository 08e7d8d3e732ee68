"""Bundles with n-gram tables: ``rescorer-train bundle --tables`` and ``rescorer-train tables``."""

from __future__ import annotations

import numpy as np

from rescorer.models.bundle import Bundle, read_bundle
from rescorer.models.ngram_files import read_ngram
from rescorer.pipeline import Rescorer
from rescorer.safe_input import Folder
from rescorer.service.repository import read_model_facts
from rescorer.text import Normaliser
from rescorer.trie import build_trie
from rescorer.types import Hypothesis, NBestList, Weights
from rescorer_training.cli import main
from rescorer_training.evaluation.perplexity import open_ngram
from rescorer_training.recipe.bundles import BundleParts, copy_models
from tests.support.random_ngrams import WORDS, random_orders, write_random_arpa

TRIE = build_trie([("a", "b", "c", "e"), ("nobody", "d"), ()])


def test_a_bundle_may_have_tables_instead_of_arpa_files(tmp_path):
    orders = random_orders(7, 3)
    arpa = write_random_arpa(tmp_path / "m.arpa", orders)
    folder = tmp_path / "bundle"
    folder.mkdir()
    parts = BundleParts(
        "m", 1, {"ngram": arpa}, {}, Normaliser(), Weights("default"), tmp_path, {}, tables=True
    )
    entries, models = copy_models(parts, folder)
    assert entries == {"ngram": {"kind": "ngram", "path": "ngram/model.ngram", "order": 3}}
    expected = read_ngram(arpa).score(TRIE).log_probs
    np.testing.assert_array_equal(models["ngram"].score(TRIE).log_probs, expected)
    np.testing.assert_array_equal(
        open_ngram(folder / "ngram" / "model.ngram").score(TRIE).log_probs, expected
    )
    again = BundleParts(
        "m", 2, {"n": folder / "ngram" / "model.ngram"}, {}, Normaliser(), Weights("default"), tmp_path, {}
    )
    assert copy_models(again, folder)[0] == {"n": {"kind": "ngram", "path": "n/model.ngram", "order": 3}}
    bundle = Bundle(Folder(folder), "m", 1, {"models": entries}, Normaliser(), {"ngram": "ngram"}, {})
    (facts,) = read_model_facts(bundle)
    assert (facts.vocabulary_size, facts.parameters) == (len(WORDS), sum(map(len, orders)))
    assert facts.memory_bytes > (folder / "ngram" / "model.ngram").stat().st_size


LISTS = [
    NBestList(
        "u", (Hypothesis("the cat sat"), Hypothesis("the zebra sat on a mat")), {"acoustic": (-1.0, -1.5)}
    )
]


def test_a_bundle_is_published_again_with_tables(reranker_bundle, run, tmp_path):
    output = tmp_path / "tables" / "2"
    code, out, err = run("tables", reranker_bundle, "-o", output, command=main)
    assert code == 0, err
    assert out == f"{output}: ngram is a table now\n"
    before, after = read_bundle(reranker_bundle), read_bundle(output)
    assert after.label == "tables/2"
    assert after.manifest["models"]["ngram"]["path"] == "ngram/model.ngram"
    assert after.manifest["training"]["tables_of"] == before.label
    assert (after.weights, after.model_kinds) == (before.weights, before.model_kinds)
    changed = {
        file
        for file, digest in after.manifest["files"].items()
        if before.manifest["files"].get(file) != digest
    }
    assert changed == {"ngram/model.ngram", *(f"reranker/{name}/config.json" for name in after.rerankers)}
    assert "ngram/model.arpa" not in after.manifest["files"]
    old, new = Rescorer.load(reranker_bundle), Rescorer.load(output)
    for weights in before.weights.values():
        (expected,), (found,) = old.rescore(LISTS, weights), new.rescore(LISTS, weights)
        assert found.hypotheses == expected.hypotheses


def test_a_bundle_without_arpa_files_has_nothing_to_convert(ngram_bundle, run, tmp_path):
    assert run("tables", ngram_bundle, "-o", tmp_path / "m" / "1", command=main)[0] == 0
    for output, message in (
        ("m/2", "no n-gram as ARPA file"),
        ("m/1", "exists"),
        ("m/new", "version number"),
    ):
        code, _, err = run("tables", tmp_path / "m" / "1", "-o", tmp_path / output, command=main)
        assert code == 2
        assert message in err

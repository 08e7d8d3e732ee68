"""Bundles with n-gram tables: ``rescorer-train bundle --tables``."""

from __future__ import annotations

import numpy as np

from rescorer.bundle import Bundle
from rescorer.lm.ngrams import read_ngram
from rescorer.safe_input.files import Folder
from rescorer.service.models.metadata import read_model_facts
from rescorer.text import Normaliser
from rescorer.trie import build_trie
from rescorer.types import Weights
from rescorer_training.evaluation.model_set import open_ngram
from rescorer_training.recipe.bundle_export import BundleParts, copy_models
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

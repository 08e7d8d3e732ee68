"""Embeddings of networks as word vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rescorer.errors import BundleError, ConfigError
from rescorer.models.neural import save_model
from rescorer_training.vectors.runs import export_embeddings
from tests.support.tiny_models import NETWORK_WORDS, random_network

NETWORKS = [
    {"kind": "lstm"},
    {"kind": "gru"},
    {"kind": "elman"},
    {"kind": "feedforward", "window": 3},
    {"kind": "lbl", "window": 3},
    {"kind": "transformer", "window": 8, "heads": 2},
]


@pytest.mark.parametrize("settings", NETWORKS)
def test_exports_the_embedding_of_every_kind_of_network(tmp_path: Path, settings: dict[str, Any]) -> None:
    model, vocabulary = random_network(**settings)
    save_model(model, vocabulary, tmp_path / "network")
    vectors = export_embeddings(tmp_path / "network")
    assert vectors.words == NETWORK_WORDS
    for word in NETWORK_WORDS:
        expected = model.network.embedding.weight[vocabulary.ids[word]].detach().numpy()
        np.testing.assert_array_equal(vectors.matrix[vectors.index[word]], expected)


@pytest.mark.parametrize(
    "settings", [{"output": "full", "class_sizes": (), "tied": False}, {"tied": True}, {"tied": False}]
)
def test_exports_the_vectors_of_the_output_layer(tmp_path: Path, settings: dict[str, Any]) -> None:
    model, vocabulary = random_network(**settings)
    save_model(model, vocabulary, tmp_path / "network")
    inputs = export_embeddings(tmp_path / "network")
    outputs = export_embeddings(tmp_path / "network", output=True)
    expected = model.output.word_weight[vocabulary.ids["mat"]].detach().numpy()
    np.testing.assert_array_equal(outputs.matrix[outputs.index["mat"]], expected)
    assert np.array_equal(outputs.matrix, inputs.matrix) is settings["tied"]


def test_rejects_the_output_vectors_of_a_tree(tmp_path: Path) -> None:
    save_model(*random_network(output="tree", class_sizes=()), tmp_path / "network")
    with pytest.raises(ConfigError, match="vectors of decisions, not of words"):
        export_embeddings(tmp_path / "network", output=True)


def test_rejects_a_folder_without_a_network(tmp_path: Path) -> None:
    with pytest.raises(BundleError):
        export_embeddings(tmp_path)

"""Small texts of three classes, and small classifiers of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rescorer.models.network_files import NetworkConfig
from rescorer_training.classification import Classifier, ClassifierConfig

WORDS = {"sea": "ship wave sail the a", "farm": "cow barn plough the a", "town": "street shop tram the a"}


def write_texts(folder: Path, n_sentences: int = 60) -> dict[str, Path]:
    """Write a text per class; sentences have one to seven random words of the class."""
    random = np.random.default_rng(0)
    texts = {}
    for name, words in WORDS.items():
        lines = [" ".join(random.choice(words.split(), random.integers(1, 8))) for _ in range(n_sentences)]
        texts[name] = folder / f"{name}.txt"
        texts[name].write_text("\n".join(lines) + "\n")
    return texts


def make_config(vocabulary_size: int = 9, **settings) -> ClassifierConfig:
    """Make the configuration of a small classifier; ``settings`` are its own or its network's."""
    own = {name: settings.pop(name) for name in ("bidirectional", "pooling", "labels") if name in settings}
    sizes = {"embedding_size": 6, "hidden_size": 8, "output": "full", "tied": False}
    network = NetworkConfig(vocabulary_size, **{**sizes, **settings})
    return ClassifierConfig(network, **{"labels": tuple(WORDS), "bidirectional": True, **own})


def make_classifier(vocabulary_size: int = 9, **settings) -> Classifier:
    """Make a small classifier with random weights."""
    torch.manual_seed(1)
    return Classifier(make_config(vocabulary_size, **settings)).eval()

"""The estimated work of a reranker: an upper bound of the time that scoring takes."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import numpy as np
import pytest

from rescorer.reranking.networks import TransformerSizes
from rescorer.reranking.reranker import estimate_steps
from rescorer.types import Weights
from tests.support.tiny_rerankers import random_ensemble, random_reranker

BASE = Weights("base", {"acoustic": 1.0}, {}, 0.5)
MAX_STEP_SECONDS = 100e-9
"""Far above the 4 ns of a quiet machine, so that a busy one passes."""
TEMPERATURES = [f"{1 + i / 10:g}" for i in range(60)]


@pytest.mark.parametrize(
    ("features", "units", "members"),
    [
        (["total"], 0, 1),
        (["total"], 1, 64),
        (["distance:1", "slot_mean:1", "overlap:5"], 0, 1),
        ([f"{kind}:{t}" for kind in ("word_mean", "posterior", "distance") for t in TEMPERATURES], 0, 1),
    ],
)
@pytest.mark.parametrize(("n_hypotheses", "n_words"), [(1, 1), (2, 5), (200, 20)])
def test_time_is_within_the_estimate(features, units, members, n_hypotheses, n_words):
    check_time(random_reranker("any", BASE, units, members, tuple(features)), n_hypotheses, n_words)


@pytest.mark.parametrize("sizes", [(1, 0, 1, 1, 1, 1), (1, 0, 4, 128, 8, 512), (1, 0, 2, 32, 4, 64)])
@pytest.mark.parametrize("n_hypotheses", [1, 10, 300])
def test_time_of_transformers_is_within_the_estimate(sizes, n_hypotheses):
    ensemble = random_ensemble(TransformerSizes(*sizes), members=1)
    reranker = replace(random_reranker("any", BASE, features=("total",)), ensemble=ensemble)
    check_time(reranker, n_hypotheses, n_words=3)


def check_time(reranker, n_hypotheses, n_words):
    random = np.random.default_rng(5)
    words = [tuple(random.choice(list("abcdefgh"), n_words).tolist()) for _ in range(n_hypotheses)]
    lengths = np.full(n_hypotheses, float(n_words))
    components = {
        "acoustic": random.normal(size=n_hypotheses),
        "words": lengths,
        "oov": np.zeros(n_hypotheses),
    }
    estimate, seconds = estimate_steps(reranker, words, ("a",) * 50), []
    for _ in range(5):
        begin = process_time()
        reranker.score(components, words, ("a",) * 50)
        seconds.append(process_time() - begin)
    assert min(seconds) < estimate * MAX_STEP_SECONDS

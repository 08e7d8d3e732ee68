"""Measure the decision rules on fresh lists: ``python -m tools.decision_speed [--hypotheses 100 1000]``.

Every repetition normalises a list that was not seen before, and decides it by minimum Bayes risk, by a
confusion network, and by rerankers: one that is linear in all features but the posteriors of words in their
places, an ensemble of perceptrons with all features, and one of transformers with all features and an
encoding of the words, which is given. All run in one thread. Times are processor times,
which other work on the machine distorts less. The slow twin is the textbook's dynamic programme in
Python, which is measured on a share of the pairs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence

import numpy as np

from rescorer.decision.bayes_risk import expected_errors
from rescorer.decision.confusion_network import build_network
from rescorer.ranking import posteriors
from rescorer.reranking.ensemble import Ensemble, linear_ensemble
from rescorer.reranking.features import FEATURE_KINDS
from rescorer.reranking.reranker import Reranker
from rescorer.reranking.transformer import TransformerEnsemble, TransformerSizes
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.types import Weights
from rescorer.word_encoder import WordEncoder

N_PAIRS = 300
"""Pairs of hypotheses for which the slow twin is measured."""


def make_texts(rng: random.Random, n_hypotheses: int, n_words: int, n_changes: int) -> list[str]:
    """Write hypotheses that differ from one sentence at random positions, by words, insertions, deletions."""
    vocabulary = [f"word{i}" for i in range(3000)]
    spoken = [rng.choice(vocabulary) for _ in range(n_words)]
    texts = []
    for _ in range(n_hypotheses):
        words = list(spoken)
        for _ in range(n_changes):
            position = rng.randrange(len(words))
            words[position : position + rng.randint(0, 1)] = [rng.choice(vocabulary)] * rng.randint(0, 1)
        texts.append(" ".join(words))
    return texts


def edit_distance(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        previous, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (a != b)))
    return row[-1]


def list_features(kinds: Sequence[str]) -> tuple[str, ...]:
    """Name the features of some kinds, at two temperatures each."""
    arguments = {"": [""], "component": [":acoustic"], "temperature": [":1", ":4"], "order": [":1", ":2"]}
    return tuple(kind + text for kind in kinds for text in arguments[FEATURE_KINDS[kind].argument])


def make_reranker(
    features: tuple[str, ...], ensemble: Ensemble | TransformerEnsemble, encoder: WordEncoder | None = None
) -> Reranker:
    base = Weights(streams={"acoustic": 1.0}, lm={})
    return Reranker("speed", features, np.ones(len(features)), base, ensemble, encoder=encoder)


def make_linear(features: tuple[str, ...]) -> Reranker:
    return make_reranker(features, linear_ensemble(RNG.normal(size=(1, len(features)))))


def make_perceptrons(features: tuple[str, ...], n_hidden: int, n_members: int) -> Reranker:
    n = len(features)
    ensemble = Ensemble(
        linear=RNG.normal(size=(n_members, n)),
        hidden=RNG.normal(size=(n_members, n, n_hidden)),
        bias=RNG.normal(size=(n_members, n_hidden)),
        output=RNG.normal(size=(n_members, n_hidden)),
    )
    return make_reranker(features, ensemble)


def make_transformers(features: tuple[str, ...], layers: int, width: int, n_members: int) -> Reranker:
    sizes = TransformerSizes(len(features), ENCODING_SIZE, layers, width, heads=4, units=2 * width)
    shapes = sizes.parameter_shapes(n_members).items()
    ensemble = TransformerEnsemble(sizes, {name: 0.1 * RNG.normal(size=shape) for name, shape in shapes})
    return make_reranker(features, ensemble, WordEncoder("neural", np.ones((1, ENCODING_SIZE))))


RNG = np.random.default_rng(1)
ENCODING_SIZE = 32
RERANKERS = {
    "linear": make_linear(list_features([kind for kind in FEATURE_KINDS if not kind.startswith("slot")])),
    "mlp": make_perceptrons(list_features(list(FEATURE_KINDS)), 32, 5),
    "transf.": make_transformers(list_features(list(FEATURE_KINDS)), 2, 32, 5),
}
"""By the heading of their column."""


def time_reranker(reranker: Reranker, words: Sequence[Words], totals: np.ndarray) -> float:
    """Processor time of scoring a list, in seconds."""
    lengths = np.array([float(len(hypothesis)) for hypothesis in words])
    components = {"acoustic": totals, "words": lengths, "oov": np.zeros(len(words))}
    encoding = RNG.normal(size=(len(words), ENCODING_SIZE))
    began = time.process_time()
    reranker.score(components, words, words[0][:5], encoding)
    return time.process_time() - began


def measure(n_hypotheses: int, arguments: argparse.Namespace) -> str:
    """Return a row of the table: times, and the ratio of the slow twin's to that of minimum Bayes risk."""
    rng = random.Random(1)
    normalise = Normaliser().normalise
    normalising_s, deciding_s, network_s = [], [], []
    rerankers_s: dict[str, list[float]] = {name: [] for name in RERANKERS}
    for _ in range(arguments.repetitions):
        texts = make_texts(rng, n_hypotheses, arguments.words, arguments.changes)
        totals = np.array([rng.gauss(-100, 5) for _ in texts])
        began = time.process_time()
        words = [normalise(text) for text in texts]
        normalised = time.process_time()
        expected_errors(words, posteriors(totals, 2.0), arguments.unit)
        normalising_s.append(normalised - began)
        decided = time.process_time()
        build_network(words, posteriors(totals, 2.0).tolist()).consensus()
        deciding_s.append(decided - normalised)
        network_s.append(time.process_time() - decided)
        for name, reranker in RERANKERS.items():
            rerankers_s[name].append(time_reranker(reranker, words, totals))
    sequences = words if arguments.unit == "word" else [tuple("".join(hypothesis)) for hypothesis in words]
    began = time.process_time()
    for _ in range(N_PAIRS):
        edit_distance(rng.choice(sequences), rng.choice(sequences))
    slow_s = (time.process_time() - began) / N_PAIRS * n_hypotheses * (n_hypotheses - 1) / 2
    columns = [
        statistics.median(times) for times in (normalising_s, network_s, *rerankers_s.values(), deciding_s)
    ]
    columns.append(max(deciding_s))
    milliseconds = " ".join(f"{seconds * 1e3:>12.2f}" for seconds in columns)
    return f"{n_hypotheses:>10,} {milliseconds} {slow_s / columns[-2]:>12,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.decision_speed", description=__doc__)
    parser.add_argument("--hypotheses", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--changes", type=int, default=3)
    parser.add_argument("--unit", choices=["word", "character"], default="word")
    parser.add_argument("--repetitions", type=int, default=20)
    arguments = parser.parse_args()
    rerankers = [f"{name} ms" for name in RERANKERS]
    names = ("normalise ms", "network ms", *rerankers, "mbr ms", "mbr worst ms", "slow twin ×")
    print("hypotheses " + " ".join(f"{name:>12}" for name in names))
    for n_hypotheses in arguments.hypotheses:
        print(measure(n_hypotheses, arguments), flush=True)


if __name__ == "__main__":
    main()

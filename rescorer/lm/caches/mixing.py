"""The caches of sessions with which a mixture is interpolated: that of words, then the neural one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rescorer.lm.base import EdgeScores
from rescorer.lm.caches.session_cache import (
    HALF_COUNT,
    Caches,
    SessionCache,
    read_sessions,
    spread_confidences,
)
from rescorer.lm.mixture import mix_scores
from rescorer.score_combination import CACHE, NEURAL_CACHE
from rescorer.trie import HypothesisTrie
from rescorer.types import Weights


def read_caches(trie: HypothesisTrie, scores: Mapping[str, EdgeScores], weights: Weights) -> Caches:
    """The caches of the sessions of a trie's roots under some weights.

    Args:
        scores: the models' edge scores; those of networks have the neural caches of the trie.
        weights: complete weights, of which the λ of the mixture and those of the caches matter.
    """
    caches = {
        CACHE: read_sessions(trie, weights.cache),
        NEURAL_CACHE: mix_neural_caches(trie, scores, weights.mixture, weights.neural_cache),
    }
    return {name: cache for name, cache in caches.items() if cache}


def mix_choices(
    trie: HypothesisTrie,
    scores: Mapping[str, EdgeScores],
    score_past: Callable[[HypothesisTrie], Mapping[str, EdgeScores]],
    mixtures: Sequence[Mapping[str, float]],
    cache: Sequence[float],
    neural_cache: Sequence[tuple[float, float]],
) -> Iterator[tuple[Mapping[str, float], EdgeScores, Caches]]:
    """Yield each mixture, its scores with its caches, and these.

    Args:
        scores: scores without neural caches.
        score_past: scores a trie by networks with neural caches; called once for each θ.
        mixtures: λ of the models of G choices.
        cache: λ of the cache of words of each.
        neural_cache: λ and θ of the neural cache of each.
    """
    sessions = {share: read_sessions(trie, share) for share in set(cache)}
    with_past = {}
    for flatness in {theta for share, theta in neural_cache if share}:
        of_roots = tuple(flatness if len(context) else 0.0 for context in trie.contexts)
        past = replace(trie, flatness=of_roots)
        with_past[flatness] = past, {**scores, **score_past(past)}
    for mixture, word_share, (share, flatness) in zip(mixtures, cache, neural_cache, strict=True):
        neural = mix_neural_caches(*with_past[flatness], mixture, share) if share else None
        found = {CACHE: sessions[word_share], NEURAL_CACHE: neural}
        caches = {name: one for name, one in found.items() if one}
        mixed = mix_scores(scores, mixture)
        for one in caches.values():
            mixed = one.add_to(mixed)
        yield mixture, mixed, caches


def mix_neural_caches(
    trie: HypothesisTrie, scores: Mapping[str, EdgeScores], mixture: Mapping[str, float], share: float
) -> SessionCache | None:
    """The neural caches of a mixture's networks, each in proportion to the λ of its network.

    As with the cache of words, λ = ``share`` · c / (c + ``HALF_COUNT``) in a session whose words count c.

    Args:
        mixture: λ of the models.
        share: λ for an endless session; 0 for no cache.
    """
    cached = {name: scores[name].cached for name, weight in mixture.items() if weight}
    networks = {name: values for name, values in cached.items() if values is not None}
    if not share or not networks:
        return None
    total = sum(mixture[name] for name in networks)
    probs = sum((mixture[name] / total * values for name, values in networks.items()), np.zeros(trie.n_edges))
    histories = zip(trie.contexts, trie.confidences, trie.flatness, strict=True)
    counts = np.array(
        [
            spread_confidences(context, confidences, len(trie.words)).sum() if flatness else 0.0
            for context, confidences, flatness in histories
        ]
    )
    return SessionCache(probs, share * (counts / (counts + HALF_COUNT))[trie.root_of_node[trie.edge_parent]])

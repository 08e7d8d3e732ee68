"""Give unknown words inside of phrases the probability that the phrase model gives them, and slots theirs.

A name that is not in a model's vocabulary costs as much as any other unknown word, which is often too much to
be chosen. Where it is part of a phrase, it is expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rescorer.lm.base import EdgeScores
from rescorer.lm.caches.session_cache import Caches
from rescorer.lm.mixture import mix
from rescorer.phrases.matching import PhraseMatch, phrase_log_probs
from rescorer.phrases.slots import SlotScores
from rescorer.score_combination import MIXTURE, OOV
from rescorer.trie import HypothesisTrie, Words


def adjust_for_phrases(
    sums: Mapping[str, np.ndarray],
    trie: HypothesisTrie,
    scores: Mapping[str, EdgeScores],
    mixture: Mapping[str, float],
    ngram: str,
    words: Sequence[Words],
    matches: Sequence[Sequence[PhraseMatch]],
    places: Iterable[tuple[int, int]],
    caches: Caches | None = None,
    slots: SlotScores | None = None,
) -> None:
    """Change the sums of hypotheses so that n-grams read slots and unknown words of phrases count as known.

    The log-probability of an unknown word becomes that of the phrase model, or stays that of ``<unk>`` if it
    is larger; see ``PhraseSet.word_log_probs``. Of n-grams that read slots, ``slots`` has this already.

    Args:
        sums: sums by component, (H,) float64: of any models, of the mixture, and the number of unknown words.
        scores: the models' edge scores of a trie, by name.
        mixture: λ of the mixture.
        ngram: name of the model whose unknown words are counted.
        words: words of the H hypotheses.
        matches: phrases of the H hypotheses; empty if none has any.
        places: for hypotheses of the trie, the index there and that among the H.
        caches: caches with which the mixture is interpolated.
        slots: scores of the readings of hypotheses with slots.
    """
    slots = slots or {}
    if not any(matches) or not (slots or any(part.unknown.any() for part in scores.values())):
        return
    for row, index in places:
        if matches[index]:
            log_probs = phrase_log_probs(words[index], matches[index])
            read = slots.get(row, {})
            # what follows a slot is predicted from it
            n_scored = max([len(words[index]), *map(len, read.values())])
            log_probs = np.append(log_probs, -np.inf)[:n_scored]
            in_phrases = log_probs > -np.inf
            indices = np.arange(n_scored) if read else np.flatnonzero(in_phrases)
            edges = {name: part.path_edges(trie, row)[indices] for name, part in scores.items()}
            gains = _find_gains(scores, edges, log_probs[indices], mixture, caches or {}, read)
            gains[OOV] = -float(scores[ngram].unknown[edges[ngram]][in_phrases[indices]].sum())
            for name in gains.keys() & sums.keys():
                sums[name][index] += gains[name]


def _find_gains(
    scores: Mapping[str, EdgeScores],
    edges: Mapping[str, np.ndarray],
    log_probs: np.ndarray,
    mixture: Mapping[str, float],
    caches: Caches,
    read: Mapping[str, np.ndarray],
) -> dict[str, float]:
    """What words of one hypothesis gain by model, and in the mixture.

    Args:
        edges: (n,) edges of these words, by model.
        log_probs: (n,) their log-probabilities under the phrase model; -inf outside of phrases.
        read: (n,) their log-probabilities under models that read slots.
    """
    before = {name: part.log_probs[edges[name]] for name, part in scores.items()}
    after = {
        name: np.where(scores[name].unknown[edges[name]], np.maximum(values, log_probs), values)
        for name, values in before.items()
    }
    after |= read
    for part in (before, after):
        mixed = mix([part[name] for name in mixture], list(mixture.values()))
        # all models of a mixture with a cache read the same trie, forward
        for name, cache in caches.items():
            interpolated = cache.interpolate(mixed, edges[next(iter(mixture))])
            part[name] = interpolated - mixed
            mixed = interpolated
        part[MIXTURE] = mixed
    return {name: float(np.sum(values - before[name])) for name, values in after.items()}

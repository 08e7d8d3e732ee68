"""A list that is ready to be scored, the components of its totals, and its order by these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.candidates.generation import components_of_generated
from rescorer.phrases.matching import PhraseMatch
from rescorer.phrases.slots import SlotReadings, read_slots
from rescorer.preparation.batching import plan_batches
from rescorer.ranking import Ranking, find_empty, ranking
from rescorer.runtime.profiling import Phase, phase
from rescorer.score_combination import CACHE, NEURAL_CACHE, PHRASES, WORDS
from rescorer.trie import HypothesisTrie, Words, build_trie
from rescorer.types import NBestList

ENCODING_OF = "encoding/"
"""What the name of an encoding of words begins with among sums; no model's name contains a slash."""


@dataclass(frozen=True, slots=True)
class PreparedList:
    """A checked list in canonical words, ready to be scored."""

    nbest: NBestList
    words: tuple[Words, ...]
    """Canonical words of each hypothesis."""
    context: Words
    """Words before the hypotheses in the same sentence."""
    history: Words
    """All words that models and the cache read before the hypotheses; see ``previous.join_history``."""
    said: Words
    """What rerankers compare the hypotheses with: the words of previous utterances, then the context."""
    matches: tuple[Sequence[PhraseMatch], ...] = ()
    """Phrases that were found in each hypothesis; empty if there are none in the list."""
    confidences: tuple[float, ...] = ()
    """How sure each previous utterance of the history is, for caches; empty: all are certain."""
    flatness: float = 0.0
    """θ of the neural cache; 0: there is none."""


def flatten_matches(lists: Sequence[PreparedList]) -> list[Sequence[PhraseMatch]]:
    """The phrases of each hypothesis of some lists, in input order."""
    return [found for prepared in lists for found in prepared.matches or [()] * len(prepared.words)]


def build_tries(
    lists: Sequence[PreparedList], max_batch_words: int, *, backward: bool
) -> Iterator[tuple[Sequence[int], HypothesisTrie]]:
    """Yield batches of the hypotheses of some lists: their indices, and their trie."""
    words = [hypothesis for item in lists for hypothesis in item.words]
    owners = [item for item in lists for _ in item.words]
    for plan in plan_batches(words, [item.history for item in owners], max_batch_words, backward=backward):
        items = [owners[i] for i in plan.indices]
        with phase(Phase.TRIE):
            trie = build_trie(
                [words[i] for i in plan.indices],
                [item.history for item in items],
                [item.confidences for item in items],
                [item.flatness for item in items],
            )
        yield plan.indices, trie


def read_batch_slots(lists: Sequence[PreparedList], indices: Sequence[int]) -> Iterator[SlotReadings]:
    """The readings of a batch of the hypotheses of some lists; see ``read_slots``."""
    if not any(item.matches for item in lists):
        return iter(())
    first = np.cumsum([0, *(len(item.words) for item in lists)])
    owner = np.searchsorted(first, indices, side="right") - 1
    batch = [(lists[i], row) for i, row in zip(owner, indices - first[owner], strict=True)]
    return read_slots(
        [item.words[row] for item, row in batch],
        [item.history for item, _ in batch],
        [item.matches[row] if item.matches else () for item, row in batch],
        [item.nbest.hypotheses[row].partial for item, row in batch],
    )


def rank_prepared(
    prepared: PreparedList,
    components: Mapping[str, np.ndarray],
    total: np.ndarray,
    *,
    merge: bool,
    drop_empty: bool,
    keep_order: bool = False,
) -> Ranking:
    """Rank a list by its totals as ``ranking`` does; its canonical words say what is equal and what empty."""
    dropped = find_empty(prepared.words) if drop_empty else ()
    merge_by = prepared.words if merge else None
    return ranking(prepared.nbest, components, total, merge_by, dropped, keep_order=keep_order)


def components_of(prepared: PreparedList, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Collect the components of a list's totals by name: streams, model sums and words, (H,) float64 each."""
    streams = prepared.nbest.streams.items()
    components = {name: np.array(values, dtype=np.float64) for name, values in streams}
    components |= {name: values for name, values in sums.items() if not name.startswith(ENCODING_OF)}
    n_words = np.array([len(words) for words in prepared.words], dtype=np.float64)
    if not prepared.history:
        components = {n: values for n, values in components.items() if n not in (CACHE, NEURAL_CACHE)}
    if prepared.matches:
        credits = [math.fsum(match.credit for match in found) for found in prepared.matches]
        components[PHRASES] = np.array(credits)
    return {**components, **components_of_generated(prepared.nbest.hypotheses), WORDS: n_words}

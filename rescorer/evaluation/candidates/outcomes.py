"""Score lists with phrases that are in their references, and with phrases that are not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.conversation import Generated
from rescorer.errors import InputError, InvalidList
from rescorer.evaluation.error_rate.counting import DEFAULT_COUNTING
from rescorer.options import RescoreOptions
from rescorer.pipeline import Rescorer
from rescorer.ranking import Ranking
from rescorer.score_combination import GENERATED, SOUND_MATCH, totals
from rescorer.trie import Words
from rescorer.types import NBestList, Weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """A list with generated hypotheses, and what would happen if each of its hypotheses won."""

    totals: np.ndarray
    """(H,) float64, without what only generated hypotheses have."""
    generated: np.ndarray
    """(H,) float64, number of replaced spans; 0 for the recogniser's own."""
    sound_match: np.ndarray
    """(H,) float64; 0 for the recogniser's own."""
    right: np.ndarray
    """(H,) bool, whether the hypothesis is generated from phrases of the reference only."""
    errors: np.ndarray
    """(H,) int64."""
    n_words: int
    """Number of words of the reference."""

    def winner(self, generated: float, sound_match: float) -> int:
        """The hypothesis with the largest total under two weights."""
        made = generated * self.generated + sound_match * self.sound_match
        return int(np.argmax(np.round(self.totals + made, 4)))

    def margin(self, sound_match: float) -> float:
        """The weight ``generated``, negated, above which a wrong phrase wins; -inf if none can."""
        is_own = self.generated == 0
        wrong = ~is_own & ~self.right
        lead = (self.totals + sound_match * self.sound_match)[wrong] - self.totals[is_own].max()
        return float((lead / self.generated[wrong]).max(initial=-np.inf))


def score_outcomes(
    rescorer: Rescorer, lists: Sequence[NBestList], weights: Weights
) -> list[Outcome | InputError]:
    """Generate hypotheses for lists with references, and score them.

    Returns:
        One outcome per list, or the reason why it has none.
    """
    outcomes: list[Outcome | InputError] = []
    for nbest in lists:
        if nbest.reference is None:
            outcomes.append(InvalidList("missing", list_id=nbest.id, field="reference"))
            continue
        (ranking,) = rescorer.rank_each([nbest], RescoreOptions(weights, generate=True))
        outcomes.append(_to_outcome(ranking, rescorer, weights) if isinstance(ranking, Ranking) else ranking)
    return outcomes


def _to_outcome(ranking: Ranking, rescorer: Rescorer, weights: Weights) -> Outcome:
    nbest, normalise = ranking.nbest, rescorer.bundle.normaliser.normalise
    counted = rescorer.ranker.text_normaliser.normalise
    count = DEFAULT_COUNTING.counter_for(nbest.reference or "", counted, nbest.id)
    counts = [count(hypothesis.text) for hypothesis in nbest.hypotheses]
    spoken = normalise(nbest.reference or "")
    made = [hypothesis.generated for hypothesis in nbest.hypotheses]
    none = np.zeros(len(made))

    def is_right(one: Generated) -> bool:
        return all(contains(spoken, normalise(part.phrase)) for part in one.parts)

    own = {
        name: values for name, values in ranking.components.items() if name not in (GENERATED, SOUND_MATCH)
    }
    return Outcome(
        totals(own, weights),
        ranking.components.get(GENERATED, none),
        ranking.components.get(SOUND_MATCH, none),
        np.array([one is not None and is_right(one) for one in made]),
        np.array([errors.errors for errors in counts]),
        len(counted(nbest.reference or "")),
    )


def draw_decoys(
    rescorer: Rescorer, lists: Sequence[NBestList], count: int, rounds: int
) -> list[list[NBestList]]:
    """Give each list phrases of the other lists that are not in its reference, instead of its own.

    Args:
        count: largest number of phrases of a list.
        rounds: how often each list is drawn. A draw with the same phrases as another one says nothing new and
            is left out.

    Returns:
        The draws of each list, at least one.
    """
    normalise = rescorer.bundle.normaliser.normalise
    words = {phrase: normalise(phrase.text) for nbest in lists for phrase in nbest.phrases}
    generators, decoys = [random.Random(seed) for seed in range(rounds)], []
    for nbest in lists:
        spoken = normalise(nbest.reference or "")
        absent = [phrase for phrase, part in words.items() if part and not contains(spoken, part)]
        draws = [draw.sample(absent, min(count, len(absent))) for draw in generators]
        distinct = {frozenset(chosen): chosen for chosen in reversed(draws)}
        decoys.append([replace(nbest, phrases=tuple(chosen)) for chosen in reversed(distinct.values())])
    return decoys


def contains(words: Words, part: Words) -> bool:
    """Whether a sequence of words has another as a part without gaps."""
    return any(words[i : i + len(part)] == part for i in range(len(words) - len(part) + 1))

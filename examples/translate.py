"""Translate a few German sentences by a toy phrase table, and write n-best lists as Moses does.

    python examples/translate.py FOLDER

FOLDER gets ``lists.nbest``, in which every line has the features that weights can be tuned for; ``lists.en``,
the right translations; and ``text.en``, the text of the decoder's language model. The decoder covers the
phrases of a sentence in any order. Its weights are not tuned: it trusts the order of the German words too
much, and its language model too little.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import NamedTuple

SUBJECTS = {"der mann": "the man", "die frau": "the woman", "das kind": "the child"}
ACTS = {
    "das buch gelesen": "read the book",
    "den brief geschrieben": "written the letter",
    "das schloss geöffnet": "opened the lock",
    "das schloss gesehen": "seen the castle",
    "die bank gestrichen": "painted the bench",
    "die bank überfallen": "robbed the bank",
    "den schlüssel verloren": "lost the key",
    "die tür geschlossen": "closed the door",
}
TIMES = {"": "", "heute": "today", "im garten": "in the garden", "schon wieder": "again"}
TEXT = """we have read the book today . they have written the letter . you have opened the lock again .
they have seen the castle in the garden . we have painted the bench . they have robbed the bank today .
you have lost the key in the garden . we have closed the door again . the man has seen the castle .
the woman has opened the lock . the child has lost the book today . we have seen the bench in the garden"""
# German phrase, then English phrases with P(English | German) and P(German | English)
TABLE = {
    "der mann": {"the man": (0.8, 0.9), "man": (0.2, 0.5)},
    "die frau": {"the woman": (0.7, 0.9), "the wife": (0.3, 0.8)},
    "das kind": {"the child": (0.7, 0.9), "the kid": (0.3, 0.9)},
    "hat": {"has": (0.6, 0.9), "has got": (0.2, 0.6), "had": (0.2, 0.2)},
    "das buch": {"the book": (0.9, 0.9), "book": (0.1, 0.4)},
    "den brief": {"the letter": (0.9, 0.8), "a letter": (0.1, 0.1)},
    "das schloss": {"the castle": (0.6, 0.8), "the lock": (0.4, 0.9)},
    "die bank": {"the bank": (0.7, 0.9), "the bench": (0.3, 0.9)},
    "den schlüssel": {"the key": (0.9, 0.9), "the wrench": (0.1, 0.5)},
    "die tür": {"the door": (1.0, 0.9)},
    "gelesen": {"read": (1.0, 0.5)},
    "geschrieben": {"written": (0.8, 0.9), "wrote": (0.2, 0.2)},
    "geöffnet": {"opened": (0.5, 0.6), "open": (0.5, 0.3)},
    "gesehen": {"seen": (0.8, 0.9), "saw": (0.2, 0.1)},
    "gestrichen": {"cancelled": (0.6, 0.5), "painted": (0.4, 0.5)},
    "überfallen": {"robbed": (0.5, 0.7), "attacked": (0.5, 0.5)},
    "verloren": {"lost": (1.0, 0.9)},
    "geschlossen": {"closed": (0.8, 0.6), "shut": (0.2, 0.8)},
    "heute": {"today": (1.0, 0.9)},
    "im garten": {"in the garden": (1.0, 0.9)},
    "schon wieder": {"again": (0.5, 0.3), "already again": (0.5, 0.9)},
}
WEIGHTS = {"LM0": (0.1,), "TranslationModel0": (0.5, 0.5), "Distortion0": (0.6,), "WordPenalty0": (-0.3,)}
N_BEST, BEAM, BACKOFF = 20, 400, 0.4

COUNTS: Counter[tuple[str, ...]] = Counter()
for line in TEXT.split("."):
    words = ["<s>", *line.split(), "</s>"]
    COUNTS.update(tuple(words[i : i + n]) for n in (1, 2, 3) for i in range(len(words) - n + 1))
N_WORDS = sum(count for ngram, count in COUNTS.items() if len(ngram) == 1)


def log_prob(ngram: tuple[str, ...]) -> float:
    """ln of the relative frequency of the last word after the others, backing off (Brants et al. 2007)."""
    if len(ngram) == 1:
        return math.log((COUNTS[ngram] + 0.1) / N_WORDS)
    if COUNTS[ngram]:
        return math.log(COUNTS[ngram] / COUNTS[ngram[:-1]])
    return math.log(BACKOFF) + log_prob(ngram[1:])


class State(NamedTuple):
    """A translation of some phrases of a sentence."""

    covered: frozenset[int] = frozenset()
    words: tuple[str, ...] = ()
    last: int = -1
    model: tuple[float, float] = (0.0, 0.0)
    distance: int = 0

    def add(self, place: int, english: str, probs: tuple[float, float]) -> State:
        model = (self.model[0] + math.log(probs[0]), self.model[1] + math.log(probs[1]))
        distance = self.distance + abs(place - self.last - 1)
        return State(self.covered | {place}, (*self.words, *english.split()), place, model, distance)

    def features(self) -> dict[str, tuple[float, ...]]:
        padded = ("<s>", *self.words, "</s>")
        lm = sum(log_prob(padded[max(0, end - 3) : end]) for end in range(2, len(padded) + 1))
        penalties = {"Distortion0": (-self.distance,), "WordPenalty0": (-len(self.words),)}
        return {"LM0": (lm,), "TranslationModel0": self.model, **penalties}


def translate(phrases: tuple[str, ...]) -> list[tuple[float, State]]:
    """The best translations of a sentence in phrases, with their totals."""
    beam = [(0.0, State())]
    for _ in phrases:
        longer = {
            state.add(place, english, probs)
            for _, state in beam
            for place in set(range(len(phrases))) - state.covered
            for english, probs in TABLE[phrases[place]].items()
        }
        scored = [(total(state.features()), state) for state in longer]
        beam = sorted(scored, key=lambda one: (-one[0], one[1].words, one[1].model, one[1].distance))[:BEAM]
    return beam[:N_BEST]


def total(values: dict[str, tuple[float, ...]]) -> float:
    return sum(w * v for name, weights in WEIGHTS.items() for w, v in zip(weights, values[name], strict=True))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lists, references = [], []
    sentences = product(SUBJECTS.items(), ACTS.items(), TIMES.items())
    for number, ((subject, who), (act, what), (time, when)) in enumerate(sentences):
        article, noun, participle = act.split()
        phrases = (subject, "hat", *filter(None, [time]), f"{article} {noun}", participle)
        references.append(f"{who} has {what} {when}".strip())
        for score, state in translate(phrases):
            values = state.features().items()
            columns = (f"{name}= " + " ".join(f"{value:.4f}" for value in part) for name, part in values)
            lists.append(f"{number} ||| {' '.join(state.words)} ||| {' '.join(columns)} ||| {score:.4f}")
    (folder / "lists.nbest").write_text("\n".join(lists) + "\n", encoding="utf-8")
    (folder / "lists.en").write_text("\n".join(references) + "\n", encoding="utf-8")
    (folder / "text.en").write_text("\n".join(map(str.strip, TEXT.split("."))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

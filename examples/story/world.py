"""Write the texts and n-best lists of docs/story.md: a made-up world, and a recogniser that mishears it.

In this world people, animals and boats do what they do, at the sea, on the farm, in the town or in the wood.
A verb agrees with its noun, however many words stand between them; sixty sentences in a row have one topic.
The recogniser hardly hears an s at the end of a word, nor tells boats from goats.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

TOPICS = {
    "sea": ("sailor boat gull", "sail row float", "harbour bay"),
    "farm": ("farmer goat foal", "plough sow graze", "field hay"),
    "town": ("tailor girl driver", "sell drive talk", "market street"),
    "wood": ("hunter owl stag", "hunt hide howl", "forest cave"),
}
DETERMINERS = {"s": ("the", "this", "one"), "": ("the", "these", "many")}  # by the ending of the verb
SOUND_ALIKE = ("boat goat", "sailor tailor", "gull girl", "row sow", "bay hay")
N_PAIRS = 50
"""Pairs of sentences for each number of words between noun and verb."""
NOUNS_AND_VERBS = " ".join(f"{nouns} {verbs}" for nouns, verbs, _ in TOPICS.values()).split()


@dataclass
class Writer:
    """Writes sentences by choosing, and adds up the log-probabilities of its choices."""

    chance: random.Random
    log_prob: float = field(default=0.0, init=False)

    def choose(self, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        weights = weights or [1 / len(options)] * len(options)
        (index,) = self.chance.choices(range(len(options)), weights)
        self.log_prob += math.log(weights[index])
        return options[index]

    def sentence(self, topic: str) -> list[str]:
        nouns, verbs, places = (words.split() for words in TOPICS[topic])
        ending = self.choose(["s", ""])  # of the verb: one sails, many sail
        noun = self.choose(nouns)
        words = [self.choose(DETERMINERS[ending]), *self.choose([[], ["old"], ["quiet"]])]
        words += [noun if ending else f"{noun}s"]
        for _ in range(self.choose([0, 1, 2, 3], [0.3, 0.3, 0.25, 0.15])):
            words += [self.choose(["near", "behind", "beside"]), "the", *self.choose([[], ["young"]])]
            words += [self.choose(nouns) + self.choose(["s", ""])]
        verb = self.choose(verbs)
        words += [verb + ending]
        words += self.choose([[], ["today"], ["in", "the", "PLACE"]])
        if words[-1] == "PLACE":
            words[-1] = self.choose(places)
        if self.choose([True, False], [0.4, 0.6]):
            words += ["and", self.choose([other for other in verbs if other != verb]) + ending]
        return words


def hear(word: str) -> list[str]:
    """All words that sound like this one to the recogniser, the word itself among them."""
    stem = word.removesuffix("s")
    alike = next((group.split() for group in SOUND_ALIKE if stem in group.split()), [stem])
    endings = ("", "s") if stem in NOUNS_AND_VERBS else (word[len(stem) :],)
    return sorted(other + ending for other in alike for ending in endings)


def recognise(words: list[str], chance: random.Random, n_best: int = 20) -> list[tuple[str, float]]:
    """The n best hypotheses for a sentence: what sounds like it, with the log-probability of the sound."""
    heard = [{w: chance.gauss(0.5 * (w == word), 0.8) for w in hear(word)} for word in words]
    best = [("", 0.0)]
    for sounds in heard:  # keep the best beginnings, so that the list has the best of all sentences
        longer = [(f"{text} {w}".strip(), score + s) for text, score in best for w, s in sounds.items()]
        best = sorted(longer, key=lambda one: -one[1])[:n_best]
    return best


def list_of(number: int, words: list[str], best: list[tuple[str, float]], previous: list[str]) -> dict:
    """An n-best list as `rescorer` reads it."""
    return {
        "id": f"u{number:03d}",
        "group": f"speaker-{number // 15:02d}",
        "previous": previous,
        "reference": " ".join(words),
        "hypotheses": [{"text": text, "scores": {"acoustic": round(score, 3)}} for text, score in best],
    }


def agreements(chance: random.Random) -> list[str]:
    """Pairs of sentences that differ in the ending of the verb, the right one first, by the words between."""
    lines = []
    for n_between in range(5):
        for _ in range(N_PAIRS):
            nouns, verbs, _ = (words.split() for words in TOPICS[chance.choice(list(TOPICS))])
            ending = chance.choice(["s", ""])
            noun, *between = (chance.choice(nouns) for _ in range(n_between + 1))
            others = "".join(f" near the {other}{ending}" for other in between)  # of the other number
            begin = f"the {noun}{'' if ending else 's'}{others} {chance.choice(verbs)}"
            lines += [begin + right for right in (ending, "" if ending else "s")]
    return lines


def main() -> None:
    chance = random.Random(1)
    for name, n_paragraphs in {"train": 80, "valid": 5, "test": 5}.items():
        writer = Writer(chance)
        topics = [writer.choose(list(TOPICS)) for _ in range(n_paragraphs)]
        sentences = [writer.sentence(topic) for topic in topics for _ in range(60)]
        with open(f"{name}.txt", "w", encoding="utf-8") as file:
            file.writelines(" ".join(words) + "\n" for words in sentences)
        n_words = sum(len(words) + 1 for words in sentences)
        perplexity = math.exp(-writer.log_prob / n_words)
        print(f"{name}.txt: {len(sentences):,} sentences, the writer's own perplexity {perplexity:.2f}")
    with open("lists.jsonl", "w", encoding="utf-8") as file:
        previous: list[str] = []  # the recogniser's own choices so far
        for number, words in enumerate(sentences):
            best = recognise(words, chance)
            file.write(json.dumps(list_of(number, words, best, previous[-4:])) + "\n")
            previous.append(best[0][0])
    with open("agreements.txt", "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in agreements(chance))


if __name__ == "__main__":
    main()

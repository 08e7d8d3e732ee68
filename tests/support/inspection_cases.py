"""Lists for the tests of the audit: sound ones, and what makes them odd."""

from __future__ import annotations

import random
from dataclasses import replace

from rescorer.evaluation.error_rate.error_counts import count_errors
from rescorer.evaluation.inspection.inspect import inspect_lists
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList

WORDS = ("stone", "river", "window", "paper", "garden", "morning", "candle", "bridge", "winter", "silver")


def sound_lists(n: int = 40) -> list[NBestList]:
    """Lists whose better hypotheses have the better scores, of an acoustic and a language model."""
    draw = random.Random(7)
    lists = []
    for number in range(n):
        spoken = [draw.choice(WORDS) for _ in range(draw.randint(3, 12))]
        found = {}
        for _ in range(8):
            heard = [draw.choice(WORDS) if draw.random() < 0.15 else word for word in spoken]
            wrong = count_errors(spoken, heard).errors
            acoustic = -80.0 * len(heard) - 4.0 * wrong + draw.gauss(0, 3)
            lm = -6.0 * (len(heard) + 1) - 1.5 * wrong + draw.gauss(0, 1)
            found.setdefault(" ".join(heard), (acoustic, lm))
        order = sorted(found, key=lambda text: -(found[text][0] + found[text][1]))
        streams = {name: tuple(found[text][i] for text in order) for i, name in enumerate(("acoustic", "lm"))}
        lists.append(
            NBestList(f"u{number}", tuple(map(Hypothesis, order)), streams, reference=" ".join(spoken))
        )
    return lists


def one_stream(lists: list[NBestList]) -> list[NBestList]:
    """The same with the sum of both scores alone, which they are sorted by."""
    sums = [
        tuple(map(sum, zip(*(nbest.streams[name] for name in ("acoustic", "lm")), strict=True)))
        for nbest in lists
    ]
    return [replace(nbest, streams={"score": total}) for nbest, total in zip(lists, sums, strict=True)]


def with_scores(lists, name, change):
    return [
        replace(nbest, streams={**nbest.streams, name: tuple(map(change, nbest.streams[name]))})
        for nbest in lists
    ]


def with_texts(lists, change):
    """``change(list, texts)`` gives the new texts."""
    return [
        replace(
            nbest, hypotheses=tuple(Hypothesis(t) for t in change(nbest, [h.text for h in nbest.hypotheses]))
        )
        for nbest in lists
    ]


def reversed_lists(lists):
    return [
        replace(
            nbest,
            hypotheses=nbest.hypotheses[::-1],
            streams={name: values[::-1] for name, values in nbest.streams.items()},
        )
        for nbest in lists
    ]


def ranked(lists, ranks):
    return [
        replace(
            nbest,
            hypotheses=tuple(Hypothesis(h.text, {"rank": ranks(i)}) for i, h in enumerate(nbest.hypotheses)),
        )
        for nbest in lists
    ]


def with_empty(lists, below: float):
    """An empty hypothesis in each, so many nats below the best."""
    return [
        replace(
            nbest,
            hypotheses=(*nbest.hypotheses, Hypothesis("<sil>")),
            streams={"score": (*nbest.streams["score"], nbest.streams["score"][0] - below)},
        )
        for nbest in lists
    ]


def codes(lists, severity="warning", normaliser=None, **options) -> set[str]:
    found = inspect_lists(lists, normaliser or Normaliser(), **options)
    assert found.suspicious == any(each.severity == "warning" for each in found.findings)
    return {each.code for each in found.findings if each.severity == severity}


SOUND = sound_lists()
TOTAL = one_stream(SOUND)

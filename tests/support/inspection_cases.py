"""Lists for the tests of inspection: sound ones, and functions that break them in one way."""

from __future__ import annotations

import random
from dataclasses import replace

from rescorer.evaluation.error_rate import count_errors
from rescorer.evaluation.inspection import inspect_lists
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList

WORDS = ("stone", "river", "window", "paper", "garden", "morning", "candle", "bridge", "winter", "silver")


def sound_lists(n: int = 40) -> list[NBestList]:
    """Lists with acoustic and language-model scores, which are better for hypotheses with fewer errors."""
    draw = random.Random(7)
    lists = []
    for number in range(n):
        reference = [draw.choice(WORDS) for _ in range(draw.randint(3, 12))]
        scores = {}
        for _ in range(8):
            heard = [draw.choice(WORDS) if draw.random() < 0.15 else word for word in reference]
            errors = count_errors(reference, heard).errors
            acoustic = -80.0 * len(heard) - 4.0 * errors + draw.gauss(0, 3)
            lm = -6.0 * (len(heard) + 1) - 1.5 * errors + draw.gauss(0, 1)
            scores.setdefault(" ".join(heard), (acoustic, lm))
        texts = sorted(scores, key=lambda text: -sum(scores[text]))
        streams = {
            name: tuple(scores[text][i] for text in texts) for i, name in enumerate(("acoustic", "lm"))
        }
        lists.append(
            NBestList(f"u{number}", tuple(map(Hypothesis, texts)), streams, reference=" ".join(reference))
        )
    return lists


def one_stream(lists: list[NBestList]) -> list[NBestList]:
    """The lists with only the sum of both scores, by which they are sorted."""
    sums = [
        tuple(map(sum, zip(*(nbest.streams[name] for name in ("acoustic", "lm")), strict=True)))
        for nbest in lists
    ]
    return [replace(nbest, streams={"score": total}) for nbest, total in zip(lists, sums, strict=True)]


def with_scores(lists, name, change):
    """The lists with ``change`` applied to each score of a stream."""
    return [
        replace(nbest, streams={**nbest.streams, name: tuple(map(change, nbest.streams[name]))})
        for nbest in lists
    ]


def with_texts(lists, change):
    """The lists with the texts that ``change(list, texts)`` returns."""
    return [
        replace(
            nbest,
            hypotheses=tuple(
                Hypothesis(text)
                for text in change(nbest, [hypothesis.text for hypothesis in nbest.hypotheses])
            ),
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


def with_ranks(lists, rank_of):
    """The lists with ``rank_of(index)`` as the rank field of each hypothesis."""
    return [
        replace(
            nbest,
            hypotheses=tuple(
                Hypothesis(hypothesis.text, {"rank": rank_of(i)})
                for i, hypothesis in enumerate(nbest.hypotheses)
            ),
        )
        for nbest in lists
    ]


def with_empty(lists, nats_below: float):
    """The lists with an empty hypothesis each, that many nats below the first one."""
    return [
        replace(
            nbest,
            hypotheses=(*nbest.hypotheses, Hypothesis("<sil>")),
            streams={"score": (*nbest.streams["score"], nbest.streams["score"][0] - nats_below)},
        )
        for nbest in lists
    ]


def finding_codes(lists, severity="warning", normaliser=None, **options) -> set[str]:
    """The codes of the findings of one severity."""
    inspection = inspect_lists(lists, normaliser or Normaliser(), **options)
    assert inspection.suspicious == any(finding.severity == "warning" for finding in inspection.findings)
    return {finding.code for finding in inspection.findings if finding.severity == severity}


SOUND = sound_lists()
TOTAL = one_stream(SOUND)

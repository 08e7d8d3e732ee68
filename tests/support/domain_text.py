"""Text and lists of a domain that differs from what the models of ``tiny_models`` know."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WORDS_BY_POSITION = (
    ["the", "the dog", "a"],
    ["cat", "dog", "mat", "zebra", "gnu"],
    ["sat", "ran", "slept"],
    ["on the mat", "fast", ""],
)
"""Every sentence is a random choice for each position; no model knows ``a``, ``gnu`` and ``slept``."""


def write_domain_text(path: Path, n_sentences: int = 240) -> Path:
    """Write random sentences, the same ones in every call."""
    generator = np.random.default_rng(0)
    lines = [" ".join(generator.choice(words) for words in WORDS_BY_POSITION) for _ in range(n_sentences)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_domain_lists(path: Path, text: Path, n_lists: int = 30) -> Path:
    """Write lists of sentences of a text; the wrong hypothesis of each sounds better."""
    with path.open("w", encoding="utf-8") as file:
        for number, line in enumerate(text.read_text(encoding="utf-8").splitlines()[:n_lists]):
            texts = (" ".join(["mat", *line.split()[1:]]), line)
            hypotheses = [
                {"text": text, "scores": {"acoustic": score}}
                for text, score in zip(texts, (-1.0, -1.5), strict=True)
            ]
            nbest = {
                "id": str(number),
                "group": str(number % 10),
                "reference": line,
                "hypotheses": hypotheses,
            }
            file.write(json.dumps(nbest) + "\n")
    return path

"""What a picture shows: words, their points, groups, and nearest words before the projection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer_training.vectors.plots.projection import Projection, project
from rescorer_training.vectors.plots.selection import Selection
from rescorer_training.vectors.word_vectors import WordVectors

N_NEIGHBOURS = 8
MAX_COSINES = 1 << 22
"""Largest number of cosines in memory at once."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#808080")
"""Colours that people with any colour vision can tell apart (Okabe and Ito 2008), and a grey."""


@dataclass(frozen=True, eq=False)
class Picture:
    """Words as points."""

    title: str
    words: tuple[str, ...]
    groups: tuple[str, ...]
    group_of: tuple[int, ...]
    points: dict[Projection, np.ndarray]
    """(N, 2) coordinates in -1 … 1."""
    neighbours: np.ndarray
    """(N, K) places of the words of the picture that are nearest by the cosine, before any projection."""
    cosines: np.ndarray
    """(N, K) their cosines."""


def make_picture(
    vectors: WordVectors, selection: Selection, projections: Sequence[Projection], seed: int, title: str
) -> Picture:
    """Project the selected words, and find the nearest of each among them."""
    rows = list(selection.rows)
    unit_rows = WordVectors(tuple(vectors.words[row] for row in rows), vectors.matrix[rows]).normalised()
    neighbours, cosines = find_nearest(unit_rows, min(N_NEIGHBOURS, len(rows) - 1))
    return Picture(
        title,
        tuple(vectors.words[row] for row in rows),
        selection.groups,
        selection.group_of,
        {projection: project(unit_rows, projection, seed) for projection in projections},
        neighbours,
        cosines,
    )


def find_nearest(unit_rows: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest other rows of each row, best first: places and cosines, both (N, n)."""
    places, cosines = [], []
    size = max(MAX_COSINES // len(unit_rows), 1)
    for start in range(0, len(unit_rows), size):
        block = unit_rows[start : start + size] @ unit_rows.T
        block[np.arange(len(block)), np.arange(start, start + len(block))] = -np.inf
        best = np.argsort(-block, axis=1, kind="stable")[:, :n]
        places.append(best)
        cosines.append(np.take_along_axis(block, best, axis=1))
    return np.concatenate(places), np.concatenate(cosines)

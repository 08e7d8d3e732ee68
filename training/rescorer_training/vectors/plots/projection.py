"""Project vectors to a plane by principal components, or by t-SNE, with scikit-learn.

Vectors have length 1 first, because their directions are what neighbours, analogies and similarities compare.
"""

from __future__ import annotations

import importlib.util
import warnings
from enum import StrEnum

import numpy as np

from rescorer.errors import ConfigError


class Projection(StrEnum):
    """How vectors become points."""

    PCA = "PCA"
    TSNE = "t-SNE"


MAX_PERPLEXITY = 30.0
"""Number of neighbours, roughly, that t-SNE keeps together; scikit-learn's default."""
TSNE_START = 1e-4
"""Size of the principal components from which t-SNE starts."""


def check_libraries() -> None:
    """Raise ConfigError if scikit-learn or matplotlib is not installed."""
    for module, name in (("sklearn", "scikit-learn"), ("matplotlib", "matplotlib")):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"pictures of word vectors need {name}: pip install 'rescorer[vectors]'")


def project(unit_rows: np.ndarray, projection: Projection, seed: int) -> np.ndarray:
    """Project vectors of length 1, (N, D), to points with coordinates in -1 … 1, (N, 2) float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about equal vectors, which have no spread
        if projection is Projection.PCA:
            points = project_to_components(unit_rows)
        else:
            points = embed_neighbours(unit_rows, seed)
    points = points.astype(np.float64) - points.mean(axis=0)
    largest = np.abs(points).max()
    return np.asarray(points / largest if largest > 0 else points)


def embed_neighbours(unit_rows: np.ndarray, seed: int) -> np.ndarray:
    """t-SNE (van der Maaten and Hinton 2008) that starts from the principal components, (N, 2)."""
    from sklearn.manifold import TSNE

    start = project_to_components(unit_rows) * TSNE_START
    perplexity = min(MAX_PERPLEXITY, (len(unit_rows) - 1) / 3)
    model = TSNE(perplexity=perplexity, init=start, random_state=seed)
    return np.asarray(model.fit_transform(unit_rows.astype(np.float32)))


def project_to_components(unit_rows: np.ndarray) -> np.ndarray:
    """First two principal components, (N, 2); zeros stand for a second one where vectors have one value."""
    from sklearn.decomposition import PCA

    n_components = min(2, unit_rows.shape[1])
    points = PCA(n_components, svd_solver="full").fit_transform(unit_rows.astype(np.float64))
    return np.pad(points, ((0, 0), (0, 2 - n_components)))

"""Words as points: projections, nearest words, choices of words, and the PNG."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'rescorer[vectors]'")

from rescorer.errors import ConfigError, FormatError
from rescorer_training.vectors import plots
from rescorer_training.vectors.files import WordVectors
from rescorer_training.vectors.plots import (
    Projection,
    draw_png,
    find_nearest,
    make_picture,
    project,
    select_from_file,
    select_most_frequent,
)
from tests.support.random_vectors import random_vectors


def test_pca_is_that_of_the_singular_values():
    unit_rows = random_vectors(30, 5).normalised()
    left, sizes, _ = np.linalg.svd(unit_rows - unit_rows.mean(axis=0), full_matrices=False)
    expected = (left * sizes)[:, :2]
    found = project(unit_rows, Projection.PCA, seed=0)
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found, signs * expected / np.abs(expected).max(), atol=1e-5)


@pytest.mark.parametrize("projection", Projection)
@pytest.mark.parametrize("matrix", [np.ones((4, 1)), np.zeros((9, 3)), np.eye(5)])
def test_projects_any_vectors(projection, matrix):
    points = project(matrix.astype(np.float32), projection, seed=0)
    assert points.shape == (len(matrix), 2)
    assert np.isfinite(points).all()
    assert np.abs(points).max() <= 1


def test_tsne_keeps_clusters_together_and_repeats():
    centres = np.repeat(np.eye(3, 6), 15, axis=0) * 9
    unit_rows = WordVectors(
        tuple(map(str, range(45))), (random_vectors(45, 6).matrix + centres).astype(np.float32)
    ).normalised()
    points = project(unit_rows, Projection.TSNE, seed=3)
    np.testing.assert_array_equal(points, project(unit_rows, Projection.TSNE, seed=3))
    nearest = np.argsort(np.linalg.norm(points[:, None] - points[None], axis=-1), axis=1)[:, 1:5]
    assert (nearest // 15 == np.arange(45)[:, None] // 15).mean() > 0.9


@given(seed=st.integers(0, 100), block=st.integers(1, 400))
def test_nearest_words_are_those_of_the_whole_product(seed, block):
    unit_rows = random_vectors(20, 3, seed).normalised()
    cosines = unit_rows @ unit_rows.T
    np.fill_diagonal(cosines, -np.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "MAX_COSINES", block)
        places, found = find_nearest(unit_rows, 4)
    np.testing.assert_allclose(found, -np.sort(-cosines, axis=1)[:, :4], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(cosines, places, axis=1), found, atol=1e-6)


def test_labels_of_a_png_are_not_all_written(tmp_path):
    vectors = random_vectors(400)
    picture = make_picture(vectors, select_most_frequent(vectors, 300), [Projection.PCA], 0, "$x$ <y>")
    stream = io.BytesIO()
    assert 30 < draw_png(picture, Projection.PCA, stream) < 300
    assert stream.getvalue().startswith(b"\x89PNG")


def test_reads_words_and_groups(tmp_path):
    (tmp_path / "w").write_text("w1\teven odds\n\nw2\nw1\tagain\nzebra\tx\nw3\teven odds\nw0\n")
    selection = select_from_file(random_vectors(5), tmp_path / "w")
    assert selection.rows == (1, 2, 3, 0)
    assert selection.groups == ("even odds", "", "again")
    assert selection.group_of == (0, 1, 0, 1)
    assert selection.missing == ("zebra",)


def test_explains_too_few_words_and_too_many_groups(tmp_path):
    vectors = random_vectors(20)
    (tmp_path / "few").write_text("w1\nw2\nzebra\n")
    with pytest.raises(ConfigError, match="2 words to draw; 1 have no vector; expected at least 4"):
        select_from_file(vectors, tmp_path / "few")
    (tmp_path / "many").write_text("".join(f"w{number}\tgroup {number}\n" for number in range(9)))
    with pytest.raises(FormatError, match="many:8: 'group 7' is group 8; expected at most 7"):
        select_from_file(vectors, tmp_path / "many")
    with pytest.raises(ConfigError, match="3 words to draw"):
        select_most_frequent(random_vectors(3), 10)
    with pytest.raises(ConfigError, match="20,001 words to draw; expected at most 20,000"):
        select_most_frequent(random_vectors(20_001), 20_001)

"""The page in headless Chromium: it loads nothing, shows words, searches, zooms, and runs no word.

Photographs are kept if ``REPORT_PHOTOGRAPHS`` names a folder; look at them after changing a template.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'rescorer[vectors]'")

from rescorer_training.vectors.files import WordVectors
from rescorer_training.vectors.plots import Projection, Selection, make_picture, render_page
from tests.support.browser_input import wait_until_drawn
from tests.support.random_vectors import random_vectors

EVIL = '</script><img src="http://example.org/x.png" onerror="document.title=1">'
N_WORDS = 120


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """A page of words in four groups, which lie around four centres."""
    vectors = random_vectors(N_WORDS, 6)
    centres = 3 * np.eye(4, 6, dtype=np.float32)
    matrix = vectors.matrix + centres[np.arange(N_WORDS) % 4]
    vectors = WordVectors((EVIL, *vectors.words[1:]), matrix)
    group_of = tuple(number % 4 for number in range(N_WORDS))
    selection = Selection(tuple(range(N_WORDS)), ("north", "east", "south", "west"), group_of)
    picture = make_picture(vectors, selection, list(Projection), seed=0, title="Vectors <of> a test")
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render_page(picture), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def photographs(tmp_path) -> Path:
    folder = Path(os.environ.get("REPORT_PHOTOGRAPHS", tmp_path))
    folder.mkdir(exist_ok=True, parents=True)
    return folder


LABELS = "Number(document.getElementById('plot').dataset.labels)"


def count_labels(browser) -> int:
    wait_until_drawn(browser)
    return browser.evaluate(LABELS)


@pytest.mark.parametrize(
    ("name", "width", "dark"), [("light", 1280, False), ("dark", 1280, True), ("phone", 360, False)]
)
def test_shows_words_without_errors_and_requests(browser, page, photographs, name, width, dark):
    browser.open(page, width, dark=dark)
    assert count_labels(browser) > 25
    assert browser.requests == [page]
    assert browser.complaints == []
    assert browser.evaluate("document.querySelector('#legend canvas').getBoundingClientRect().width") == 16
    assert browser.evaluate("document.title") == "Vectors <of> a test"
    assert browser.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    browser.photograph(photographs / f"vectors-{name}.png")
    assert (photographs / f"vectors-{name}.png").stat().st_size > 20_000


def test_searches_and_zooms(browser, page, photographs):
    browser.open(page, 1280)
    count_labels(browser)
    browser.evaluate("search.value = 'W11'; search.dispatchEvent(new Event('input'))")
    assert browser.evaluate("found.textContent") == "11 words"  # w11, and w110 to w119
    browser.evaluate("search.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' }))")
    assert browser.evaluate("document.querySelector('#neighbours h2').textContent") == "w11"
    assert browser.evaluate("document.querySelectorAll('#neighbours li').length") == 8
    count_labels(browser)
    browser.photograph(photographs / "vectors-search.png")
    browser.evaluate("search.value = ''; search.dispatchEvent(new Event('input'))")
    browser.evaluate("document.getElementById('reset').click()")
    everything = count_labels(browser)
    browser.evaluate("for (let turn = 0; turn < 2; turn++) document.getElementById('in').click()")
    assert 0 < count_labels(browser) < everything
    browser.evaluate("document.querySelector('input[value=PCA]').click()")
    assert count_labels(browser) > 25
    assert browser.complaints == []

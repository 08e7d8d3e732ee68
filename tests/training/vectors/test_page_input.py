"""The page used by mouse, keyboard and fingers in headless Chromium: search, zoom, move, click a word.

Two words have colours that no other has. Tests look for these colours on the canvas, as people would, and
never ask the script where it has drawn a word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from rescorer_training.vectors.plots import COLOURS, Picture, Projection, render_page
from tests.support.browser_input import (
    Place,
    centre_of,
    click,
    drag,
    move_fingers,
    press,
    turn_wheel,
    type_text,
    wait_until_drawn,
)
from tools.photographs import Page

SIDE = 7
"""Words per row and per column of the first projection."""
ANT, BEE = 2 * SIDE + 2, 4 * SIDE + 5
"""Places of the two words that can be seen."""
COLOUR_OF = {"ant": COLOURS[1], "bee": COLOURS[2]}

FIND_COLOUR = """(() => {
  const plot = document.getElementById('plot'), copy = new OffscreenCanvas(plot.width, plot.height);
  const context = copy.getContext('2d', { willReadFrequently: true });
  context.drawImage(plot, 0, 0);
  const { data } = context.getImageData(0, 0, plot.width, plot.height), box = plot.getBoundingClientRect();
  const left = box.x + plot.clientLeft, top = box.y + plot.clientTop;
  let n = 0, x = 0, y = 0;
  for (let at = 0; at < data.length; at += 4) {
    const far = [%s].some((value, part) => Math.abs(data[at + part] - value) > 6);
    if (data[at + 3] < 60 || far) continue;
    n += 1; x += (at / 4) %% plot.width; y += Math.floor(at / 4 / plot.width);
  }
  return n > 5 ? [left + x / n, top + y / n] : null;
})()"""
CHOSEN = "document.querySelector('#neighbours h2')?.textContent ?? null"
PROJECTION = "document.querySelector('input[name=projection]:checked').value"
FOCUS = "document.activeElement.id || document.activeElement.tagName"


def make_page() -> str:
    """Words on a square, where the ant is below the middle on the left; in the other projection, above it."""
    words = [f"w{place}" for place in range(SIDE * SIDE)]
    words[ANT], words[BEE] = "ant", "bee"
    group_of = [0] * len(words)
    group_of[ANT], group_of[BEE] = 1, 2
    axis = np.linspace(-1, 1, SIDE)
    points = np.stack([np.tile(axis, SIDE), np.repeat(axis, SIDE)], axis=1)
    neighbours = (np.arange(len(words))[:, None] + np.arange(1, 4)) % len(words)
    neighbours[ANT, 0] = BEE
    picture = Picture(
        "Animals",
        tuple(words),
        ("others", "insects with six legs", "insects with wings"),
        tuple(group_of),
        {Projection.TSNE: points, Projection.PCA: points[:, ::-1] * [1, -1]},
        neighbours,
        np.full(neighbours.shape, 0.5),
    )
    return render_page(picture)


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(make_page(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser, address) -> Iterator[Page]:
    browser.open(address, 1280)
    wait_until_drawn(browser)
    yield browser
    assert browser.complaints == []
    assert browser.requests == [address]


def see(page: Page, word: str = "ant") -> Place | None:
    """Where a word can be seen; None if it cannot."""
    colour = COLOUR_OF[word]
    found = page.evaluate(FIND_COLOUR % ", ".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5)))
    return found and (found[0], found[1])


def middle(page: Page) -> Place:
    return centre_of(page, "#plot")


def near(place: Place) -> object:
    return pytest.approx(place, abs=1.5)


def distance(page: Page) -> float:
    """Distance of the two words on the screen."""
    return math.dist(see(page, "ant"), see(page, "bee"))


def moved(place: Place, right: float, down: float) -> Place:
    return place[0] + right, place[1] + down


def test_a_dragged_picture_follows_the_pointer(page):
    ant, bee = see(page, "ant"), see(page, "bee")
    drag(page, middle(page), moved(middle(page), 120, -70))
    assert see(page, "ant") == near(moved(ant, 120, -70))
    assert see(page, "bee") == near(moved(bee, 120, -70))


def test_a_drag_goes_on_outside_the_canvas(page):
    ant, outside = see(page), (middle(page)[0] + 40, 2)
    drag(page, middle(page), outside)
    assert see(page) is None
    click(page, centre_of(page, "#in"))
    click(page, centre_of(page, "#out"))
    drag(page, middle(page), moved(middle(page), middle(page)[0] - outside[0], middle(page)[1] - outside[1]))
    assert see(page) == near(ant)


def test_selected_text_does_not_stop_drags(page):
    ant = see(page)
    drag(page, (200, 2), middle(page))  # from the heading: selects text, moves nothing
    assert see(page) == near(ant)
    drag(page, middle(page), moved(middle(page), -40, 30))
    assert see(page) == near(moved(ant, -40, 30))


@pytest.mark.parametrize("pixels", [-80, 150])
def test_the_wheel_zooms_and_keeps_what_is_under_the_pointer(page, pixels):
    before, pointer = distance(page), see(page)
    turn_wheel(page, pointer, pixels)
    assert see(page) == near(pointer)
    assert distance(page) == pytest.approx(before * math.exp(-pixels / 400), rel=0.01)


def test_zoom_has_limits_and_show_all_returns(page):
    start, pointer = see(page), middle(page)
    for _ in range(12):
        turn_wheel(page, pointer, 2000)
    assert distance(page) > 50
    for _ in range(24):
        turn_wheel(page, pointer, -2000)
    assert see(page, "ant") is see(page, "bee") is None
    click(page, centre_of(page, "#reset"))
    assert see(page) == near(start)


def test_buttons_zoom_about_the_middle(page):
    before, offset = distance(page), moved(see(page), -middle(page)[0], -middle(page)[1])
    click(page, centre_of(page, "#in"))
    assert distance(page) == pytest.approx(1.5 * before, rel=0.01)
    assert see(page) == near(moved(middle(page), 1.5 * offset[0], 1.5 * offset[1]))
    click(page, centre_of(page, "#out"))
    assert distance(page) == pytest.approx(before, rel=0.01)


def test_a_click_on_a_word_shows_its_neighbours(page):
    click(page, moved(see(page), 4, 3))
    assert page.evaluate(CHOSEN) == "ant"
    shown = page.evaluate("[...document.querySelectorAll('#neighbours li')].map((item) => item.textContent)")
    assert shown == ["bee 0.50", f"w{ANT + 2} 0.50", f"w{ANT + 3} 0.50"]
    click(page, moved(see(page), 45, 25))  # between the words
    assert page.evaluate(CHOSEN) is None


def test_a_drag_that_begins_on_a_word_does_not_choose_it(page):
    drag(page, see(page), moved(see(page), 30, 0))
    assert page.evaluate(CHOSEN) is None


def test_a_click_on_a_neighbour_goes_there(page):
    click(page, see(page))
    click(page, centre_of(page, "#neighbours li button"))
    assert page.evaluate(CHOSEN) == "bee"
    assert see(page, "bee") == near(middle(page))


def test_a_word_is_found_by_typing_and_enter(page):
    click(page, centre_of(page, "#search"))
    type_text(page, "AN")
    assert page.evaluate("found.textContent") == "1 word"
    press(page, "Enter")
    assert page.evaluate(CHOSEN) == "ant"
    assert see(page) == near(middle(page))
    press(page, "Escape")
    assert page.evaluate("[search.value, found.textContent]") == ["", ""]
    assert page.evaluate(CHOSEN) is None
    type_text(page, "zebra")
    press(page, "Enter")
    assert page.evaluate("found.textContent") == "0 words"
    assert page.evaluate(CHOSEN) is None
    assert see(page) == near(middle(page))


def test_every_control_is_reached_by_the_keyboard(page):
    reached = []
    for _ in range(6):
        press(page, "Tab")
        reached.append(page.evaluate(FOCUS))
    assert reached == ["search", "INPUT", "in", "out", "reset", "plot"]


def test_arrows_move_and_signs_zoom_about_the_middle(page):
    page.evaluate("document.getElementById('plot').focus()")
    start, before = see(page), distance(page)
    press(page, "ArrowRight")
    assert see(page) == near(moved(start, see(page)[0] - start[0], 0))
    assert see(page)[0] < start[0] - 20
    press(page, "ArrowLeft", "ArrowUp")
    assert see(page) == near(moved(start, 0, see(page)[1] - start[1]))
    assert see(page)[1] > start[1] + 20
    press(page, "ArrowDown")
    assert see(page) == near(start)
    press(page, "+")
    assert distance(page) == pytest.approx(1.5 * before, rel=0.01)
    press(page, "-", "-")
    assert distance(page) == pytest.approx(before / 1.5, rel=0.02)


def test_the_projection_that_is_checked_is_shown_first(page):
    assert page.evaluate(PROJECTION) == "t-SNE"
    (x, y), (right, down) = middle(page), see(page)
    assert right < x - 20
    assert down > y + 20


def test_keys_change_the_projection_and_open_a_neighbour(page):
    press(page, "Tab", "Tab", "ArrowRight")
    assert page.evaluate(PROJECTION) == "PCA"
    (x, y), (right, down) = middle(page), see(page)
    assert right < x - 20
    assert down < y - 20
    click(page, see(page))
    assert page.evaluate(CHOSEN) == "ant"
    press(page, "Tab", "Enter")
    assert page.evaluate(CHOSEN) == "bee"


def test_fingers_move_zoom_and_choose_on_a_phone(page, address):
    page.send("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    try:
        page.open(address, 360)
        wait_until_drawn(page)
        start, before = see(page), distance(page)
        move_fingers(page, [middle(page)], [moved(middle(page), 30, 40)])
        assert see(page) == near(moved(start, 30, 40))
        move_fingers(page, [see(page)], [see(page)])
        assert page.evaluate(CHOSEN) == "ant"
        x, y = middle(page)
        move_fingers(page, [(x - 40, y), (x + 40, y)], [(x - 20, y), (x + 20, y)])
        assert distance(page) == pytest.approx(before / 2, rel=0.05)
        assert page.evaluate(CHOSEN) == "ant"
        assert page.evaluate("window.scrollY") == 0
    finally:
        page.send("Emulation.setTouchEmulationEnabled", enabled=False)

"""Use a page in headless Chromium as people do: with a mouse, a keyboard and fingers.

Positions are pairs of pixels from the upper left corner of the window.
"""

from __future__ import annotations

from collections.abc import Sequence

from tools.photographs import Page

Place = tuple[float, float]
KEY_CODES = {
    "Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
    "ArrowDown": 40, "+": 187, "-": 189,
}  # fmt: skip
TEXT_OF_KEY = {"Enter": "\r", " ": " ", "+": "+", "-": "-"}
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"


def wait_until_drawn(page: Page) -> None:
    """Wait until the page has drawn what it was asked for."""
    page.send("Runtime.evaluate", expression=DRAWN, awaitPromise=True)


def click(page: Page, place: Place) -> None:
    """Press and release the left button."""
    drag(page, place, place)


def drag(page: Page, start: Place, end: Place, steps: int = 4) -> None:
    """Press the left button at one place, move, and release it at the other."""
    _send_mouse(page, "mouseMoved", start, "none")
    _send_mouse(page, "mousePressed", start, "left")
    for step in range(1, steps + 1 if start != end else 1):
        _send_mouse(page, "mouseMoved", _between(start, end, step / steps), "left")
    _send_mouse(page, "mouseReleased", end, "left")
    wait_until_drawn(page)


def turn_wheel(page: Page, place: Place, pixels: float) -> None:
    """Turn the wheel at a place; towards the user if ``pixels`` is positive."""
    x, y = place
    page.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=pixels)
    wait_until_drawn(page)


def press(page: Page, *keys: str) -> None:
    """Press and release keys one after the other."""
    for key in keys:
        code = KEY_CODES[key]
        text = {"text": TEXT_OF_KEY[key]} if key in TEXT_OF_KEY else {}
        page.send("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        page.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
    wait_until_drawn(page)


def type_text(page: Page, text: str) -> None:
    """Type letters and digits into what has the focus."""
    for character in text:
        page.send("Input.dispatchKeyEvent", type="char", text=character)
    wait_until_drawn(page)


def move_fingers(page: Page, starts: Sequence[Place], ends: Sequence[Place], steps: int = 4) -> None:
    """Put fingers on a screen that feels touches, move all of them at once, and lift them."""
    for step in range(steps + 1):
        points = [_between(start, end, step / steps) for start, end in zip(starts, ends, strict=True)]
        touches = [{"x": x, "y": y, "id": finger} for finger, (x, y) in enumerate(points)]
        page.send("Input.dispatchTouchEvent", type="touchMove" if step else "touchStart", touchPoints=touches)
    page.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    wait_until_drawn(page)


def centre_of(page: Page, selector: str) -> Place:
    """Where the middle of the first element is that a CSS selector finds."""
    box = f"document.querySelector({selector!r}).getBoundingClientRect()"
    x, y = page.evaluate(
        f"(() => {{ const box = {box}; return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
    )
    return x, y


def _between(start: Place, end: Place, share: float) -> Place:
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _send_mouse(page: Page, kind: str, place: Place, button: str) -> None:
    x, y = place
    held = 1 if button == "left" and kind != "mouseReleased" else 0
    page.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=held, clickCount=1)

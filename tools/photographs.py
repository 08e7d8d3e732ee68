"""Photograph HTML reports in headless Chromium (Debian's package ``chromium``), to look at them.

    python -m tools.photographs report.html -o folder    pictures of several screens, and the page on paper

``--picture`` instead saves the upper part of the page alone, reduced to few colours: docs/images/report.png.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image

PROGRAM = shutil.which("chromium")
"""Path of Chromium, from Debian's package ``chromium``; None if it is not installed."""
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
    "--disable-background-networking", "--no-first-run", "--disable-dev-shm-usage", "--lang=en-GB",
)  # fmt: skip


class Page:
    """One open page, which records every request, console message and exception."""

    def __init__(self, commands: int, events: BinaryIO) -> None:
        self._commands, self._events = commands, events
        self._pending = b""
        self._next_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._next_id += 1
        message: dict[str, Any] = {"id": self._next_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._next_id:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            data = os.read(self._events.fileno(), 1 << 16)
            if not data:
                raise RuntimeError("chromium has exited")
            self._pending += data
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Load a page for a screen of this size."""
        mobile = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.send("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def photograph(self, path: Path, *, whole: bool = True) -> None:
        """Save a picture of the whole page, or of the part on the screen."""
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def print_pdf(self, path: Path) -> None:
        """Save the page as it would be printed on A4."""
        pdf = self.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(pdf["data"]))

    @property
    def requests(self) -> list[str]:
        """URLs of all requests."""
        sent = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """Console messages, log entries (such as blocked content) and uncaught exceptions."""
        methods = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in methods]


@contextmanager
def open_chromium(profile: Path) -> Iterator[Page]:
    """Start Chromium with an empty profile; stop it at the end."""
    if PROGRAM is None:
        raise FileNotFoundError("chromium is not installed (Debian's package chromium)")
    commands_out, commands_in = os.pipe()
    events_out, events_in = os.pipe()
    command = [PROGRAM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    script = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", str(commands_out), str(events_in), *command],
        pass_fds=(commands_out, events_in),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_out)
    os.close(events_in)
    try:
        with os.fdopen(events_out, "rb") as events:
            yield Page(commands_in, events)
    finally:
        os.close(commands_in)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


SCREENS = (("light", 1280, False), ("dark", 1280, True), ("phone", 360, False))
PICTURE_WIDTH, PICTURE_HEIGHT = 1180, 1330
COLOURS = 128


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder; with --picture a PNG file")
    parser.add_argument("--picture", action="store_true")
    options = parser.parse_args()
    url = options.page.absolute().as_uri()
    # Processes of the browser may still write into its profile while it is removed.
    profiles = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with profiles as profile, open_chromium(Path(profile)) as page:
        if options.picture:
            photograph_top(page, url, options.output)
        else:
            photograph(page, url, options.output)


def photograph(page: Page, url: str, folder: Path) -> None:
    """Save the whole page on each screen, with the first utterances open, and the page as it is printed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, width, dark in SCREENS:
        page.open(url, width, dark=dark)
        page.evaluate(
            "for (const item of [...document.querySelectorAll('details')].slice(0, 2)) item.open = true"
        )
        page.evaluate("for (const item of [...document.querySelectorAll('details')].slice(20)) item.remove()")
        page.photograph(folder / f"{name}.png")
    page.open(url, SCREENS[0][1])
    page.print_pdf(folder / "print.pdf")


def photograph_top(page: Page, url: str, path: Path) -> None:
    """Save the upper part of the page with few colours, as a picture for documentation."""
    page.open(url, PICTURE_WIDTH, PICTURE_HEIGHT)
    page.photograph(path, whole=False)
    with Image.open(path) as picture:
        reduced = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


if __name__ == "__main__":
    main()

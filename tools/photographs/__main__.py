"""``python -m tools.photographs report.html -o folder``: photograph a page on several screens and on paper.

``--picture`` instead saves the upper part of the page alone, reduced to few colours: docs/images/report.png.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from PIL import Image

from tools.photographs.chromium import Page, open_chromium

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
    """Save the whole page on each screen, with its first utterances open, and as it is printed."""
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

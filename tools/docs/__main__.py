"""Write the generated reference pages, or check that they are up to date.

    python -m tools.docs            writes docs/reference/{settings,rescorer,rescorer-train,protocol}.md,
                                    and the table of rerankers.md
    python -m tools.docs --check    fails when a page differs from what the code says

Needs grpcio-tools, for the comments in the .proto files.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.docs.commands_page import rescorer_page, training_page
from tools.docs.features_page import features_page
from tools.docs.protocol_page import protocol_page
from tools.docs.settings_page import settings_page

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES = {
    "settings.md": settings_page,
    "rescorer.md": rescorer_page,
    "rescorer-train.md": training_page,
    "protocol.md": protocol_page,
    "rerankers.md": features_page,
}


def outdated_pages() -> list[str]:
    """Return the names of the pages that are missing or differ from what the code says."""
    return [name for name, page in PAGES.items() if _read(REFERENCE / name) != page()]


def write_pages() -> None:
    """Write every generated page."""
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        if names := outdated_pages():
            raise SystemExit(f"{REFERENCE}: {', '.join(names)} out of date; run: make docs")
    elif arguments:
        raise SystemExit(__doc__)
    else:
        write_pages()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Hooks for mkdocs: files from the repository's root as pages of the site, and a search that needs no server.

CONTRIBUTING.md and CHANGELOG.md stay where people and tools look for them. The site has them as pages, and
links between them and ``docs/`` are rewritten for it.

Browsers let pages that are opened from the disk neither read the search index nor start the worker that
searches. So the site has the index as a script, too, and ``docs/javascripts/iframe-worker.js``, which runs
the worker in a frame. Material's plugin ``offline`` does the same, but fetches that script from the network.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages of the site, and the files at the root of the repository that they come from."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add these files to the pages of the site."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=with_links_to_pages(text)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite links to these files as links to their pages, and escapes in tables."""
    lines = markdown.split("\n")
    rows = (CODE_OR_ESCAPE.sub(_unescape, line) if line.startswith("|") else line for line in lines)
    return with_links_to_pages("\n".join(rows))


CODE_OR_ESCAPE = re.compile(r"`[^`]*`|\\<")


def _unescape(found: re.Match[str]) -> str:
    r"""Undo what GitHub needs in a table, and Python-Markdown would show: ``\|`` in code, and ``\<``."""
    return "&lt;" if found[0] == "\\<" else found[0].replace("\\|", "|")


def with_links_to_pages(markdown: str) -> str:
    for page, source in PAGES.items():
        markdown = re.sub(rf"\]\((?:\.\./)?((?:\.\./)*){re.escape(source)}", rf"](\1{page}", markdown)
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Write the search index as a script, which pages on the disk can load."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")

"""Hooks for mkdocs that add files from the repository's root to the site as pages.

CONTRIBUTING.md and CHANGELOG.md stay where people and tools look for them. The site has them as pages, and
links between them and ``docs/`` are rewritten for it.
"""

from __future__ import annotations

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
    """Rewrite links to these files as links to their pages."""
    return with_links_to_pages(markdown)


def with_links_to_pages(markdown: str) -> str:
    for page, source in PAGES.items():
        markdown = markdown.replace(f"]({source}", f"]({page}").replace(f"](../{source}", f"]({page}")
    return markdown

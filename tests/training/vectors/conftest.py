"""A browser for the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.photographs import PROGRAM, Page, open_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Page]:
    """One headless Chromium for all tests, of which each opens its own page."""
    if PROGRAM is None:
        pytest.skip("chromium is not installed (Debian's package chromium)")
    with open_chromium(tmp_path_factory.mktemp("profile")) as tab:
        yield tab

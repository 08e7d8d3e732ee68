"""The page in headless Chromium: no errors, no requests, nothing wider than a phone.

Photographs are kept if ``REPORT_PHOTOGRAPHS`` names a folder; look at them after changing a template.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rescorer.evaluation.report.pages import render_html
from tests.support.report_data import make_report_data
from tools.photographs import PROGRAM, open_chromium

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="chromium is not installed (Debian's package chromium)"
)
EVIL = (
    '<img src="http://example.org/x.png" onerror="document.title=1"><script>document.title = "run"</script>'
)
WIDER = "document.documentElement.scrollWidth - window.innerWidth"
SHOWN = "[...document.querySelectorAll('.utterance')].filter((item) => !item.hidden).length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(make_report_data(text=EVIL)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def photographs(tmp_path) -> Path:
    folder = Path(os.environ.get("REPORT_PHOTOGRAPHS", tmp_path))
    folder.mkdir(exist_ok=True, parents=True)
    return folder


@pytest.mark.parametrize(
    ("name", "width", "dark"), [("light", 1280, False), ("dark", 1280, True), ("phone", 360, False)]
)
def test_opens_without_errors_requests_and_overflow(browser, report, photographs, name, width, dark):
    browser.open(report, width, dark=dark)
    browser.evaluate(
        "for (const item of document.querySelectorAll('.utterance')) item.open = item.dataset.id < 'demo-002'"
    )
    assert browser.requests == [report]
    assert browser.complaints == []
    assert browser.evaluate("document.title") == "Rescoring of lists.jsonl.gz"
    assert browser.evaluate(WIDER) <= 0
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(background.removeprefix("rgb(").split(",")[0])
    assert (red < 64) is dark
    browser.photograph(photographs / f"{name}.png")
    assert (photographs / f"{name}.png").stat().st_size > 50_000


def test_charts_are_not_squeezed_on_a_phone(browser, report):
    browser.open(report, 360)
    widths = browser.evaluate(
        "[...document.querySelectorAll('svg.plot')].map((plot) => plot.getBoundingClientRect().width)"
    )
    assert len(widths) == 6
    assert min(widths) > 300


def test_prints_on_few_pages(browser, report, photographs):
    browser.open(report, 1280, dark=True)
    browser.print_pdf(photographs / "print.pdf")
    pdf = (photographs / "print.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") <= 8


def test_searches_filters_and_sorts(browser, report):
    browser.open(report, 1280)
    assert browser.evaluate(SHOWN) == 30

    def choose(element: str, value: str, event: str) -> None:
        browser.evaluate(
            f"{element}.value = {value!r};"
            f"document.getElementById({element!r}).dispatchEvent(new Event({event!r}))"
        )

    choose("search", "SPEAKER-3", "input")
    assert browser.evaluate(SHOWN) == 4
    choose("search", "walked  slowly", "input")
    assert browser.evaluate(SHOWN) > 20
    choose("search", "", "input")
    choose("filter", "worse", "change")
    gains = browser.evaluate(
        "[...document.querySelectorAll('.utterance:not([hidden])')].map((item) => Number(item.dataset.gain))"
    )
    assert gains
    assert max(gains) < 0
    choose("filter", "", "change")
    choose("sort", "id", "change")
    ids = browser.evaluate("[...document.querySelectorAll('.utterance')].map((item) => item.dataset.id)")
    assert ids == sorted(ids)
    assert browser.evaluate("expand.click(), document.querySelectorAll('.utterance[open]').length") == 30
    assert browser.complaints == []


def test_reads_without_javascript(browser, report):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report, 360)
        nodes = browser.send("DOM.getDocument", depth=0)["root"]["nodeId"]
        found = browser.send("DOM.querySelectorAll", nodeId=nodes, selector="details.utterance summary")
        assert len(found["nodeIds"]) == 30
        controls = browser.send("DOM.querySelectorAll", nodeId=nodes, selector=".js .controls")
        assert controls["nodeIds"] == []
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)

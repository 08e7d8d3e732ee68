"""The page in headless Chromium: no errors, no requests, nothing wider than a phone.

Photographs are kept if ``REPORT_PHOTOGRAPHS`` names a folder; look at them after changing a template.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from rescorer.evaluation.report.data import AlignedWord, Reading, Utterances
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
SHOWN = "document.querySelectorAll('.utterance').length"
IDS = "[...document.querySelectorAll('.utterance')].map((item) => item.querySelector('.id').textContent)"
MATCHES = "matches.textContent"


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
        "for (const item of document.querySelectorAll('.utterance')) item.open = item.id < 'u:demo-002'"
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
        set_value(browser, element, value, event)

    choose("search", "SPEAKER-3", "input")
    assert browser.evaluate(SHOWN) == 4
    choose("search", "walked  slowly", "input")
    assert browser.evaluate(SHOWN) > 20
    choose("search", "", "input")
    choose("filter", "worse", "change")
    gains = browser.evaluate(
        "[...document.querySelectorAll('.utterance summary .n + .n')].map((cell) => cell.textContent)"
    )
    assert gains
    assert all(gain.startswith("−") for gain in gains)
    choose("filter", "", "change")
    choose("sort", "id", "change")
    ids = browser.evaluate(IDS)
    assert ids == sorted(ids)
    assert browser.evaluate("expand.click(), document.querySelectorAll('.utterance[open]').length") == 30
    assert browser.complaints == []


def set_value(browser, element: str, value: str, event: str) -> None:
    browser.evaluate(
        f"{element}.value = {value!r};"
        f"document.getElementById({element!r}).dispatchEvent(new Event({event!r}))"
    )


@pytest.fixture(scope="module")
def long_report(tmp_path_factory) -> str:
    data = make_report_data(450)
    rows = list(data.utterances.rows)
    rows[301] = replace(rows[301], id="50%/a b<c>", group="\0\u202e")
    path = tmp_path_factory.mktemp("report") / "long.html"
    path.write_text(render_html(replace(data, utterances=Utterances(tuple(rows), 450))), encoding="utf-8")
    return path.as_uri()


def test_shows_many_utterances_page_by_page_and_searches_all(browser, long_report):
    browser.open(long_report, 1280)
    assert browser.evaluate(SHOWN) == 200
    assert browser.evaluate("range.textContent") == "1 to 200 of 450"
    assert browser.evaluate("next.click(), next.click(), range.textContent") == "401 to 450 of 450"
    assert browser.evaluate("[next.disabled, previous.disabled]") == [True, False]
    assert browser.evaluate(IDS)[0] == "demo-400"
    set_value(browser, "search", "demo-449", "input")
    assert browser.evaluate(IDS) == ["demo-449"]
    assert browser.evaluate(MATCHES) == "1 of 450"
    assert browser.evaluate("pages.hidden")
    set_value(browser, "search", r"\u202E", "input")
    assert browser.evaluate(IDS) == ["50%/a b<c>"]
    assert browser.complaints == []


@pytest.mark.parametrize("number", [3, 301, 333])
def test_the_address_of_an_utterance_opens_it(browser, long_report, number):
    id_ = {301: "50%/a b<c>"}.get(number, f"demo-{number:03}")
    browser.open("about:blank", 1280)
    browser.open(f"{long_report}#u:{quote(id_)}", 1280)
    opened = "document.querySelector('.utterance[open] .id').textContent"
    assert browser.evaluate(opened) == id_
    assert (
        0 <= browser.evaluate("document.querySelector('.utterance[open]').getBoundingClientRect().top") < 900
    )
    # the link in the row is this address, also while a search hides the row
    set_value(browser, "search", "nothing", "input")
    assert browser.evaluate(SHOWN) == 0
    browser.evaluate(f"location.hash = {'#u:' + quote(id_)!r}; dispatchEvent(new Event('hashchange'))")
    assert browser.evaluate(opened) == id_
    link = browser.evaluate("document.querySelector('.utterance[open] .here').href")
    assert unquote(link.partition("#")[2].replace("50%/", "50%25/")) == f"u:{id_}"


@pytest.mark.parametrize("n_files", [1, 2])
def test_the_script_builds_the_elements_of_the_template(browser, tmp_path, n_files):
    data = make_report_data(12, "a <b> & \0 c")
    first, *rows = data.utterances.rows
    odd = (
        AlignedWord("insertion", "", "um"), AlignedWord("insertion", "", "uh"),
        AlignedWord("deletion", "a", ""), AlignedWord("correct", "(b)", ""),
        AlignedWord("correct", "c", "C"), AlignedWord("substitution", "d", "\x1b"),
    )  # fmt: skip
    readings = (Reading(("first pass",), odd, 4), Reading(("mixture",), (), 0, "d for e"))
    table = replace(first.tables[0], hypotheses=1234)
    made = replace(table.rows[0], generated="d for e", total=-12345.678)
    table = replace(table, rows=(made, *table.rows[1:]))
    first = replace(
        first, group="", readings=readings, tables=(table,), baseline_errors=2000, system_errors=4
    )
    data = replace(data, utterances=Utterances((first, *rows), 12), files=data.files * n_files)
    page = render_html(data)
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    browser.open(path.as_uri(), 1280)
    built = browser.evaluate(
        "for (const row of list.children) { row.open = true; row.dispatchEvent(new Event('toggle')); }"
        "list.innerHTML.replaceAll(' open=\"\"', '')"
    )
    written = browser.evaluate(
        f"new DOMParser().parseFromString({json.dumps(page)}, 'text/html').getElementById('list').innerHTML"
    )
    assert built == re.sub(r"(?<=>)\n|\n(?=<)", "", written)
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

"""The page: complete, harmless, bounded, and independent of the network."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from rescorer.escapes import escape_controls
from rescorer.evaluation.report import pages
from rescorer.evaluation.report.data import AlignedWord, Reading
from rescorer.evaluation.report.pages import read_asset, render_html, render_markdown, source_hash
from tests.support.report_data import make_report_data

EVIL = '</td></details><script>alert("x")</script><img src=x onerror=alert(1)> & "quotes" \'too\' {{ 7 * 7 }}'
DATA = {"type": "application/json", "id": "data"}
VOID = {"meta", "input", "br", "img", "link", "hr"}


class Outline(HTMLParser):
    """Collects elements, and checks that they are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


@pytest.fixture(scope="module")
def page() -> str:
    return render_html(make_report_data())


def test_page_has_every_section(page):
    outline = Outline(page)
    ids = {attributes["id"] for _, attributes in outline.elements if "id" in attributes}
    assert {"systems", "weights", "depth", "confidence", "words", "models", "groups", "utterances"} <= ids
    links = [attributes["href"] for tag, attributes in outline.elements if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= ids
    assert outline.count("h1") == 1
    assert outline.count("details") == 30


def test_page_loads_nothing(page):
    outline = Outline(page)
    assert not {tag for tag, _ in outline.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    }
    for tag, attributes in outline.elements:
        assert "src" not in attributes
        assert "style" not in attributes, tag  # the policy would block it
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"url\(|@import|https?://", page)


def test_policy_admits_only_the_pages_own_style_and_script(page):
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert source_hash(style) in policy
    assert source_hash(script) in policy


def test_charts_are_well_formed_and_described(page):
    charts = re.findall(r'<svg[^>]*role="img".*?</svg>', page, re.S)
    assert len(charts) > 20
    for chart in charts:
        root = ElementTree.fromstring(chart)
        assert len(root.attrib["aria-label"]) > 5
        numbers = re.findall(r"nan|inf", chart.replace("information", ""))
        assert not numbers


def test_text_of_lists_is_inert():
    data = make_report_data(3, EVIL)
    utterance = replace(data.utterances.rows[0], id=EVIL, group=EVIL)
    data = replace(
        data, title=EVIL, notes=(EVIL,), command=EVIL, utterances=replace(data.utterances, rows=(utterance,))
    )
    page = render_html(data)
    outline = Outline(page)
    assert [attributes for tag, attributes in outline.elements if tag == "script"] == [DATA, {}]
    assert outline.count("img") == 0
    assert any(EVIL in text for text in outline.text)
    for _, attributes in outline.elements:
        assert not [name for name in attributes if name.startswith("on")]
    table = render_markdown(data)
    assert "<script>" not in table.split("```")[0]


@pytest.mark.parametrize("missing", ["files", "changes", "models", "groups", "utterances", "notes"])
def test_missing_sections_are_absent(missing):
    data = make_report_data(2)
    data = replace(data, **{missing: () if missing in ("files", "models", "notes") else None})
    outline = Outline(render_html(data))
    ids = {attributes.get("id") for _, attributes in outline.elements}
    sections = {"files": {"weights", "depth", "confidence"}, "changes": {"words"}, "notes": set()}
    assert not sections.get(missing, {missing}) & ids
    assert render_markdown(data)


def test_report_without_statistics_has_no_empty_columns():
    data = make_report_data(1)
    rows = tuple(
        replace(row, wer_interval=None, gain_interval=None, p_value=None, p_corrected=None, mark="")
        for row in data.systems
    )
    page = render_html(replace(data, systems=rows, statistics=""))
    assert "95 % interval" not in page
    assert "</b>" in page


def test_utterances_without_groups_have_no_column_for_them():
    data = make_report_data(3)
    rows = tuple(replace(row, group="") for row in data.utterances.rows)
    page = render_html(replace(data, utterances=replace(data.utterances, rows=rows)))
    for cell in ("<span>group</span>", 'class="group"', 'class="list-head grouped"'):
        assert cell not in page
        assert cell in render_html(data)


def read_packed(page: str) -> dict:
    (packed,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(packed)


def test_size_grows_little_with_the_utterances_shown():
    """About 1.2 kB per utterance of 18 words and 5 hypotheses, so that 10,000 open at once."""
    small, large = (len(render_html(make_report_data(n))) for n in (50, 100))
    assert (large - small) / 50 < 1_500


def test_the_first_utterances_are_elements_and_all_are_data():
    data = make_report_data(50)
    page = render_html(data)
    assert Outline(page).count("details") == pages.N_STATIC == 40
    assert "first 40 of 50 utterances" in page
    rows = read_packed(page)["rows"]
    assert [row[0] for row in rows] == [item.id for item in data.utterances.rows]
    assert "<noscript>" not in render_html(make_report_data(40))


@pytest.mark.parametrize(
    "text", [EVIL, "</script><!--<script>", "\0 \x1b[2J \u202e \u2028 \ud800 \x85", '\\u0041 "\n']
)
def test_text_in_the_data_is_inert_and_as_on_the_page(text):
    data = make_report_data(1, text)
    word = AlignedWord("substitution", text, text)
    utterance = replace(
        data.utterances.rows[0], id=text, group=text, readings=(Reading((text,), (word,), 1, text),)
    )
    page = render_html(replace(data, utterances=replace(data.utterances, rows=(utterance,))))
    assert Outline(page).count("script") == 2
    assert escape_controls(page, "\n") == page
    packed = read_packed(page)
    (row,) = packed["rows"]
    shown = escape_controls(text, "\n")
    assert row[:2] == [shown, shown]
    assert row[6] == [[shown, f"s{shown}"]]
    assert packed["names"][0] == f"{shown} (generated: {shown})"
    assert {line[2] for line in row[7][0][3]} == {shown}


def test_the_script_uses_no_network_and_no_html():
    script = read_asset("script.js")
    for name in ("fetch", "XMLHttpRequest", "WebSocket", "innerHTML", "eval", "import", "document.write"):
        assert name not in script


def test_markdown_marks_the_system_and_names_the_data():
    text = render_markdown(make_report_data())
    assert "| **mixture** | 19.61 (17.01 to 22.31) | 253 |" in text
    assert "rescorer report lists.jsonl.gz" in text
    widths = {
        line.count("|") for line in text.splitlines() if line.startswith("| ") and "speaker" not in line
    }
    assert widths <= {6, 7}

"""Every block of the documentation runs and prints what its page says, and the site builds."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest

from rescorer.cli import EXIT_CODES
from rescorer.formats.jsonlines import read_lists
from rescorer.protocol.messages import BUG, KINDS
from rescorer_training.recipe.config import read_recipe
from rescorer_training.recipe.report import MeasuredModel, Report, render_cells, table_cells
from tools.photographs import PROGRAM, open_chromium

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        ROOT / "deploy" / "README.md",
        ROOT / "demo" / "README.md",
    )
)
FENCE = re.compile(
    r"(?:<!-- (?:not run|not printed): (?P<reason>.+?) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```",
    re.M | re.S,
)
RUN = ("sh", "python")
PARSED = {"json": json.loads, "toml": tomllib.loads}
READ_ONLY = "text"
"""Language of samples: a block that runs prints the next such block, unless that is marked as not printed.

A sample has whole lines of the output. In it, a line with only … stands for any lines, another … for any
text in a line, white space for other white space, and a decimal for one that differs by 1 in its last digit.
"""
PORT = "50051"
"""Port of the servers on the pages; the tests replace it by a free one."""
METRICS_PORT = "9464"
PREAMBLE = """
set -eu
trap 'code=$?; kill $(jobs -p) 2>/dev/null || true; wait; exit $code' EXIT
# What make sets up belongs to the repository. The README's demo runs, once; the tests are running already.
make() {
  case "$PAGE $1" in
    "README.md demo") command make -C "$ROOT" demo ;;
    *) echo "not run: make $1" ;;
  esac
}
"""


class Block(NamedTuple):
    language: str
    code: str
    line: int
    is_marked: bool
    """Whether a comment says that it is not run, or not printed."""

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.is_marked


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            match["language"], match["code"], text[: match.start("code")].count("\n"), bool(match["reason"])
        )
        for match in FENCE.finditer(text)
    ]


def script_of(page: str) -> str:
    """All blocks of a page that run, as one bash script, which prints a heading before each block."""
    parts = [PREAMBLE]
    for block in blocks_of(page):
        if block.is_run:
            parts.append(f"echo '{heading(page, block)}'\n")
            heredoc = f"python - <<'PYTHON_BLOCK'\n{block.code}PYTHON_BLOCK\n"
            parts.append(heredoc if block.language == "python" else block.code)
    return "".join(parts)


def heading(page: str, block: Block) -> str:
    return f"##### {page}:{block.line}"


def samples_of(page: str) -> Iterator[tuple[Block, Block]]:
    """The blocks of a page that run and have a sample of what they print, each with its sample."""
    before = None
    for block in blocks_of(page):
        if block.language in RUN:
            before = block
        elif block.language == READ_ONLY and not block.is_marked and before is not None and before.is_run:
            yield before, block


def sample_pattern(sample: str) -> str:
    """A regular expression for the outputs that a sample stands for."""

    def pattern_of(match: re.Match[str]) -> str:
        if match["lines"]:
            return r"(?:.*\n)*?\s*"
        if match["text"]:
            return ".*"
        if match["space"]:
            return r"\s+"
        if match["decimal"]:
            digits = match["decimal"]
            exact = Decimal(digits.replace(",", ""))
            step = Decimal(1).scaleb(int(exact.as_tuple().exponent))
            form = "{:,}" if "," in digits else "{}"
            near = (form.format(max(exact + k * step, Decimal(0))) for k in (-1, 0, 1))
            return f"(?:{'|'.join(map(re.escape, near))})"
        return re.escape(match[0])

    parts = re.compile(
        r"(?P<lines>(?<=\n)…\n\s*)|(?P<text>…)|(?P<space>\s+)|(?P<decimal>\d[\d,]*\.\d+)|(?P<other>[^\s…\d]+|\d+)"
    )
    return rf"(?m)^\s*{parts.sub(pattern_of, sample.strip())}\s*?$"


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A folder in which everything of the repository is at hand and nothing of it can be overwritten."""
    for entry in ROOT.iterdir():
        if entry.name != "demo":
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "demo").mkdir()
    for entry in (ROOT / "demo").iterdir():
        (tmp_path / "demo" / entry.name).symlink_to(entry)
    return tmp_path


def keep_a_third(lists: Path) -> None:
    """Keep one list in three, which takes a third of the time."""
    lines = gzip.decompress(lists.read_bytes()).splitlines(keepends=True)
    lists.unlink()
    lists.write_bytes(gzip.compress(b"".join(lines[::3])))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if script_of(page) != PREAMBLE])
def test_blocks_run_and_print_their_samples(page, scratch, warm_programs):
    samples = list(samples_of(page))
    if not any("demo/lists" in block.code for block, _ in samples):
        keep_a_third(scratch / "demo" / "lists.jsonl.gz")
    port = free_port()
    script = script_of(page).replace(PORT, port).replace(METRICS_PORT, free_port())
    environment = {
        **os.environ,
        "PATH": f"{warm_programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PAGE": page,
        "ROOT": str(ROOT),
        "RESCORER_PORT": port,
        "PYTHONUNBUFFERED": "1",  # standard output and error in the order in which a terminal shows them
    }
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=scratch,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    stale = []
    for block, sample in samples:
        printed = done.stdout.partition(f"{heading(page, block)}\n")[2].partition("\n##### ")[0]
        if not re.search(sample_pattern(sample.code), printed):
            stale.append(f"{page}:{sample.line}: the block before prints something else:\n{printed}")
    assert not stale, "\n".join(stale)


PRINTED = """\
system      WER %  words
first pass  28.97  1,443

total 1,443.10 of a verdict that is long
done
"""


@pytest.mark.parametrize(
    "sample",
    [
        "first pass  28.97  1,443",
        "first pass 28.97 1,443",
        "first pass  28.98  1,443",
        "first pass  28.97 …",
        "system …\n…\ntotal 1,443.09 of a verdict\nthat is long",
    ],
    ids=["as printed", "other space", "last digit", "rest of a line", "lines left out, a line wrapped"],
)
def test_a_sample_stands_for_what_is_printed(sample):
    assert re.search(sample_pattern(sample), PRINTED)


@pytest.mark.parametrize(
    "sample",
    [
        "first pass  28.99  1,443",
        "first pass  28.97  1,444",
        "first pass  28.97",
        "pass  28.97  1,443",
        "…\nend",
    ],
    ids=["decimal", "integer", "end of a line missing", "begin of a line missing", "other line"],
)
def test_a_stale_sample_stands_for_nothing_printed(sample):
    assert not re.search(sample_pattern(sample), PRINTED)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_have_a_known_language_and_parse(page):
    for block in blocks_of(page):
        where = f"{page}:{block.line}"
        assert block.language in (*RUN, *PARSED, READ_ONLY), f"{where}: language {block.language!r}"
        if block.language == "json" and block.code.lstrip().startswith("{") and "\n{" in block.code:
            for line in block.code.splitlines():
                json.loads(line)
        elif block.language in PARSED:
            PARSED[block.language](block.code)


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page):
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


def test_tests_that_pages_name_exist():
    for page in PAGES:
        for file, name in re.findall(
            r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / page).read_text(encoding="utf-8")
        ):
            code = (ROOT / file).read_text(encoding="utf-8")
            assert f"\ndef {name}(" in code or not name, f"{page}: {file}::{name}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_the_example_list_is_read(tmp_path):
    codes = [block.code for block in blocks_of("docs/reference/scoring.md")]
    header, example = (
        next(code for code in codes if code.startswith(start)) for start in ('{"format"', '{"id"')
    )
    (tmp_path / "a.jsonl").write_text(header + example)
    (nbest,) = read_lists(tmp_path / "a.jsonl")
    assert nbest.streams["acoustic"][0] == pytest.approx(310.2 * 2.302585, rel=1e-6)


def test_tables_of_codes_match_the_code():
    lines = (DOCS / "reference" / "codes.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    for kind in (*KINDS, BUG):
        assert any(row[0] == kind.code.name and kind.reason in row[1].split(", ") for row in cells), kind
    for _, code, meaning in EXIT_CODES:
        assert [str(code), meaning] in cells


@pytest.mark.parametrize(("name", "file"), [("ptb", "report.json"), ("ptb-ngrams", "ngrams.json")])
def test_tables_of_language_models_are_the_recipes_reports(name, file):
    facts = json.loads((DOCS / "ptb" / file).read_text(encoding="utf-8"))
    models = [MeasuredModel(**model) for model in facts["models"]]
    report = Report(**facts | {"texts": facts["texts"][1:], "models": models})
    recipe = read_recipe(name)
    measured = {*recipe.ngrams, *recipe.networks, *recipe.mixtures}
    assert measured == {model.name for model in report.models[1:]}
    page = (DOCS / "results" / "networks.md").read_text(encoding="utf-8")
    assert "\n".join(render_cells(table_cells(report))) in page


def test_generated_pages_are_up_to_date():
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    from tools.docs import outdated_pages

    assert outdated_pages() == [], "run `make docs`"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the built site."""
    pytest.importorskip("mkdocs", reason="mkdocs-material is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_and_fetches_nothing(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:[^\"]+)", page.read_text("utf-8")
        )
        assert not fetched, page


@pytest.mark.slow
def test_links_of_the_site_lead_to_its_pages_and_their_headings(site):
    texts = {page: page.read_text("utf-8") for page in site.rglob("*.html")}
    ids = {
        page: {unquote(name) for name in re.findall(r'\sid="([^"]+)"', text)} for page, text in texts.items()
    }
    del texts[site / "404.html"]  # its links are absolute
    broken = []
    for page, text in texts.items():
        for link in map(unescape, re.findall(r'\shref="(?![a-z]+:)([^"]+)"', text)):
            path, _, heading = link.partition("#")
            target = (page.parent / unquote(path)).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (heading and unquote(heading) not in ids.get(target, ())):
                broken.append((str(page.relative_to(site)), link))
    assert broken == []


WIDE = """
[...document.querySelectorAll('html, article :is(pre, table, img)')].filter((part) =>
  part.localName === 'html' ? part.scrollWidth > innerWidth
  : part.getBoundingClientRect().right > innerWidth + 1
    && !part.parentElement.closest('.md-typeset__scrollwrap, pre')
).map((part) => part.outerHTML.slice(0, 200))
"""
"""What is wider than the screen, except inside boxes that scroll."""


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed (Debian's package chromium)")
def test_pages_of_the_site_fit_a_phone_and_are_searched_from_the_disk(site, tmp_path):
    with open_chromium(tmp_path) as browser:
        for page in sorted({*site.rglob("*.html")} - {site / "404.html"}):  # its links are absolute
            browser.open(page.as_uri(), 390)
            assert browser.evaluate(WIDE) == [], page
            assert browser.complaints == [], page
        browser.open((site / "index.html").as_uri(), 1280)
        browser.send(
            "Runtime.evaluate",
            expression="""new Promise((resolve) => {
                const box = document.querySelector('.md-search__input');
                const look = () => {
                    if (document.querySelector('.md-search-result__item')) return resolve();
                    box.dispatchEvent(new Event('keyup'));
                    setTimeout(look, 100);
                };
                box.focus();
                box.value = 'posterior';
                look();
            })""",
            awaitPromise=True,
        )
        assert browser.complaints == []


def read_table(page, heading):
    """The cells of the table below a heading, by row."""
    table = (ROOT / page).read_text(encoding="utf-8").split(heading)[1].split("\n\n")[0]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]


def test_the_error_rates_of_the_readme_are_those_of_the_results():
    rows = read_table("README.md", "| and SmolLM2-135M | oracle |\n")
    results = read_table("docs/results/own-language-models.md", "| PocketSphinx | Switchboard | DSTC2 |\n")
    by_system = {name: figures for name, *figures in results}
    sets = ("Moonshine", "cased", "PocketSphinx", "Switchboard", "DSTC2")
    systems = ("first pass", "n-gram", "mixture", "SmolLM2, mixture", "oracle")
    assert len(rows) == 4
    for name, *rates in rows:
        (column,) = (index for index, one in enumerate(sets) if one in name)
        assert rates == [by_system[system][column] for system in systems], name


def test_the_gains_of_the_results_have_intervals():
    heading = "| lists | first pass | n-gram | n-gram + network | saved, points (95 %) | oracle |\n"
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    results = page.split(heading)[1].split("\n\n")[0].splitlines()[1:]
    bars = (DOCS / "results" / "error-bars.md").read_text(encoding="utf-8")
    for row in results[:3]:
        *rates, saved, oracle = row.strip("| ").split(" | ")[1:]
        assert all(f"| {rate} (" in bars for rate in (*rates, oracle)), row
        assert f"| {saved.split(',')[0]} " in re.sub(r"[+*\\]", "", bars), row

"""Text of others on a terminal: no control character reaches it, and output for machines keeps every byte."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.cli import main as rescorer
from rescorer.escapes import CONTROLS, TerminalStream, escape_controls, guard_terminals, plain_stream
from rescorer.terminal.program import print_note
from rescorer.terminal.progress import progress_bar
from rescorer.terminal.tables import FoldingTable, make_text_grid, print_out
from rescorer_training.cli import main as train

BIDI = "\u202e\u2066\u2028\u2029"
CONTROL = "".join(map(chr, (*range(1, 10), *range(11, 32), *range(127, 160)))) + BIDI
"""What terminals must not get. NUL is left out: no file name and no line of a list may have it."""
HOSTILE = f"ev\x1b[31mil\x9b2J{CONTROL}[/b]:boom:=x"
NAME = re.sub("[/\r]", "", HOSTILE)
"""A file name. Some commands read names by lines."""


class Shown(NamedTuple):
    code: int
    out: str
    err: str


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True, scope="module")
def dumb_terminal():
    """Terminals have no colours and 120 columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "dumb")
        patch.setenv("COLUMNS", "120")
        yield


@pytest.fixture
def show(monkeypatch) -> Callable[..., Shown]:
    """Run a command in this process on a terminal, or on other streams, with bars for short tasks, too."""
    monkeypatch.setattr("rescorer.terminal.progress.SHORT_TASK_S", 0.0)

    def call(*arguments, command=rescorer, stream=Terminal) -> Shown:
        out, err, code = stream(), stream(), 0
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                command()
            except SystemExit as stop:
                code = stop.code or 0
        return Shown(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Lists and sentences (5 kB) whose every text is hostile, in files with hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    for part in ("a", "b"):
        lines = [
            {
                "id": f"{HOSTILE}{number}",
                "hypotheses": [
                    {"text": f"the {HOSTILE} cat", "scores": {"acoustic": -2.0, HOSTILE: -1.0}},
                    {"text": f"the cat {part}", "scores": {"acoustic": -1.0, HOSTILE: -2.0}},
                ],
                "reference": f"the {HOSTILE} dog",
                "group": f"{HOSTILE}{number % 3}",
                "phrases": [HOSTILE],
            }
            for number in range(6)
        ]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (folder / f"{part}{NAME}.jsonl").write_text(text, encoding="utf-8")
    (folder / f"bad{NAME}.jsonl").write_text('{"id": 1\n{"id": "\\u001b", "hypotheses": [3]}\n')
    (folder / f"text{NAME}").write_text(f"the {HOSTILE} cat sat\nthe dog sat\n" * 4, encoding="utf-8")
    return folder


def find_controls(shown: Shown) -> list[str]:
    """Control characters that reached the terminal, except line ends and the carriage returns of bars."""
    return CONTROLS.findall((shown.out + shown.err.replace("\r", "")).replace("\n", ""))


WEIGHTED = ("--bundle", "{bundle}", "-w", f"{HOSTILE}=0.5", "-w", "acoustic=1")
LIST_COMMANDS = {
    "evaluate": ("evaluate", "{a}", "--by-group", "--alignments", "--errors"),
    "evaluate two": ("evaluate", "{a}", "{b}"),
    "inspect": ("inspect", "{a}"),
    "explain all": ("explain", "{a}", *WEIGHTED),
    "explain one": ("explain", f"{HOSTILE}1", "{a}", *WEIGHTED),
    "compare": ("compare", "{a}", "{b}", "--by", "list"),
    "tune": ("tune", "{a}", "--bundle", "{bundle}", "-o", "{folder}/w{name}.json"),
    "combine": ("combine", "{a}", "{b}", "-o", "{folder}/c{name}.jsonl"),
    "candidates": ("candidates", "{bad}", "--bundle", "{bundle}", "-o", "{folder}/g{name}.json"),
    "rescore": ("rescore", "{a}", *WEIGHTED, "-o", "{folder}/r{name}.jsonl"),
    "report": ("report", "{a}", "-o", "{folder}/page{name}.html", "-o", "{folder}/page{name}.md"),
    "convert to a terminal": ("convert", "{a}", "-"),
    "convert damaged lists": ("convert", "{bad}", "{folder}/bad.jsonl"),
    "evaluate damaged lists": ("evaluate", "{bad}"),
    "missing file": ("evaluate", "{folder}/none{name}"),
    "unknown option": ("evaluate", "{a}", f"--{HOSTILE}"),
    "unknown command": (HOSTILE,),
    "plan": ("rescore", "{a}", *WEIGHTED, "--plan"),
    "shards": ("rescore", "{a}", *WEIGHTED, "-o", "{folder}/s{name}", "--shards", "2"),
    "look at shards": ("shards", "status", "{folder}/s{name}"),
    "score": ("score", "{text}", "--bundle", "{bundle}", "--words"),
    "seal": ("seal", "{folder}/none{name}"),
}
TEXT_COMMANDS = {
    "ngram": ("ngram", "{text}", "-o", "{folder}/m{name}.arpa", "--order", "2", "--validation", "{text}"),
    "perplexity": ("perplexity", "{text}", "--ngram", "{folder}/m{name}.arpa", "--normaliser", "raw"),
    "interpolate": ("interpolate", "{text}", "--bundle", "{bundle}", "--ngram", "{folder}/m{name}.arpa"),
    "sample": ("sample", "--ngram", "{folder}/m{name}.arpa", "-n", "3"),
    "missing text": ("ngram", "{folder}/none{name}", "-o", "{folder}/n.arpa"),
}
CASES = [(case, command, rescorer) for case, command in LIST_COMMANDS.items()]
CASES += [(case, command, train) for case, command in TEXT_COMMANDS.items()]


@pytest.mark.parametrize(("case", "arguments", "command"), CASES, ids=[case for case, *_ in CASES])
def test_no_control_character_reaches_a_terminal(show, folder, ngram_bundle, case, arguments, command):
    names = {"folder": folder, "bundle": ngram_bundle, "name": NAME, "text": folder / f"text{NAME}"}
    names |= {part: folder / f"{part}{NAME}.jsonl" for part in ("a", "b", "bad")}
    filled = [re.sub(r"\{(\w+)\}", lambda found: str(names[found[1]]), text) for text in arguments]
    shown = show(*filled, command=command)
    assert find_controls(shown) == [], (case, shown)
    assert "Traceback" not in shown.err
    assert "ev" in shown.out + shown.err, "the command shows none of the hostile texts"


def test_pages_show_escapes(show, folder):
    page, section = folder / "page.html", folder / "page.md"
    assert show("report", folder / f"a{NAME}.jsonl", "-o", page, "-o", section).code == 0
    for file in (page, section):
        text = file.read_text(encoding="utf-8")
        assert CONTROLS.findall(text.replace("\n", "")) == []
        assert "ev\\u001b[31mil" in text.replace("\\\\", "\\")


def test_output_for_machines_keeps_every_byte(show, folder):
    source, written = folder / f"a{NAME}.jsonl", folder / "kept.jsonl"
    lists = [json.loads(line) for line in source.read_text(encoding="utf-8").split("\n")[:-1]]
    assert show("convert", source, written).code == 0
    assert show("convert", source, "-", stream=io.StringIO).out == written.read_text(encoding="utf-8")
    assert [json.loads(line)["id"] for line in written.read_text().split("\n")[:-1]] == [
        item["id"] for item in lists
    ]
    on_terminal = show("convert", source, "-").out  # JSON with escapes is the same JSON
    assert list(map(json.loads, on_terminal.split("\n")[:-1])) == list(
        map(json.loads, written.read_text(encoding="utf-8").split("\n")[:-1])
    )
    piped = show("evaluate", source, "--json", "--alignments", "--by-group", stream=io.StringIO).out
    assert json.dumps(f"{HOSTILE}1") in json.dumps(json.loads(piped))
    assert show("evaluate", source, "--by-group", stream=io.StringIO).out.count("\x9b2J") > 3
    word = re.sub(r"[\s\x1c-\x1f\x85\u2028\u2029]", "", NAME)
    trn = folder / "in.trn"
    trn.write_text(f"the {word} cat ({word}-1)\n", encoding="utf-8")
    assert show("convert", trn, "-", "--to", "trn", stream=io.StringIO).out == trn.read_text(encoding="utf-8")


def test_a_process_on_a_terminal(folder):
    """Its own streams, with colours: escape sequences are those of styles only."""
    source = folder / f"a{NAME}.jsonl"
    script = f"import sys; sys.argv[1:] = ['evaluate', {str(source)!r}, '--alignments', '--by-group']\n"
    script += "from rescorer.cli import main; main()"
    pid, descriptor = pty.fork()
    if not pid:
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
        os.execve(sys.executable, [sys.executable, "-c", script], environment)
    shown = b""
    with contextlib.suppress(OSError):  # the end of the process
        while part := os.read(descriptor, 1 << 16):
            shown += part
    os.close(descriptor)
    assert os.waitpid(pid, 0)[1] == 0, shown
    text = shown.decode().replace("\r\n", "")
    styles = re.compile(r"\x1b\[(?:0|[1-9][0-9]?)(?:;[0-9]+)*m")
    assert "ev\\u001b[31mil" in text
    assert styles.findall(text)
    assert CONTROLS.findall(styles.sub("", text)) == []


@given(text=st.text(st.characters(exclude_categories=())) | st.text(st.sampled_from(CONTROL + "a\n\0\ud800")))
def test_whatever_is_printed_is_escaped(text):
    out, err = Terminal(), Terminal()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), guard_terminals():
        table = FoldingTable(text, text, title=text)
        table.add_row(text, text)
        print_out(table, make_text_grid([(text, text)]), text)
        print_note(text)
        print(text)
        print(text, file=sys.stderr)
    shown = out.getvalue() + err.getvalue()
    assert CONTROLS.findall(shown.replace("\n", "")) == []
    assert not isinstance(sys.stdout, TerminalStream)


@given(text=st.text(st.characters(exclude_categories=())), keep=st.sampled_from(["", "\n", "\t\n"]))
def test_escapes_are_those_of_json_and_nothing_else_changes(text, keep):
    escaped = escape_controls(text, keep)
    assert set(CONTROLS.findall(escaped)) <= set(keep)
    assert escape_controls(escaped, keep) == escaped
    decoded = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), escaped)
    assert decoded == text or "\\u" in text


def test_columns_between_tabs_remain_columns():
    out = Terminal()
    with contextlib.redirect_stdout(out), guard_terminals():
        print("class\tsea")
    assert out.getvalue() == "class   sea\n"


def test_names_with_line_ends_make_no_lines(show, tmp_path):
    shown = show("evaluate", tmp_path / "lists\nrescorer: all is well")
    assert shown.err.count("\n") == 1
    assert "lists\\u000arescorer: all is well" in shown.err
    kept = show("evaluate", tmp_path / "lists\nof mine", stream=io.StringIO)
    assert "lists\nof mine" in kept.err


def test_bars_stay_below_messages():
    """tqdm finds the bars of a stream although they are drawn on the plain one."""
    err = Terminal()
    with contextlib.redirect_stderr(err), guard_terminals():
        assert plain_stream(sys.stderr) is err
        with progress_bar("reading \x1b[2J", total=3) as bar:
            bar.write("file \x1b[2J is damaged", file=sys.stderr)
    lines = err.getvalue().split("\n")
    assert lines[0].endswith("\rfile \\u001b[2J is damaged")
    assert re.sub(r"\r", "", lines[0]).startswith("reading \\u001b[2J")
    assert "\x1b[2J" not in err.getvalue()

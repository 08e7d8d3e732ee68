"""Totals equal sclite's on texts of every kind, and on random recordings with alternatives.

Alternatives and the null word in references, in hypotheses and in both; optional words and fragments; a ctm
with alternatives against an stm with labels, gaps and excluded segments. ``figures.json`` has the version of
sclite and its command lines; where sclite is installed, they are run again.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rescorer.cli import main
from rescorer.evaluation.list_errors import align_recordings
from rescorer.formats.nist import read_recordings, read_references, read_segments, read_trn_lists
from rescorer.types import NBestList
from tests.evaluation.test_sclite import SCLITE, Kinds, installed, kinds, lower_case, parse_flags

GOLDEN = Path(__file__).parents[1] / "golden" / "sclite_kinds"
FIGURES = json.loads((GOLDEN / "figures.json").read_text(encoding="utf-8"))
COMMANDS = FIGURES["commands"]
Counts = dict[str, Kinds]


def run_sclite(command: str, folder: Path) -> Counts:
    """The counts of each utterance, by its id in lower case."""
    program, *arguments = command.split()
    assert program == "sclite"
    done = subprocess.run([*SCLITE, *arguments], capture_output=True, check=True, cwd=folder)
    pattern = r"^id: \((.*)\)\n(?:[\w ]+: .*\n)*?Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)$"
    found = re.findall(pattern, done.stdout.decode(), re.MULTILINE)
    return {name.lower(): tuple(map(int, values)) for name, *values in found}


def count(command: str, folder: Path) -> Counts:
    """The same by this project."""
    _, _, reference, reference_format, _, hypothesis, _, *options = command.split()
    if reference_format == "trn":
        references = {name.lower(): text for name, text in read_references(folder / reference).items()}
        texts = [item for item in read_trn_lists(folder / hypothesis) if isinstance(item, NBestList)]
        pairs = [(item.id.lower(), references[item.id.lower()], item.hypotheses[0].text) for item in texts]
    else:
        segments = read_segments(folder / reference)
        lists = [
            item
            for item in align_recordings(read_recordings(folder / hypothesis), segments)
            if isinstance(item, NBestList)
        ]
        pairs = [(item.id.lower(), item.reference or "", item.hypotheses[0].text) for item in lists]
    counting = parse_flags(" ".join(options))
    return {name: kinds(counting.counter_for(reference, lower_case)(text)) for name, reference, text in pairs}


def sum_speakers(counts: Counts) -> dict[str, list[int]]:
    speakers: dict[str, list[int]] = {}
    for name, values in counts.items():
        speaker = re.split(r"-\d+$", name)[0]
        totals = speakers.setdefault(speaker, [0, 0, 0, 0])
        speakers[speaker] = [total + value for total, value in zip(totals, values, strict=True)]
    return speakers


@pytest.mark.parametrize("command", COMMANDS)
def test_totals_equal_sclites(command):
    assert sum_speakers(count(command, GOLDEN)) == COMMANDS[command]


@installed
@pytest.mark.parametrize("command", COMMANDS)
def test_figures_are_those_of_the_installed_sclite(command):
    found = run_sclite(command, GOLDEN)
    assert sum_speakers(found) == COMMANDS[command]
    assert count(command, GOLDEN) == found


@pytest.mark.parametrize(("files", "options"), [
    (("words.hyp.trn", "words.ref.trn"), ["--optional-words", "--fragments"]),
    (("words.ctm", "words.stm"), []),
])  # fmt: skip
def test_command_gives_sclites_total(monkeypatch, capsys, tmp_path, files, options):
    hypothesis, reference = files
    kind = "stm" if reference.endswith("stm") else "trn"
    flags = "-D -F" if options else ""
    (command,) = [
        name
        for name in COMMANDS
        if f"-r {reference} {kind}" in name and name.endswith(f"stdout {flags}".strip())
    ]
    # one id is in upper case in the reference, which only sclite ignores
    (tmp_path / reference).write_text((GOLDEN / reference).read_text().replace("(BOTH-4)", "(both-4)"))
    raw = {"drop": [], "variants": False, "multiwords": "", "hyphens": "keep", "punctuation": "keep"}
    (tmp_path / "text.json").write_text(json.dumps(raw))
    arguments = [GOLDEN / hypothesis, "--reference", tmp_path / reference, "--counting", "sclite", *options]
    arguments += ["--normaliser", tmp_path / "text.json", "--json"]
    monkeypatch.setattr(sys, "argv", ["rescorer", "evaluate", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    (system,) = json.loads(capsys.readouterr().out)["systems"]
    correct, *errors = map(sum, zip(*COMMANDS[command].values(), strict=True))
    assert [system[kind] for kind in ("substitutions", "deletions", "insertions")] == errors
    assert system["reference_words"] == correct + errors[0] + errors[1]


@installed
def test_agrees_with_sclite_on_random_recordings_with_alternatives(tmp_path):
    draw = random.Random(22)
    stm, ctm = [], []
    for channel in range(80):
        now = 0.0
        for _ in range(draw.randint(1, 6)):
            end = round(now + draw.random() * 3, 2)
            text = draw.choice(["a b { c / @ } a", "{ a b / c } @ b", "", "b a b"])
            stm.append(f"f{channel:02} A {draw.choice(['ann', 'bob'])} {now} {end} {text}")
            now = round(end + draw.choice([0, 0, 0.5]), 2)
        add_words(draw, f"f{channel:02} A", now, ctm.append)
    (tmp_path / "r.stm").write_text("\n".join(stm) + "\n")
    (tmp_path / "h.ctm").write_text("\n".join(ctm) + "\n")
    command = "sclite -r r.stm stm -h h.ctm ctm -f 0 -o pralign stdout"
    assert count(command, tmp_path) == run_sclite(command, tmp_path)


def add_words(draw: random.Random, channel: str, until: float, add: Callable[[str], None]) -> None:
    """Add the lines of a recording; sclite loses the word after an empty way that is not the last."""
    at = 0.0

    def word() -> None:
        nonlocal at
        duration = round(draw.random() / 2, 2)
        add(f"{channel} {at} {duration} {draw.choice('abc')}")
        at = round(at + duration, 2)

    while at < until + 0.5:
        word()
        if draw.random() < 0.3:
            add(f"{channel} * * <ALT_BEGIN>")
            start = at
            for way in range(draw.randint(2, 3)):
                if way:
                    add(f"{channel} * * <ALT>")
                at = start
                for _ in range(draw.randint(1, 2)):
                    word()
            if draw.random() < 0.3:
                add(f"{channel} * * <ALT>")
            add(f"{channel} * * <ALT_END>")

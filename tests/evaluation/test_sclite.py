"""Counts equal those of NIST's sclite, on a small fixture.

If sclite is installed (Debian: sctk), they are also compared on random and real texts.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from rescorer.cli import main
from rescorer.evaluation.error_rate import CountingSettings, WordErrors
from rescorer.evaluation.list_errors import align_by_time
from rescorer.formats.nist import Segment, TimedWord, read_references
from tests.support.nist_words import read_ctm, read_stm

GOLDEN = Path(__file__).parents[1] / "golden" / "sclite"
SCLITE = next(
    ([path, *rest] for name, *rest in (["sclite"], ["sctk", "sclite"]) if (path := shutil.which(name))), []
)
installed = pytest.mark.skipif(not SCLITE, reason="sclite is not installed (Debian: sctk)")

Kinds = tuple[int, int, int, int]  # correct words, substitutions, deletions, insertions
OPTIONS = ["", "-D", "-F", "-D -F", "-c"]


def lower_case(text: str) -> tuple[str, ...]:
    """The only normalisation of words that sclite does."""
    return tuple(text.lower().split())


def parse_flags(options: str) -> CountingSettings:
    return CountingSettings(
        "sclite",
        unit="character" if "-c" in options else "word",
        optional_words="-D" in options,
        fragments="-F" in options,
    )


def kinds(counts: WordErrors) -> Kinds:
    correct = counts.reference_words - counts.substitutions - counts.deletions
    return correct, counts.substitutions, counts.deletions, counts.insertions


def run_sclite(reference: Path, hypothesis: Path, report: str, options: str = "") -> str:
    files = [
        part
        for flag, file in (("-r", reference), ("-h", hypothesis))
        for part in (flag, file, file.suffix[1:])
    ]
    command = [*SCLITE, *files, "-i", "spu_id", "-f", "0", "-o", report, "stdout", *options.split()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def sclite_utterances(reference: Path, hypothesis: Path, options: str = "") -> dict[str, Kinds]:
    """Correct words, substitutions, deletions and insertions of each utterance."""
    text = run_sclite(reference, hypothesis, "pralign", options)
    pattern = r"^id: \((.*)\)\n(?:\w+: .*\n)*?Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)$"
    return {name: tuple(map(int, values)) for name, *values in re.findall(pattern, text, re.MULTILINE)}


def sclite_speakers(reference: Path, hypothesis: Path, options: str = "") -> dict[str, list[int]]:
    """Sentences, words, correct, substitutions, deletions, insertions, errors, wrong sentences by speaker."""
    text = run_sclite(reference, hypothesis, "rsum", options)
    rows = re.findall(r"^ *\| *(\w+) *\| *(\d+) +(\d+) *\|((?: +\d+){6}) *\|", text, re.MULTILINE)
    return {name: [int(n), int(w), *map(int, rest.split())] for name, n, w, rest in rows if name != "Sum"}


def count_with_sclite(folder: Path, pairs: Sequence[tuple[str, str]], options: str = "") -> list[Kinds]:
    """sclite's counts for pairs of reference and hypothesis."""
    for name, side in (("r.trn", 0), ("h.trn", 1)):
        lines = (f"{pair[side]} (s-{number})\n" for number, pair in enumerate(pairs))
        (folder / name).write_text("".join(lines), encoding="utf-8")
    found = sclite_utterances(folder / "r.trn", folder / "h.trn", options)
    return [found[f"s-{number}"] for number in range(len(pairs))]


def count(pairs: Iterable[tuple[str, str]], options: str = "") -> list[Kinds]:
    counting = parse_flags(options)
    return [kinds(counting.counter_for(reference, lower_case)(hypothesis)) for reference, hypothesis in pairs]


def measure_fixture() -> dict[str, object]:
    """sclite's figures for the fixture, as stored in ``figures.json``."""
    trn, ctm = (GOLDEN / "ref.trn", GOLDEN / "hyp.trn"), (GOLDEN / "ref.stm", GOLDEN / "hyp.ctm")
    return {
        "trn": {options: sclite_utterances(*trn, options) for options in OPTIONS},
        "trn speakers": {options: sclite_speakers(*trn, options) for options in OPTIONS},
        "ctm": {options: sclite_utterances(*ctm, options) for options in OPTIONS},
        "ctm speakers": {options: sclite_speakers(*ctm, options) for options in OPTIONS},
    }


@pytest.fixture(scope="module")
def figures():
    return json.loads((GOLDEN / "figures.json").read_text(encoding="utf-8"))


@installed
def test_fixture_matches_the_installed_sclite(figures):
    assert figures == json.loads(json.dumps(measure_fixture()))


@pytest.mark.parametrize("options", OPTIONS)
def test_counts_of_utterances(figures, options):
    references, hypotheses = (read_references(str(GOLDEN / name)) for name in ("ref.trn", "hyp.trn"))
    counts = count(((references[name], text) for name, text in hypotheses.items()), options)
    assert dict(zip(hypotheses, map(list, counts), strict=True)) == figures["trn"][options]


@pytest.mark.parametrize("options", OPTIONS)
def test_counts_of_utterances_aligned_by_time(figures, options):
    lists = align_by_time(read_ctm(str(GOLDEN / "hyp.ctm")), read_stm(str(GOLDEN / "ref.stm")))
    counts = count(((nbest.reference, nbest.hypotheses[0].text) for nbest in lists), options)
    assert dict(zip((nbest.id for nbest in lists), map(list, counts), strict=True)) == figures["ctm"][options]


def evaluate(monkeypatch, capsys, *arguments) -> dict:
    monkeypatch.setattr(sys, "argv", ["rescorer", "evaluate", *map(str, arguments), "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    (system,) = json.loads(capsys.readouterr().out)["systems"]
    return system


FLAGS = {"": [], "-D": ["--optional-words"], "-F": ["--fragments"], "-c": ["--characters"]}


@pytest.mark.parametrize("options", FLAGS)
@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("trn", ["hyp.trn", "ref.trn", "--groups", "^(.*)-"]),
        ("ctm", ["hyp.ctm", "ref.stm"]),
    ],
)
def test_command_reproduces_sclites_table_of_speakers(
    monkeypatch, capsys, tmp_path, figures, kind, files, options
):
    (tmp_path / "text.json").write_text(json.dumps({"punctuation": "keep", "hyphens": "keep"}))
    hypothesis, reference, *more = files
    result = evaluate(
        monkeypatch, capsys, GOLDEN / hypothesis, "--reference", GOLDEN / reference, *more,
        "--normaliser", tmp_path / "text.json", "--counting", "sclite", *FLAGS[options],
    )  # fmt: skip
    names = ["lists", "reference_words", "substitutions", "deletions", "insertions", "errors"]
    names.append("sentences_wrong")
    rows = {name: [group[key] for key in names] for name, group in result["groups"].items()}
    expected = {
        name: [n, w, *rest] for name, (n, w, _, *rest) in figures[f"{kind} speakers"][options].items()
    }
    assert rows == expected


def test_rejects_list_options_with_an_stm(monkeypatch, capsys):
    files = [GOLDEN / "hyp.ctm", "--reference", GOLDEN / "ref.stm"]
    monkeypatch.setattr(sys, "argv", ["rescorer", "evaluate", *map(str, files), "--groups", "(.)"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "an stm scores a ctm" in capsys.readouterr().err


def random_pair(draw: random.Random, options: str) -> tuple[str, str]:
    """Reference and hypothesis with nested alternatives; few distinct words, so that ties are common."""
    vocabulary = "abcdefgh"[: draw.choice([1, 2, 3, 8])]

    def word() -> str:
        text = draw.choice(vocabulary) * draw.choice([1, 1, 2])
        if "-F" in options and draw.random() < 0.2:
            text = draw.choice([text + "-", "-" + text])
        return f"({text})" if "-D" in options and draw.random() < 0.2 else text

    def part(depth: int) -> str:
        # sclite reorders alternatives, and thereby ties, when it splits words into characters
        if depth > 3 or "-c" in options or draw.random() < 0.7:
            return "@" if draw.random() < 0.03 else word()
        ways = [draw.choice(["@", sequence(depth + 1, 3)]) for _ in range(draw.randint(1, 3))]
        return "{ " + " / ".join(ways) + " }"

    def sequence(depth: int, longest: int) -> str:
        return " ".join(part(depth) for _ in range(draw.randint(min(depth, 1), longest)))

    plain = " ".join(word() for _ in range(draw.randint(0, 10)))
    return sequence(0, 8), draw.choice([plain, sequence(0, 8)])


@installed
@pytest.mark.parametrize("options", OPTIONS)
def test_agrees_with_sclite_on_random_texts(tmp_path, options):
    draw = random.Random(20)
    pairs = [random_pair(draw, options) for _ in range(2000)]
    assert_agrees(pairs, count_with_sclite(tmp_path, pairs, options), count(pairs, options))


@installed
def test_agrees_with_sclite_on_random_texts_aligned_by_time(tmp_path):
    draw = random.Random(21)
    words: list[TimedWord] = []
    segments: list[Segment] = []
    for channel in map(str, range(60)):
        now = 0.0
        for _ in range(draw.randint(1, 6)):
            end = round(now + draw.random() * 3, 2)
            text = draw.choice(["IGNORE_TIME_SEGMENT_IN_SCORING", *(["a b { c / @ } a"] * 4)])
            segments.append(Segment("f" + channel, "A", draw.choice(["ann", "bob"]), now, end, text))
            now = round(end + draw.choice([0, 0, 0.5]), 2)
        at = 0.0
        while at < now + 0.5:
            duration = round(draw.random() / 2, 2)
            words.append(TimedWord("f" + channel, "A", at, duration, draw.choice("abc")))
            at = round(at + duration, 2)
    (tmp_path / "r.stm").write_text(
        "".join(f"{s.file} {s.channel} {s.speaker} {s.start_s} {s.end_s} {s.text}\n" for s in segments)
    )
    (tmp_path / "h.ctm").write_text(
        "".join(f"{w.file} {w.channel} {w.start_s} {w.duration_s} {w.word}\n" for w in words)
    )
    expected = sclite_utterances(tmp_path / "r.stm", tmp_path / "h.ctm")
    lists = align_by_time(words, segments)
    counts = count((nbest.reference, nbest.hypotheses[0].text) for nbest in lists)
    assert dict(zip((nbest.id for nbest in lists), counts, strict=True)) == expected


def assert_agrees(
    pairs: Sequence[tuple[str, str]], expected: Sequence[Kinds], found: Sequence[Kinds]
) -> None:
    """Assert equal counts; only the pairs that differ appear in the failure."""
    rows = zip(pairs, expected, found, strict=True)
    assert [(pair, wanted, counts) for pair, wanted, counts in rows if wanted != counts] == []


def read_librispeech(folder: Path, system: str) -> list[tuple[str, str]]:
    references = read_references(folder / "ref" / f"{system.split('.')[0]}.biasing_100.tsv.gz")
    hypotheses = read_references(folder / "hyp" / f"{system}.tsv.gz")
    return [(references[name], text) for name, text in hypotheses.items()]


@pytest.mark.data
def test_reproduces_published_counts_of_librispeech_systems(data_dir):
    """All 22 files, kind by kind; plain edit distance reproduces the totals of 21 of them."""
    folder = data_dir / "wer/librispeech-systems"
    for published in sorted((folder / "published").glob("*.result")):
        figures = dict(re.findall(r"(\w+)=([\d.]+)", published.read_text().splitlines()[0]))
        counts = count(read_librispeech(folder, published.name.removesuffix(".tsv.result")))
        assert [sum(column) for column in list(zip(*counts, strict=True))[1:]] == [
            int(figures[kind]) for kind in ("subs", "dels", "ins")
        ]


@installed
@pytest.mark.data
def test_agrees_with_sclite_on_a_librispeech_system(data_dir, tmp_path):
    pairs = read_librispeech(data_dir / "wer/librispeech-systems", "test-other.s4.s3+nnlm.biasing_100")
    assert_agrees(pairs, count_with_sclite(tmp_path, pairs), count(pairs))


@installed
@pytest.mark.data
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("file", ["scored-dev.jsonl", "rank-only-tenbest.jsonl"])
def test_agrees_with_sclite_on_switchboard_with_alternations(data_dir, tmp_path, file, options):
    lines = (data_dir / "nbest/switchboard" / file).read_text(encoding="utf-8").splitlines()
    pairs = []
    for record in map(json.loads, lines[:400]):
        texts = [
            hypothesis["text"] if isinstance(hypothesis, dict) else hypothesis
            for hypothesis in record["hyps"]
        ]
        pairs += [(record["ref"], text) for text in texts]
    assert_agrees(pairs, count_with_sclite(tmp_path, pairs, options), count(pairs, options))

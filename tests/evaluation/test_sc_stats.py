"""``compare --counting sclite`` equals NIST's sc_stats where that is installed (Debian: sctk)."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from statistics import NormalDist

import pytest

from rescorer.formats.nist import read_references

SCTK = shutil.which("sctk")
installed = pytest.mark.skipif(not SCTK, reason="sc_stats is not installed (Debian: sctk)")
KEEP_WORDS = {"drop": [], "variants": False, "multiwords": "", "hyphens": "keep", "punctuation": "keep"}
MATCHED_PAIRS = re.compile(
    r"MTCH_PR_RESULTS \(systems: S(\d+) S(\d+)\) \(# segs: (\d+)\).*?\(Z Stat: +(\S+)\) \(Stat Diff: (\w+)\)"
)
WILCOXON = re.compile(r"for Systems\s+S(\d+) and\s+S(\d+).*?Z statistic = +(\S+), .*?is (\w+)", re.DOTALL)


def run_sc_stats(folder: Path, files: list[Path], reference: Path, test: str) -> str:
    """The detailed report of a test; systems are called S0, S1, …"""
    alignments = b""
    for number, file in enumerate(files):
        command = [SCTK, "sclite", "-r", reference, "trn", "-h", file, "trn", f"S{number}", "-i", "spu_id"]
        command += ["-o", "sgml", "stdout", "-f", "0"]
        alignments += subprocess.run(command, capture_output=True, check=True).stdout
    command = [SCTK, "sc_stats", "-p", "-t", test, "-v", "-n", "all"]
    subprocess.run(command, input=alignments, capture_output=True, check=True, cwd=folder)
    return (folder / f"all.stats.{test}").read_text(encoding="utf-8", errors="replace")


def compare(run, folder: Path, files: list[Path], reference: Path) -> dict[tuple[int, int], dict]:
    """The pairs of ``rescorer compare``, by numbers of the systems."""
    settings = folder / "text.json"
    settings.write_text(json.dumps(KEEP_WORDS))
    code, out, err = run(
        "compare", *files, "--reference", reference, "--counting", "sclite", "--normaliser", settings,
        "--groups", "^(.*?)-", "--tests", "wilcoxon", "--json",
    )  # fmt: skip
    assert code == 0, err
    numbers = list(combinations(range(len(files)), 2))
    return dict(zip(numbers, json.loads(out)["pairs"], strict=True))


def assert_equal(run, folder: Path, files: list[Path], reference: Path) -> None:
    """Assert the same segments, statistics and verdicts of both tests on all pairs."""
    pairs = compare(run, folder, files, reference)
    report = run_sc_stats(folder, files, reference, "mapsswe")
    expected = {(int(a), int(b)): (int(n), float(z), v) for a, b, n, z, v in MATCHED_PAIRS.findall(report)}
    assert expected.keys() == pairs.keys()
    for key, (segments, z, verdict) in expected.items():
        matched = pairs[key]["matched_pairs"]
        assert matched["segments"] == segments
        assert matched["z"] == pytest.approx(z, abs=0.00051)  # printed with three decimals
        assert (pairs[key]["p_values"]["matched_pairs"] < 0.05) == (verdict == "Yes")
    report = run_sc_stats(folder, files, reference, "wilc")
    sections = report.split("Wilcoxon Test Calculations Table")[1:]
    assert len(sections) == len(pairs)
    for section in sections:
        first, second, z, verdict = WILCOXON.search(section).groups()
        pair = pairs[tuple(sorted((int(first), int(second))))]
        assert pair["p_values"]["wilcoxon"] == pytest.approx(
            two_sided(float(z)), abs=two_sided_error(float(z))
        )
        assert (pair["p_values"]["wilcoxon"] < 0.05) == (verdict == "REJECTED")


def two_sided(z: float) -> float:
    return 2 * NormalDist().cdf(-abs(z))


def two_sided_error(z: float) -> float:
    """Largest difference due to the two decimals with which sc_stats prints z."""
    return two_sided(abs(z) - 0.0051) - two_sided(abs(z) + 0.0051)


def write_trn(path: Path, texts: dict[str, str]) -> Path:
    path.write_text("".join(f"{text} ({name})\n" for name, text in texts.items()), encoding="utf-8")
    return path


@installed
def test_equals_sc_stats_on_random_texts(run, tmp_path):
    draw = random.Random(4)
    names = [f"speaker{number % 9}-{number:03d}" for number in range(120)]
    texts = {name: [draw.choice("abcd") for _ in range(draw.randint(1, 25))] for name in names}
    files = []
    for number, rate in enumerate((0.05, 0.05, 0.2, 0.4)):
        corrupted = {
            name: " ".join(
                word if draw.random() > rate else draw.choice(["", "e", f"{word} a", "b"]) for word in words
            )
            for name, words in texts.items()
        }
        files.append(write_trn(tmp_path / f"{number}.trn", corrupted))
    reference = write_trn(tmp_path / "r.trn", {name: " ".join(words) for name, words in texts.items()})
    assert_equal(run, tmp_path, files, reference)


@installed
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("part", ["test-clean", "test-other"])
def test_equals_sc_stats_on_all_pairs_of_librispeech_systems(run, data_dir, tmp_path, part):
    """55 pairs of 11 systems each."""
    folder = data_dir / "wer/librispeech-systems"
    references = read_references(str(folder / "ref" / f"{part}.biasing_100.tsv.gz"))
    files = []
    for file in sorted((folder / "hyp").glob(f"{part}.*")):
        texts = read_references(str(file))
        files.append(write_trn(tmp_path / f"{len(files)}.trn", {name: texts[name] for name in references}))
    assert len(files) == 11
    assert_equal(run, tmp_path, files, write_trn(tmp_path / "r.trn", references))

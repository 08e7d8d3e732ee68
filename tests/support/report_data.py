"""A report description with every section, made from random numbers."""

from __future__ import annotations

import random
from dataclasses import replace

from rescorer.evaluation.report.data import (
    AlignedWord,
    Calibration,
    Changes,
    Confusion,
    DepthCurve,
    FileAnalysis,
    GroupRow,
    Groups,
    HypothesisRow,
    HypothesisTable,
    ModelChanges,
    Reading,
    ReliabilityBin,
    ReportData,
    Surface,
    SystemRow,
    Utterance,
    Utterances,
    WeightCurve,
    WordChange,
)

WORDS = [
    "the",
    "old",
    "man",
    "walked",
    "slowly",
    "and",
    "was",
    "willing",
    "to",
    "see",
    "whether",
    "the",
    "gate",
    "was",
    "still",
    "open",
    "in",
    "the",
    "evening",
]
N_WORDS = 1290
SYSTEMS = ("first pass", "ngram", "mixture", "mixture, tuned")


def make_row(name: str, errors: int, **fields: object) -> SystemRow:
    rate = 100 * errors / N_WORDS
    row = SystemRow(
        name, "lists.jsonl.gz", "system", rate, errors, errors - 30, 20, 10, 55.2, (rate - 2.6, rate + 2.7)
    )
    return replace(row, **fields)


def make_curve(weight: str, chosen: float, low: float, high: float, rng: random.Random) -> WeightCurve:
    corners = sorted(rng.uniform(low, high) for _ in range(60))
    middle = (low + high) / 2
    points = [low, *corners]
    errors = [int(260 + 400 * ((x - middle) / (high - low)) ** 2 + rng.uniform(-4, 4)) for x in points]
    folds = tuple(chosen + rng.gauss(0, (high - low) / 20) for _ in range(8))
    return WeightCurve(weight, chosen, tuple(corners), tuple(errors), (low, high), folds)


def make_reading(systems: tuple[str, ...], rng: random.Random, n_errors: int) -> Reading:
    wrong = rng.sample(range(len(WORDS)), n_errors)
    words: list[AlignedWord] = []
    for index, word in enumerate(WORDS):
        kind = rng.choice(["substitution", "deletion", "insertion"]) if index in wrong else "correct"
        if kind == "insertion":
            words += [AlignedWord("insertion", "", "a"), AlignedWord("correct", word, word)]
        else:
            heard = {"correct": word, "substitution": "silver", "deletion": ""}[kind]
            words.append(AlignedWord(kind, word, heard))
    return Reading(systems, tuple(words), n_errors)


def make_utterance(number: int, rng: random.Random, text: str = "") -> Utterance:
    before, after = rng.randint(0, 6), rng.randint(0, 4)
    readings = (
        make_reading(SYSTEMS[:1], rng, before),
        make_reading(SYSTEMS[1:], rng, after),
        make_reading(("oracle",), rng, min(before, after)),
    )
    rows = tuple(
        HypothesisRow(
            rank,
            text or " ".join(WORDS),
            rng.randint(0, 6),
            rng.uniform(-1700, -1600),
            (rng.uniform(-1700, -1500), rng.uniform(-90, -60), rng.uniform(-80, -60), 14.0, 0.0),
            SYSTEMS[:1] if rank == 1 else SYSTEMS[1:] if rank == 4 else (),
        )
        for rank in range(1, 6)
    )
    table = HypothesisTable("lists.jsonl.gz", ("acoustic", "lm", "ngram", "words", "oov"), rows, 50)
    speaker = f"speaker-{number % 8}"
    return Utterance(f"demo-{number:03}", speaker, len(WORDS), before, after, readings, (table,))


def make_report_data(n_utterances: int = 30, text: str = "") -> ReportData:
    """A report; ``text`` replaces the texts of hypotheses."""
    rng = random.Random(1)
    rows = (
        make_row("first pass", 374, role="baseline"),
        make_row("ngram", 323, gain=3.95, gain_interval=(1.9, 6.0), p_value=0.0004, mark="***"),
        make_row("mixture", 253, gain=9.36, gain_interval=(7.1, 11.7), p_value=0.00001, mark="***"),
        make_row("mixture, tuned", 260, gain=8.84, gain_interval=(6.6, 11.2), p_value=0.00001, mark="***"),
        make_row("oracle", 186, role="oracle"),
    )
    lms = tuple(range(0, 21))
    words = tuple(-5 + 0.5 * n for n in range(21))
    surface = Surface(
        "lm:mixture", "word", tuple(map(float, lms)), words,
        tuple(tuple(int(250 + 1.2 * (x - 9 - y) ** 2 + 2 * (y + 0.6) ** 2) for x in lms) for y in words),
        (9.5, -0.63), tuple((rng.gauss(10, 1), rng.gauss(0, 0.7)) for _ in range(8)),
    )  # fmt: skip
    bins = tuple(
        ReliabilityBin(x / 10 + 0.05, min(1.0, (x / 10) ** 1.7 + 0.05), 5 + x * x) for x in range(10)
    )
    better = tuple(ReliabilityBin(x / 10 + 0.05, x / 10 + rng.uniform(0.0, 0.1), 20) for x in range(10))
    file = FileAnalysis(
        file="lists.jsonl.gz", lists=96, hypotheses=4800, reference_words=N_WORDS, weights="pocketsphinx",
        weight_values={"acoustic": 1.0, "lm:mixture": 9.5, "word": -0.6296},
        curves=(
            make_curve("acoustic", 1.0, 0.2, 2.4, rng),
            make_curve("lm:mixture", 9.5, 0, 20, rng),
            make_curve("word", -0.63, -8, 8, rng),
        ),
        surface=surface,
        depth=DepthCurve((1, 2, 5, 10, 20, 50), (374, 330, 290, 250, 220, 186), 374, 253, "mixture"),
        calibrations=(
            Calibration("posterior", bins, 0.183, -0.21),
            Calibration("calibrated, held out", better, 0.041, 0.27),
        ),
    )  # fmt: skip
    changes = Changes(
        157, 36,
        tuple(WordChange(*counts) for counts in (("and", 14, 2), ("the", 11, 4), ("to", 1, 5))),
        (Confusion("and", "in", 12, 3), Confusion("", "a", 9, 8), Confusion("was", "", 4, 6)),
    )  # fmt: skip
    groups = tuple(GroupRow(f"speaker-{n}", 12, 160, 40 + 3 * n, 20 + 6 * n) for n in range(8))
    utterances = tuple(make_utterance(number, rng, text) for number in range(n_utterances))
    models = tuple(
        ModelChanges(
            row.name, {"acoustic": 1.0, f"lm:{row.name}": 9.5, "word": -0.6}, 40, 12, 150, 40, changes.words
        )
        for row in rows[1:4]
    )
    return ReportData(
        title="Rescoring of lists.jsonl.gz", command="rescorer report lists.jsonl.gz -o report.html",
        version="0.1",
        model="starter/1", counting="fewest errors (edit distance)", unit="word", lists=96,
        reference_words=N_WORDS, n_groups=8, baseline="first pass", system="mixture", systems=rows,
        statistics="Intervals: bootstrap over utterances.",
        notes=("The mixture saves 9.4 ± 2.3 points: more than chance.",), files=(file,), changes=changes,
        models=models, groups=Groups(groups, 8), utterances=Utterances(utterances, 96),
    )  # fmt: skip

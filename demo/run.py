"""The demo: starts a server on the starter bundle, sends it the demo lists, shows what rescoring changed.

python demo/run.py [--bundle models/starter/1] [--lists demo/lists.jsonl.gz]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rescorer import NBestList, RescoredHypothesis, RescoredList, Weights
from rescorer.bundle import read_normaliser
from rescorer.client import Client
from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.evaluation.error_rate.oracle import EvaluatedList, evaluate_list
from rescorer.formats.nbest.jsonlines import read_lists
from rescorer.score_combination import parse_weights

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 300.0
SHOWN = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, default=ROOT / "models" / "starter" / "1")
    parser.add_argument("--lists", type=Path, default=ROOT / "demo" / "lists.jsonl.gz")
    options = parser.parse_args()
    lists = [each for each in read_lists(options.lists) if isinstance(each, NBestList)]
    began = time.monotonic()
    with server(options.bundle) as target, Client(target) as client:
        client.wait_ready(START_LIMIT_S)
        ready = time.monotonic()
        answers = {name: client.rescore(lists, weights) for name, weights in systems(options.bundle).items()}
    took_ms = 1000 * (time.monotonic() - ready) / len(answers)
    console = Console()
    hypotheses = sum(len(each.hypotheses) for each in lists)
    console.print(
        f"\n{len(lists)} lists, {hypotheses:,} hypotheses; server ready after {ready - began:.1f} s, "
        f"all lists re-ranked in {took_ms:,.0f} ms a pass (gRPC included)\n"
    )
    normaliser = read_normaliser(options.bundle / "text.json")
    evaluated = [evaluate_list(each, normaliser.words) for each in lists]
    console.print(error_table(evaluated, answers))
    show_changes(console, lists, evaluated, answers)


@contextmanager
def server(bundle: Path) -> Iterator[str]:
    """A real ``rescorer serve`` process on a free port; yields its address, and stops it at the end."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        command = [sys.executable, "-m", "rescorer.cli", "serve", "--bundle", str(bundle), "--port", "0"]
        command += ["--threads", "1"]  # small matrices; threads that wait for a busy core are slow
        with open(Path(folder) / "log", "w+") as log:
            process = subprocess.Popen([*command, "--port-file", str(port_file)], stdout=log, stderr=log)
            try:
                deadline = time.monotonic() + START_LIMIT_S
                while not (port_file.exists() and port_file.read_text().strip()):
                    if process.poll() is not None or time.monotonic() > deadline:
                        log.seek(0)
                        sys.exit(f"the server did not start:\n{log.read()}")
                    time.sleep(0.05)
                yield f"127.0.0.1:{port_file.read_text().strip()}"
            finally:
                process.terminate()
                process.wait(timeout=30)


def systems(bundle: Path) -> dict[str, Weights]:
    """The same weights for every system, and the language model exchanged.

    They are the ones PocketSphinx decodes with, stated beforehand and tuned on nothing here; rescoring
    takes the first pass's own language model out by giving its stream no weight.
    """
    stored = json.loads((bundle / "weights" / "pocketsphinx.json").read_text(encoding="utf-8"))
    weights = parse_weights(stored)
    scale = weights.lm["mixture"]
    acoustic = {"acoustic": weights.streams["acoustic"]}
    return {
        "first pass (bigram)": replace(weights, name="first pass", streams={**acoustic, "lm": scale}, lm={}),
        "n-gram": replace(weights, name="n-gram", lm={"ngram": scale}),
        "n-gram + network": weights,
    }


def error_table(evaluated: Sequence[EvaluatedList], answers: Mapping[str, Sequence[RescoredList]]) -> Table:
    """Word errors of each system and of the best hypothesis in each list."""
    rows = {
        name: total(errors_of(*pair) for pair in zip(evaluated, answer, strict=True))
        for name, answer in answers.items()
    }
    rows["oracle (best of each list)"] = total(each.oracle for each in evaluated)
    table = Table(title="Word error rate on the demo lists", title_justify="left")
    for column in ("system", "WER %", "errors / words", "sub", "del", "ins"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for name, errors in rows.items():
        table.add_row(
            name,
            f"{100 * errors.errors / errors.reference_words:.2f}",
            f"{errors.errors} / {errors.reference_words}",
            *(str(n) for n in (errors.substitutions, errors.deletions, errors.insertions)),
        )
    return table


def errors_of(evaluated: EvaluatedList, answer: RescoredList) -> WordErrors:
    """Of the hypothesis that an answer has first."""
    return evaluated.hypotheses[answer.best.original_rank]


def total(errors: Iterable[WordErrors]) -> WordErrors:
    return sum(errors, WordErrors.zero())


def show_changes(
    console: Console,
    lists: Sequence[NBestList],
    evaluated: Sequence[EvaluatedList],
    answers: Mapping[str, Sequence[RescoredList]],
) -> None:
    """A few lists whose best hypothesis changed: those that gained most, and the one that lost most."""
    first, final = next(iter(answers)), list(answers)[-1]
    gains = []
    for i, (before, after) in enumerate(zip(answers[first], answers[final], strict=True)):
        if before.best.original_rank != after.best.original_rank:
            gain = errors_of(evaluated[i], before).errors - errors_of(evaluated[i], after).errors
            gains.append((gain, i))
    gains.sort(key=lambda gain: (-gain[0], gain[1]))
    chosen = gains[: SHOWN - 1] + (gains[-1:] if len(gains) >= SHOWN else [])
    console.print(f"\nThe best hypothesis changed in {len(gains)} lists. Gained most, and lost most:\n")
    for gain, i in chosen:
        after = answers[final][i]
        old = next(h for h in after.hypotheses if h.original_rank == 0)
        console.print(change_table(lists[i], old, after.best, gain))


def change_table(nbest: NBestList, old: RescoredHypothesis, new: RescoredHypothesis, gain: int) -> Table:
    """Old and new best side by side, words and score components (natural log, higher is better)."""
    fate = f"{gain} errors fewer" if gain > 0 else f"{-gain} errors more" if gain < 0 else "as many errors"
    table = Table(title=f"{nbest.id}: {fate}", title_justify="left", caption=f"said: {nbest.reference}")
    for column in ("", "first pass", "rescored"):
        table.add_column(column)
    table.add_row("words", old.text, new.text)
    for name in ("acoustic", "lm", "ngram", "neural", "mixture"):
        label = {"lm": "lm (first pass)"}.get(name, name)
        table.add_row(label, f"{old.components[name]:,.2f}", f"{new.components[name]:,.2f}")
    table.add_row("total", f"{old.total:,.2f}", f"{new.total:,.2f}")
    return table


if __name__ == "__main__":
    main()

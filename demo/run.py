"""Run the demo: start a server on the starter bundle, rescore the demo lists, and show what changed.

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
from rescorer.client import Client
from rescorer.evaluation.error_rate import WordErrors
from rescorer.evaluation.list_errors import EvaluatedList, evaluate_list
from rescorer.formats.jsonlines import read_lists
from rescorer.models.bundle import read_normaliser
from rescorer.weights import parse_weights

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 300.0
SHOWN_LISTS = 5
NEXT = """
next, after `. .venv/bin/activate`:
  more than chance?  rescorer evaluate demo/lists.jsonl.gz -b models/starter/1 --weights pocketsphinx
  your own lists:    rescorer inspect FILE -b models/starter/1
  step by step:      docs/tutorial.md"""
"""What to do after the demo."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bundle", type=Path, default=ROOT / "models" / "starter" / "1", help="bundle to serve"
    )
    parser.add_argument(
        "--lists", type=Path, default=ROOT / "demo" / "lists.jsonl.gz", help="lists to rescore"
    )
    options = parser.parse_args()
    lists = [nbest for nbest in read_lists(options.lists) if isinstance(nbest, NBestList)]
    systems = system_weights(options.bundle)
    start = time.monotonic()
    with run_server(options.bundle) as target, Client(target) as client:
        client.wait_ready(START_TIMEOUT_S)
        ready = time.monotonic()
        answers = {name: client.rescore(lists, weights) for name, weights in systems.items()}
    pass_ms = 1000 * (time.monotonic() - ready) / len(answers)
    console = Console()
    hypotheses = sum(len(nbest.hypotheses) for nbest in lists)
    console.print(
        f"\n{len(lists)} lists, {hypotheses:,} hypotheses; server ready after {ready - start:.1f} s, "
        f"all lists rescored in {pass_ms:,.0f} ms per pass (gRPC included)\n"
    )
    normaliser = read_normaliser(options.bundle / "text.json")
    evaluated_lists = [evaluate_list(nbest, normaliser.normalise) for nbest in lists]
    console.print(error_table(evaluated_lists, answers))
    print_changes(console, lists, evaluated_lists, answers)
    console.print(NEXT, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def run_server(bundle: Path) -> Iterator[str]:
    """Run ``rescorer serve`` on a free port; yield its address and stop it at the end."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        command = [sys.executable, "-m", "rescorer.cli", "serve", "--bundle", str(bundle), "--port", "0"]
        # One thread: the matrices are small, and threads slow each other down on a busy machine.
        command += ["--threads", "1"]
        with open(Path(folder) / "log", "w+") as log:
            process = subprocess.Popen([*command, "--port-file", str(port_file)], stdout=log, stderr=log)
            try:
                deadline = time.monotonic() + START_TIMEOUT_S
                while not (port_file.exists() and port_file.read_text().strip()):
                    if process.poll() is not None or time.monotonic() > deadline:
                        log.seek(0)
                        sys.exit(f"the server did not start:\n{log.read()}")
                    time.sleep(0.05)
                yield f"127.0.0.1:{port_file.read_text().strip()}"
            finally:
                process.terminate()
                process.wait(timeout=30)


def system_weights(bundle: Path) -> dict[str, Weights]:
    """Make the weights of each system; systems differ only in the language model.

    The weights are those that PocketSphinx decodes with, not tuned on the demo lists. Rescoring ignores the
    language model score of the first pass, because its stream has no weight.
    """
    weights_json = (bundle / "weights" / "pocketsphinx.json").read_text(encoding="utf-8")
    weights = parse_weights(json.loads(weights_json))
    lm_scale = weights.lm["mixture"]
    acoustic = {"acoustic": weights.streams["acoustic"]}
    return {
        "first pass (bigram)": replace(
            weights, name="first pass", streams={**acoustic, "lm": lm_scale}, lm={}
        ),
        "n-gram": replace(weights, name="n-gram", lm={"ngram": lm_scale}),
        "n-gram + network": weights,
    }


def error_table(
    evaluated_lists: Sequence[EvaluatedList], answers: Mapping[str, Sequence[RescoredList]]
) -> Table:
    """Make a table of word errors: one row per system, and the oracle."""
    rows = {
        name: sum_errors(best_errors(*pair) for pair in zip(evaluated_lists, rescored_lists, strict=True))
        for name, rescored_lists in answers.items()
    }
    rows["oracle (best of each list)"] = sum_errors(evaluated.oracle for evaluated in evaluated_lists)
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


def best_errors(evaluated: EvaluatedList, answer: RescoredList) -> WordErrors:
    """Return the word errors of the best hypothesis after rescoring."""
    return evaluated.hypotheses[answer.best.original_rank]


def sum_errors(errors: Iterable[WordErrors]) -> WordErrors:
    return sum(errors, WordErrors.zero())


def print_changes(
    console: Console,
    lists: Sequence[NBestList],
    evaluated_lists: Sequence[EvaluatedList],
    answers: Mapping[str, Sequence[RescoredList]],
) -> None:
    """Print the lists whose best hypothesis improved most through rescoring, and the list that lost most."""
    first_pass, *_, final = answers.values()
    gains = []
    for index, (before, after) in enumerate(zip(first_pass, final, strict=True)):
        if before.best.original_rank != after.best.original_rank:
            errors_before = best_errors(evaluated_lists[index], before).errors
            errors_after = best_errors(evaluated_lists[index], after).errors
            gains.append((errors_before - errors_after, index))
    gains.sort(key=lambda item: (-item[0], item[1]))
    shown = gains[: SHOWN_LISTS - 1] + (gains[-1:] if len(gains) >= SHOWN_LISTS else [])
    console.print(
        f"\nThe best hypothesis changed in {len(gains)} lists. Largest improvements, and largest loss:\n"
    )
    for gain, index in shown:
        hypotheses = final[index].hypotheses
        old_best = next(hypothesis for hypothesis in hypotheses if hypothesis.original_rank == 0)
        console.print(change_table(lists[index], old_best, final[index].best, gain))


def change_table(nbest: NBestList, old: RescoredHypothesis, new: RescoredHypothesis, gain: int) -> Table:
    """Make a table of the old and new best hypothesis with their scores in nats (higher is better)."""
    outcome = f"{gain} errors fewer" if gain > 0 else f"{-gain} errors more" if gain < 0 else "as many errors"
    title, caption = f"{nbest.id}: {outcome}", f"reference: {nbest.reference}"
    table = Table(title=title, title_justify="left", caption=caption)
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

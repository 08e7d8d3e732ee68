"""Train tiny networks by Mikolov's rnnlm toolkit, and write the probabilities that it gives to a text.

    python tests/models/write_rnnlm_models.py RNNLM tests/golden/rnnlm

RNNLM is the program, version 0.4 with ``-D WEIGHTTYPE=double`` and ``exp`` in place of ``fasterexp``, whose
results are a few per cent off.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TRAIN = ["the cat sat on the mat", "a dog sat", "the dog sat on a log", "a cat ran", "the cat ran on the log"]
TEST = ["the cat sat", "the zebra sat", "a log ran on the mat", "the", ""]
KINDS = {"text": ["-independent"], "binary": ["-independent", "-binary"], "carried": ["-binary"]}
OPTIONS = ["-hidden", "6", "-rand-seed", "1", "-bptt", "3", "-class", "5"]


def write(program: Path, folder: Path) -> None:
    """Write a network of each kind, and ``scores.json``."""
    for name, texts in {"train": TRAIN * 6, "valid": TRAIN, "test": TEST}.items():
        (folder / name).write_text("".join(f"{text}\n" for text in texts))
    scores = {}
    for kind, options in KINDS.items():
        run = [str(program), "-rnnlm", f"{kind}.rnn"]
        subprocess.run(
            [*run, "-train", "train", "-valid", "valid", *OPTIONS, *options], cwd=folder, check=True
        )
        test = [
            *run,
            "-test",
            "test",
            "-debug",
            "2",
            *(["-independent"] if "-independent" in options else []),
        ]
        printed = subprocess.run(test, cwd=folder, check=True, capture_output=True, text=True).stdout
        rows = [
            line.split("\t") for line in printed.splitlines() if line[:1] in "-0123456789" and "\t" in line
        ]
        scores[kind] = [None if row[0] == "-1" else float(row[1]) for row in rows]
    for name in ("train", "valid", "test"):
        (folder / name).unlink()
    for path in folder.glob("*.output.txt"):
        path.unlink()
    (folder / "scores.json").write_text(json.dumps({"texts": TEST, "probabilities": scores}, indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))

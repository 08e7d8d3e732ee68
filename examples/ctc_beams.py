"""Decode letters of a CTC model with pyctcdecode, and rescore its beams with the models of a bundle.

    pip install --no-deps pyctcdecode pygtrie
    python examples/ctc_beams.py --bundle models/starter/1

pyctcdecode 0.5 asks for NumPy 1, which ``--no-deps`` leaves out, but runs with NumPy 2.

A CTC model gives the probability of each letter at each moment. Here these are made up, for a sentence in
which two words sound like others, so that the example needs neither a model nor a sound file. With a model
of your own, replace ``make_logits`` by its output: with transformers, ``model(inputs).logits[0].numpy()``,
and the letters by ``sorted(vocabulary, key=vocabulary.get)`` of its tokenizer.
"""

from __future__ import annotations

import argparse

import numpy as np
from pyctcdecode import build_ctcdecoder

from rescorer import Rescorer, Weights
from rescorer.recognisers import from_pyctcdecode

LETTERS = ["", *" abcdefghijklmnopqrstuvwxyz"]
"""What the model can print; the first is CTC's blank."""
BEAMS = 50
WEIGHTS = Weights("letters", streams={"acoustic": 1.0})
"""The log-probability of the letters counts as much as that of the words."""


def make_logits(sentence: str, doubts: dict[int, tuple[str, float]]) -> np.ndarray:
    """Make the log-probabilities of a CTC model that is sure of most letters, (T, letters) float64.

    Args:
        doubts: by the position of a letter, the letter that it may be instead, and with which probability.
    """
    rows = []
    for position, letter in enumerate(sentence):
        row = np.full(len(LETTERS), 1e-4)
        other, share = doubts.get(position, (letter, 0.0))
        row[LETTERS.index(letter)] += 1.0 - share
        row[LETTERS.index(other)] += share
        blank = np.full(len(LETTERS), 1e-4)
        blank[0] = 1.0
        rows += [row / row.sum(), blank / blank.sum()]  # the blank keeps equal letters apart
    return np.log(np.array(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", default="models/starter/1", help="folder of a bundle")
    options = parser.parse_args()
    logits = make_logits("the see was calm", {6: ("a", 0.45), 9: ("e", 0.2)})
    beams = build_ctcdecoder(LETTERS).decode_beams(logits, beam_width=BEAMS)
    (nbest,) = from_pyctcdecode(beams, ids="u1")
    (answer,) = Rescorer.load(options.bundle).rescore(nbest, WEIGHTS)
    print(f"first pass  {nbest.hypotheses[0].text}")
    print(f"rescored    {answer.best.text}")


if __name__ == "__main__":
    main()

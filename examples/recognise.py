"""Recognise a wav file with PocketSphinx, and have its n-best list and its lattice re-ranked by a server.

    pip install pocketsphinx
    rescorer serve --bundle models/starter/1 &
    python examples/recognise.py speech.wav --server 127.0.0.1:50051

The file is mono, 16 bits, 16 kHz. PocketSphinx's own English models do the first pass; the server's bundle
needs the weights called ``pocketsphinx``, as the starter bundle has them.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import wave
from itertools import islice
from pathlib import Path

from pocketsphinx import Decoder

from rescorer import Hypothesis, NBestList, RescoredList, Weights
from rescorer.client import Client
from rescorer.formats.lattices.htk import read_lists

SAMPLE_RATE_HZ = 16_000
SCORE_UNIT = 1024
"""PocketSphinx keeps scores divided by so much, so that they fit in integers."""
DEPTH = 100
LATTICE_DEPTH = 1000
"""The lattice's paths are chosen by their sound alone, so that the right one may be far down."""
WITH_TOTALS = Weights("totals", streams={"first_pass": 1.0}, lm={"mixture": 4.0})
"""The n-best list has one score, with PocketSphinx's own language model in it: the server's is added."""


def recognised(path: Path) -> Decoder:
    """The decoder after it has heard the file."""
    with wave.open(str(path)) as speech:
        shape = speech.getnchannels(), speech.getsampwidth(), speech.getframerate()
        if shape != (1, 2, SAMPLE_RATE_HZ):
            sys.exit(f"{path}: {shape} channels, bytes and Hz; expected {(1, 2, SAMPLE_RATE_HZ)}")
        samples = speech.readframes(speech.getnframes())
    decoder = Decoder(samprate=SAMPLE_RATE_HZ, loglevel="FATAL")
    decoder.start_utt()
    decoder.process_raw(samples, full_utt=True)
    decoder.end_utt()
    if decoder.hyp() is None:
        sys.exit(f"{path}: nothing was recognised")
    return decoder


def nbest_of(decoder: Decoder, name: str) -> NBestList:
    """The distinct sentences of PocketSphinx's own list, with their totals in nats."""
    totals: dict[str, float] = {}
    for each in islice(decoder.nbest(), DEPTH):
        if each.hypstr and each.score > 0:
            totals.setdefault(each.hypstr, SCORE_UNIT * math.log(each.score))
    return NBestList(name, tuple(map(Hypothesis, totals)), {"first_pass": tuple(totals.values())})


def lattice_of(decoder: Decoder, name: str) -> NBestList:
    """The best sentences of the lattice, with their acoustic scores; PocketSphinx writes it as HTK does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.slf"
        decoder.get_lattice().write_htk(str(path))
        (nbest,) = read_lists(path, depth=LATTICE_DEPTH)
    if not isinstance(nbest, NBestList):
        raise nbest
    return nbest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wav", type=Path)
    parser.add_argument("--server", default="127.0.0.1:50051", help="host:port, several with commas")
    options = parser.parse_args()
    decoder = recognised(options.wav)
    name = options.wav.stem
    print(f"first pass  {decoder.hyp().hypstr}")
    with Client(options.server) as client:
        client.wait_ready()
        (from_list,) = client.rescore([nbest_of(decoder, name)], WITH_TOTALS)
        (from_lattice,) = client.rescore([lattice_of(decoder, name)], "pocketsphinx")
    for what, answer in (("list", from_list), ("lattice", from_lattice)):
        if not isinstance(answer, RescoredList):
            raise answer
        print(f"{what:<10}  {answer.best.text}")


if __name__ == "__main__":
    main()

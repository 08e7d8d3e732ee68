"""Recognise a WAV file with PocketSphinx and rescore its n-best list and its lattice with a server.

    pip install pocketsphinx
    rescorer serve --bundle models/starter/1 &
    python examples/recognise.py speech.wav --server 127.0.0.1:50051
    python examples/recognise.py speech.wav --phrases contacts.txt

The WAV file must be mono, 16-bit, 16 kHz. The first pass uses PocketSphinx's own English models. The server's
bundle must have a weights set called ``pocketsphinx``, like the starter bundle. ``--phrases`` names a file
with an expected name on each line, such as contacts; hypotheses that have one of them get a credit.
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

from rescorer import Hypothesis, NBestList, Weights
from rescorer.client import Client
from rescorer.formats.lattices import read_lists
from rescorer.phrases import read_phrase_file

SAMPLE_RATE_HZ = 16_000
SCORE_SCALE = 1024
"""PocketSphinx divides scores by this number so that they fit in integers."""
MAX_NBEST_HYPOTHESES = 100
MAX_LATTICE_HYPOTHESES = 1000
"""Large, because paths are ranked by acoustic score only, so the best path overall may be far down the
list."""
NBEST_WEIGHTS = Weights("totals", streams={"first_pass": 1.0}, lm={"mixture": 4.0})
"""PocketSphinx's n-best list has one score, which includes its own language model; the server's models are
added."""


def recognise(path: Path) -> Decoder:
    """Decode the file; return the decoder, which holds the results."""
    with wave.open(str(path)) as speech:
        channels, sample_bits = speech.getnchannels(), 8 * speech.getsampwidth()
        rate_hz = speech.getframerate()
        if (channels, sample_bits, rate_hz) != (1, 16, SAMPLE_RATE_HZ):
            sys.exit(
                f"{path}: expected 1 channel, 16 bits and {SAMPLE_RATE_HZ} Hz, "
                f"got {channels} channels, {sample_bits} bits and {rate_hz} Hz"
            )
        samples = speech.readframes(speech.getnframes())
    decoder = Decoder(samprate=SAMPLE_RATE_HZ, loglevel="FATAL")
    decoder.start_utt()
    decoder.process_raw(samples, full_utt=True)
    decoder.end_utt()
    if decoder.hyp() is None:
        sys.exit(f"{path}: nothing was recognised")
    return decoder


def read_nbest(decoder: Decoder, name: str) -> NBestList:
    """Read the distinct hypotheses of PocketSphinx's n-best list with their total scores in nats."""
    totals: dict[str, float] = {}
    for hypothesis in islice(decoder.nbest(), MAX_NBEST_HYPOTHESES):
        if hypothesis.hypstr and hypothesis.score > 0:
            totals.setdefault(hypothesis.hypstr, SCORE_SCALE * math.log(hypothesis.score))
    return NBestList(name, tuple(map(Hypothesis, totals)), {"first_pass": tuple(totals.values())})


def read_lattice(decoder: Decoder, name: str) -> NBestList:
    """Read the best hypotheses of the lattice with their acoustic scores, through a file in HTK's format."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.slf"
        decoder.get_lattice().write_htk(str(path))
        (nbest,) = read_lists(path, depth=MAX_LATTICE_HYPOTHESES)
    if not isinstance(nbest, NBestList):
        raise nbest
    return nbest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wav", type=Path, help="WAV file to recognise")
    parser.add_argument(
        "--server", default="127.0.0.1:50051", help="host:port, or several separated by commas"
    )
    parser.add_argument("--phrases", type=Path, help="file of expected names and phrases, one per line")
    options = parser.parse_args()
    phrases = read_phrase_file(options.phrases) if options.phrases else ()
    decoder = recognise(options.wav)
    name = options.wav.stem
    print(f"first pass  {decoder.hyp().hypstr}")
    with Client(options.server) as client:
        client.wait_ready()
        (from_list,) = client.rescore(read_nbest(decoder, name), NBEST_WEIGHTS, phrases=phrases)
        (from_lattice,) = client.rescore(read_lattice(decoder, name), "pocketsphinx", phrases=phrases)
    for source, answer in (("list", from_list), ("lattice", from_lattice)):
        print(f"{source:<10}  {answer.best.text}")


if __name__ == "__main__":
    main()

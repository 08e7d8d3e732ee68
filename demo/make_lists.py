"""Owns the making of the demo's lists: sentences → speech → lattices → n-best lists with two scores.

    python demo/make_lists.py --arpa first-pass.arpa.gz -o demo/lists.jsonl.gz

Needs flite on the PATH and the package pocketsphinx; README.md, beside this file, says what comes out.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import tempfile
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import kenlm
import numpy as np
from lattices import Candidate, n_best
from tqdm import tqdm

from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.evaluation.error_rate.oracle import evaluate_list
from rescorer.formats.lattices.htk import read_lattice
from rescorer.formats.lattices.lattice import Lattice
from rescorer.formats.nbest.jsonlines_output import encode_list
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList

if TYPE_CHECKING:
    from pocketsphinx import Decoder

HERE = Path(__file__).resolve().parent
SAMPLE_RATE_HZ = 16_000


@dataclass(frozen=True, slots=True)
class Voice:
    """How a speaker of the demo sounds."""

    name: str
    """What flite calls the voice."""
    stretch: float
    """Duration, relative to the voice's own."""
    snr_db: float
    """Level of the speech above the noise; the voices do not bear it equally well."""


VOICES = {
    "awb-fast": Voice("awb", 0.85, 31.0),
    "awb-slow": Voice("awb", 1.15, 31.0),
    "kal16-fast": Voice("kal16", 0.85, 27.0),
    "kal16-slow": Voice("kal16", 1.15, 24.0),
    "rms-fast": Voice("rms", 0.85, 28.0),
    "rms-slow": Voice("rms", 1.15, 28.0),
    "slt-fast": Voice("slt", 0.85, 32.0),
    "slt-slow": Voice("slt", 1.15, 32.0),
}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One line of sentences.tsv; ``group`` is the key of the voice that speaks it."""

    id: str
    group: str
    text: str


def read_sentences(path: Path) -> list[Sentence]:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    if header != "id\tgroup\ttext":
        sys.exit(f"{path}:1: expected the columns id, group, text; found {header!r}")
    return [Sentence(*line.split("\t")) for line in lines]


def synthesise(text: str, voice: Voice) -> np.ndarray:
    """Speech of ``text``: (n_samples,) int16 at 16 kHz, the rate of these voices."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        settings = ["-voice", voice.name, "--setf", f"duration_stretch={voice.stretch}"]
        subprocess.run(["flite", *settings, "-t", text, "-o", file.name], check=True)
        with wave.open(file.name) as speech:
            if (rate := speech.getframerate()) != SAMPLE_RATE_HZ:
                sys.exit(f"flite's voice {voice.name} speaks at {rate} Hz; expected {SAMPLE_RATE_HZ}")
            return np.frombuffer(speech.readframes(speech.getnframes()), np.int16)


def with_noise(samples: np.ndarray, snr_db: float, rng: np.random.Generator) -> np.ndarray:
    """Adds white noise ``snr_db`` below the speech, without which these voices are too easy."""
    signal = samples.astype(np.float64)
    deviation = np.sqrt(np.mean(signal**2)) * 10 ** (-snr_db / 20)
    noisy = signal + rng.normal(0.0, deviation, size=signal.shape)
    return np.clip(np.rint(noisy), -32768, 32767).astype(np.int16)


def recogniser(arpa: Path) -> Decoder:
    """PocketSphinx with its own acoustic model and dictionary, and our n-gram."""
    from pocketsphinx import Decoder  # here, because the tests of the lattice do without it

    return Decoder(lm=str(arpa), samprate=SAMPLE_RATE_HZ, loglevel="FATAL")


def recognise(decoder: Decoder, samples: np.ndarray) -> Lattice:
    """The lattice of one utterance, which PocketSphinx writes in HTK's standard lattice format."""
    decoder.reinit_feat()  # forgets the noise of utterances before: a list does not depend on its company
    decoder.start_utt()
    decoder.process_raw(samples.tobytes(), full_utt=True)
    decoder.end_utt()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lattice.slf"
        decoder.get_lattice().write_htk(str(path))
        return read_lattice(path)[0]


def nbest_list(sentence: Sentence, candidates: Sequence[Candidate]) -> NBestList:
    """The list of one utterance; scores in nats, as many digits as mean anything."""
    return NBestList(
        id=sentence.id,
        hypotheses=tuple(Hypothesis(" ".join(each.words[:-1])) for each in candidates),
        streams={
            "acoustic": tuple(round(each.acoustic, 3) for each in candidates),
            "lm": tuple(round(each.lm, 4) for each in candidates),
        },
        reference=sentence.text,
        group=sentence.group,
    )


def make_lists(sentences: Sequence[Sentence], arpa: Path, depth: int, seed: int) -> Iterator[NBestList]:
    """Speaks, recognises and expands each sentence; every utterance has noise of its own."""
    model = kenlm.Model(str(arpa))
    decoder = recogniser(arpa)
    for number, sentence in enumerate(tqdm(sentences, unit=" sentences")):
        voice = VOICES[sentence.group]
        samples = with_noise(
            synthesise(sentence.text, voice), voice.snr_db, np.random.default_rng((seed, number))
        )
        yield nbest_list(sentence, n_best(recognise(decoder, samples), model, depth))


def report(lists: Sequence[NBestList]) -> str:
    """Word error rates of each speaker and of all: first hypothesis, and best of each list."""
    words = Normaliser().words
    evaluated = [evaluate_list(each, words) for each in lists]
    lines = [f"{'':<12}{'lists':>6}{'words':>7}{'1-best WER':>12}{'oracle WER':>12}"]
    for group in (*sorted({each.group for each in evaluated}), "all"):
        chosen = [each for each in evaluated if group in ("all", each.group)]
        first = sum((each.system for each in chosen), WordErrors.zero())
        oracle = sum((each.oracle for each in chosen), WordErrors.zero())
        rates = f"{first.rate:>12.2%}{oracle.rate:>12.2%}"
        lines.append(f"{group:<12}{len(chosen):>6}{first.reference_words:>7}{rates}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the demo's n-best lists.")
    parser.add_argument("--arpa", type=Path, required=True, help="n-gram of the first pass, ARPA or ARPA.gz")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "lists.jsonl.gz")
    parser.add_argument("--depth", type=int, default=50, help="hypotheses a list")
    parser.add_argument("--seed", type=int, default=1, help="of the noise")
    options = parser.parse_args()
    sentences = read_sentences(HERE / "sentences.tsv")
    lists = list(make_lists(sentences, options.arpa, options.depth, options.seed))
    text = "".join(f"{encode_list(each)}\n" for each in lists)
    # No time stamp: the same lists give the same bytes.
    options.output.write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))
    print(report(lists))


if __name__ == "__main__":
    main()

"""Make the demo's n-best lists: synthesise sentences, recognise them, and expand the lattices.

    python demo/make_lists.py --arpa first-pass.arpa.gz -o demo/lists.jsonl.gz

Needs the program flite, and the packages pocketsphinx and kenlm. README.md in this folder describes the
result.
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

import numpy as np
from lattices import Candidate, n_best
from tqdm import tqdm

from rescorer.evaluation.error_rate import WordErrors
from rescorer.evaluation.list_errors import evaluate_list
from rescorer.formats.jsonlines import encode_list
from rescorer.formats.lattices import Lattice, read_lattice
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList

if TYPE_CHECKING:
    from pocketsphinx import Decoder

HERE = Path(__file__).resolve().parent
SAMPLE_RATE_HZ = 16_000


@dataclass(frozen=True, slots=True)
class Voice:
    """A synthetic speaker."""

    name: str
    """flite's name of the voice."""
    stretch: float
    """Duration relative to the voice's normal speed."""
    snr_db: float
    """Signal-to-noise ratio in dB; chosen per voice, because noise affects their recognition differently."""


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
    """One line of sentences.tsv; ``group`` is the key of its voice in ``VOICES``."""

    id: str
    group: str
    text: str


def read_sentences(path: Path) -> list[Sentence]:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    if header != "id\tgroup\ttext":
        sys.exit(f"{path}:1: expected the columns id, group, text; got {header!r}")
    return [Sentence(*line.split("\t")) for line in lines]


def synthesise(text: str, voice: Voice) -> np.ndarray:
    """Synthesise speech at 16 kHz: (n_samples,) int16."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        settings = ["-voice", voice.name, "--setf", f"duration_stretch={voice.stretch}"]
        subprocess.run(["flite", *settings, "-t", text, "-o", file.name], check=True)
        with wave.open(file.name) as speech:
            if (rate := speech.getframerate()) != SAMPLE_RATE_HZ:
                sys.exit(f"flite's voice {voice.name}: expected {SAMPLE_RATE_HZ} Hz, got {rate} Hz")
            return np.frombuffer(speech.readframes(speech.getnframes()), np.int16)


def add_noise(samples: np.ndarray, snr_db: float, rng: np.random.Generator) -> np.ndarray:
    """Add white noise ``snr_db`` below the speech; without noise, recognition is too easy."""
    signal = samples.astype(np.float64)
    deviation = np.sqrt(np.mean(signal**2)) * 10 ** (-snr_db / 20)
    noisy = signal + rng.normal(0.0, deviation, size=signal.shape)
    return np.clip(np.rint(noisy), -32768, 32767).astype(np.int16)


def load_recogniser(arpa: Path) -> Decoder:
    """Load PocketSphinx with its own acoustic model and dictionary, and the given n-gram model."""
    from pocketsphinx import Decoder  # not at the top, so that tests of the lattice search do not need it

    return Decoder(lm=str(arpa), samprate=SAMPLE_RATE_HZ, loglevel="FATAL")


def recognise(decoder: Decoder, samples: np.ndarray) -> Lattice:
    """Recognise one utterance; return its lattice, read from the HTK file that PocketSphinx writes."""
    decoder.reinit_feat()  # reset the noise estimate, so that lists do not depend on earlier utterances
    decoder.start_utt()
    decoder.process_raw(samples.tobytes(), full_utt=True)
    decoder.end_utt()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lattice.slf"
        decoder.get_lattice().write_htk(str(path))
        return read_lattice(path)[0]


def make_list(sentence: Sentence, candidates: Sequence[Candidate]) -> NBestList:
    """Make the list of one utterance; scores are in nats, rounded to meaningful digits."""
    return NBestList(
        id=sentence.id,
        hypotheses=tuple(Hypothesis(" ".join(candidate.words[:-1])) for candidate in candidates),
        streams={
            "acoustic": tuple(round(candidate.acoustic, 3) for candidate in candidates),
            "lm": tuple(round(candidate.lm, 4) for candidate in candidates),
        },
        reference=sentence.text,
        group=sentence.group,
    )


def make_lists(sentences: Sequence[Sentence], arpa: Path, depth: int, seed: int) -> Iterator[NBestList]:
    """Synthesise, recognise and expand each sentence; each utterance has its own noise."""
    import kenlm

    model = kenlm.Model(str(arpa))
    decoder = load_recogniser(arpa)
    for number, sentence in enumerate(tqdm(sentences, unit=" sentences")):
        voice = VOICES[sentence.group]
        samples = add_noise(
            synthesise(sentence.text, voice), voice.snr_db, np.random.default_rng((seed, number))
        )
        yield make_list(sentence, n_best(recognise(decoder, samples), model, depth))


def format_report(lists: Sequence[NBestList]) -> str:
    """Format a table of 1-best and oracle word error rates, per speaker and overall."""
    words = Normaliser().normalise
    evaluated_lists = [evaluate_list(nbest, words) for nbest in lists]
    lines = [f"{'':<12}{'lists':>6}{'words':>7}{'1-best WER':>12}{'oracle WER':>12}"]
    for group in (*sorted({evaluated.group for evaluated in evaluated_lists}), "all"):
        chosen = [evaluated for evaluated in evaluated_lists if group in ("all", evaluated.group)]
        first = sum((evaluated.system for evaluated in chosen), WordErrors.zero())
        oracle = sum((evaluated.oracle for evaluated in chosen), WordErrors.zero())
        rates = f"{first.rate:>12.2%}{oracle.rate:>12.2%}"
        lines.append(f"{group:<12}{len(chosen):>6}{first.reference_words:>7}{rates}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the demo's n-best lists.")
    parser.add_argument(
        "--arpa", type=Path, required=True, help="n-gram model of the first pass (.arpa or .arpa.gz)"
    )
    parser.add_argument("-o", "--output", type=Path, default=HERE / "lists.jsonl.gz", help="file to write")
    parser.add_argument("--depth", type=int, default=50, help="maximum number of hypotheses per list")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the noise")
    options = parser.parse_args()
    sentences = read_sentences(HERE / "sentences.tsv")
    lists = list(make_lists(sentences, options.arpa, options.depth, options.seed))
    text = "".join(f"{encode_list(nbest)}\n" for nbest in lists)
    # Without a time stamp, so that the same lists give the same bytes.
    options.output.write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))
    print(format_report(lists))


if __name__ == "__main__":
    main()

"""Define what is fuzzed: the readers of all formats, references and bundles, with valid files as seeds.

Whatever bytes it reads, a reader must yield only consistent lists and errors of this project. ``Target.run``
checks this. Hypothesis (``test_any_bytes.py``) and atheris (``readers.py``) search for bytes that violate it.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rescorer.errors import InputError, InvalidList, RescorerError
from rescorer.evaluation.error_rate import MAX_READINGS, expand_alternations, parse_alternations
from rescorer.formats.io.text_io import read_lines
from rescorer.formats.jsonlines import encode_list
from rescorer.formats.nist import read_groups, read_recordings, read_references, read_segments
from rescorer.formats.registry import FORMATS, choose, detect
from rescorer.models.arpa import has_arpa_header, read_arpa
from rescorer.models.bundle import read_manifest, read_normaliser
from rescorer.models.network_files import (
    NETWORK_FILES,
    NetworkConfig,
    parameter_shapes,
    read_config,
    read_vocabulary,
)
from rescorer.models.ngram_files import read_kenlm_header
from rescorer.reranking.reranker import RERANKER_FILES, read_reranker, write_reranker
from rescorer.safe_input import Folder, open_regular
from rescorer.text import NormaliserSettings
from rescorer.types import Hypothesis, NBestList, Weights
from rescorer.weights import parse_weights, weights_to_dict
from tests.support.format_samples import CHOICES_WITH_OPTIONS, FILES, FOLDERS
from tests.support.hostile_bundles import KENLM_BINARY
from tests.support.tiny_models import ARPA
from tests.support.tiny_rerankers import random_reranker

MANIFEST_TEXT = {
    "schema": 1,
    "name": "tiny",
    "version": 1,
    "models": {
        "ngram": {"kind": "ngram", "path": "ngram/model.bin", "words": "ngram/words.txt"},
        "neural": {"kind": "neural", "path": "neural"},
    },
    "files": dict.fromkeys(
        ("ngram/model.bin", "ngram/words.txt", *(f"neural/{name}" for name in NETWORK_FILES)), "0" * 64
    ),
}
JSON_MEMORY_PER_BYTE = 400
"""Memory of the shortest JSON values, ``{}``, and of the lists that check their depth."""


def read_network(folder: Path) -> Iterator[object]:
    """Read the files of a network, as far as this is possible without torch."""
    files = Folder(folder)
    yield read_vocabulary(files, read_config(files))


def read_ngram(folder: Path) -> Iterator[object]:
    """Read an ARPA file, or the header of a KenLM binary."""
    with open_regular(folder / "u1") as stream:
        yield read_arpa(stream) if has_arpa_header(stream) else read_kenlm_header(stream)


def read_settings(folder: Path) -> Iterator[object]:
    """Read a normaliser and a weights set."""
    yield read_normaliser(folder / "text.json")
    yield parse_weights(Folder(folder).read_json("weights.json"))


def read_one_reranker(folder: Path) -> Iterator[object]:
    yield read_reranker(Folder(folder), "mine")


def read_manifest_file(folder: Path) -> Iterator[object]:
    yield read_manifest(folder)


def build_network_files() -> tuple[bytes, ...]:
    """Build the contents of ``NETWORK_FILES`` for a tiny network whose parameters are all 0."""
    config = NetworkConfig(5, (4,), embedding_size=2, hidden_size=2)
    header, end = {}, 0
    for name, shape in parameter_shapes(config).items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    weights = len(text).to_bytes(8, "little") + text + bytes(end)
    return json.dumps(config.to_dict()).encode(), weights, b"</s>\n<unk>\na\nb\n<s>\n"


def build_reranker_files() -> tuple[bytes, ...]:
    """Build the contents of ``RERANKER_FILES`` for a tiny perceptron."""
    base = Weights("base", {"acoustic": 1.0}, {"mixture": 1.0}, mixture={"ngram": 1.0})
    reranker = random_reranker("mine", base, units=2, members=1, features=("total", "distance:2"))
    with tempfile.TemporaryDirectory() as folder:
        write_reranker(reranker, Path(folder))
        return tuple((Path(folder) / name).read_bytes() for name in RERANKER_FILES)


SETTINGS = (
    NormaliserSettings().to_json().encode(),
    json.dumps(
        weights_to_dict(Weights("w", {"am": 1.0}, {"mixture": 2.0}, 0.5, -1.0, {"a": 1.0}, ("f",)))
    ).encode(),
)
Seeds = tuple[Callable[[Path], Iterator[object]], tuple[str, ...], list[tuple[bytes, ...]]]
SEEDS: dict[str, Seeds] = {
    "bundle-manifest": (read_manifest_file, ("manifest.json",), [(json.dumps(MANIFEST_TEXT).encode(),)]),
    "bundle-settings": (read_settings, ("text.json", "weights.json"), [SETTINGS]),
    "bundle-network": (read_network, NETWORK_FILES, [build_network_files()]),
    "bundle-reranker": (read_one_reranker, RERANKER_FILES, [build_reranker_files()]),
    "bundle-ngram": (read_ngram, ("u1",), [(ARPA.encode(),), (KENLM_BINARY,)]),
}
"""Reader, files and valid contents of each target."""


SEPARATOR = b"\x1c"
"""Separator of the files of a target that reads several files: the file separator of ASCII."""
MAX_PATHS = 2000
"""Limit on the search of a lattice, since its memory does not depend on the size of the file."""
CHOICES = CHOICES_WITH_OPTIONS | {
    "alternatives": "alternatives:score=score,base=e",
    "htk": f"htk:max_paths={MAX_PATHS}",
    "kaldi-lattice": f"kaldi-lattice:max_paths={MAX_PATHS}",
}
FILE_NAMES = {
    "kaldi": ("words_text", "acwt", "lmwt"),
    "espnet2": ("1best_recog/text", "1best_recog/score", "2best_recog/text", "2best_recog/score"),
    "htk": ("u1.slf",),
}
"""File names for formats that are folders or depend on file names. Other formats have one file, ``u1``."""
ODD_BYTES = (
    *(b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"\r", b"\t", b" ", b'"', b"{", b"[", b"-", b"=", b"_"),
    *(b"nan", b"inf", b"1e999", b"tensor(-12.9)", b"null", b"9" * 30, b"9" * 5000, b"\\ud800"),
)
"""Bytes that are inserted into valid files to damage them."""
MAX_TOKEN_BYTES = 40


@dataclass(frozen=True, slots=True)
class Target:
    """A reader, the files that it reads from a folder, and valid examples of these files."""

    name: str
    read: Callable[[Path], Iterable[object]]
    """Reads the files in a folder."""
    seeds: tuple[bytes, ...]
    """Examples: the contents of all files, joined by ``SEPARATOR``."""
    files: tuple[str, ...] = ("u1",)
    """Paths of the files in the folder."""
    memory_per_byte: int = 200
    """Maximum number of bytes of memory per byte of input.

    A short word takes 25 per byte; a line ``u 1 1 1 a`` with scores by name takes 180.
    """

    @property
    def tokens(self) -> list[bytes]:
        """Dictionary of the fuzzer: words, numbers and punctuation of the seeds, and unusual bytes."""
        found = {token for seed in self.seeds for token in re.findall(rb"[\w.]+|[^\w\s]+", seed)}
        return sorted(token for token in {*found, *ODD_BYTES} if 0 < len(token) <= MAX_TOKEN_BYTES)

    def run(self, data: bytes, folder: Path) -> None:
        """Read ``data`` as the files of the target.

        Raises:
            AssertionError: If a list is inconsistent.
            Exception: If the reader fails with an error that is not one of this project.
        """
        parts = data.split(SEPARATOR, len(self.files) - 1)
        for file, part in zip(self.files, parts, strict=False):
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(part)
        for file in self.files[len(parts) :]:
            (folder / file).unlink(missing_ok=True)
        with suppress(RescorerError):
            for outcome in self.read(folder):
                _check_outcome(outcome)


def _check_outcome(outcome: object) -> None:
    if isinstance(outcome, NBestList):
        assert outcome.id
        assert outcome.hypotheses
        assert all(len(values) == len(outcome.hypotheses) for values in outcome.streams.values())
        encode_list(outcome).encode()  # a list that was read can be written
    elif isinstance(outcome, InputError):
        str(outcome).encode()


def _build_reader(name: str) -> Callable[[Path], Iterable[object]]:
    choice = choose(CHOICES.get(name, name))
    files = FILE_NAMES.get(name, ("u1",))
    return lambda folder: choice.read(folder / files[0] if len(files) == 1 else folder)


def _detect(folder: Path) -> Iterator[object]:
    assert detect(folder / "u1")[0] in FORMATS
    yield None


def _read_alternations(folder: Path) -> Iterator[object]:
    for _, text in read_lines(folder / "u1"):
        with suppress(InvalidList):
            yield parse_alternations(str(text))
            yield expand_alternations(str(text))


LISTS = (
    NBestList(
        "u1",
        (
            Hypothesis(
                "yeah wéll", {"nwords": 2, "words": [{"word": "yeah", "start_s": 0.5, "duration_s": 1}]}
            ),
            Hypothesis(""),
        ),
        {
            "acoustic": (-310.25, -311.5),
            "lm": (-12.0, 0.5),
            "first_pass": (-1.5, -2.5),
            "graph": (-3.0, 4e20),
        },
        reference="yeah { well / @ }",
        group="spk",
        context="so",
    ),
    NBestList("u2", (Hypothesis("a b"), Hypothesis("a b c")), {"first_pass": (-1e-9, -7.0)}),
)
MORE_SEEDS = {
    "jsonl": [
        b'{"format": "rescorer-nbest", "version": 1, "streams": {"am": {"base": "10", "sign": "cost"}}}\n'
        b'{"id": 7, "hypotheses": [{"text": "\\ud83d\\ude00", "scores": {"am": 1.5}, "x": [null, 0]}]}\n'
    ],
    "nbestlist2": [
        b"NBestList2.0\n(-103) yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 ) y ( st: 0.49 et: 0.5 g: 0 a: -1 )"
        b" well-3 ( st: 0.5 et: 0.6 g: 0 a: 0 ) </s> ( st: 1.5 et: 1.9 g: -9 a: -8 )\n"
    ],
    "espnet1": [
        '{"utts": {"u1": {"output": [{"name": "target1[1]", "rec_text": "▁HE LLO<eos>", "text": "HELLO", '
        '"score": "tensor(-12.9, device=\'cuda:0\')"}], "utt2spk": "s"}}}'.encode()
    ],
    "espnet2": [b"u1 HE\nu2 A\n\x1cu1 tensor(-1.5)\nu2 -2\n\x1cu1 H\n\x1cu1 -3\n"],
    "alternatives": [
        b'{"NBest": [{"Confidence": 0.9, "Lexical": "a b", "Display": "A."}], "RequestId": "r"}\n'
        b'{"choices": [{"text": "a"}, {"message": {"content": "b"}, "score": -1}]}\n',
        b'[[{"text": "a", "nbest": [{"hyp": "a b", "score": -45.7}]}], {"results": [{"alternatives": []}]}]',
    ],
    "whisper": [
        b'{"segments": [{"id": 3, "text": " a", "tokens": [1, 2], "avg_logprob": -0.5}, {"text": "", '
        b'"nbest": [{"text": "a", "avg_logprob": -1}, {"text": "b", "avg_logprob": null}]}]}\n[{"text": 1}]',
        b'{"transcription": [\n{"offsets": {"from": 0, "to": 9}, "text": " a", "tokens": [{"p": 0.9}]}]}\n',
        b'[\n{"id": 1, "seek": 0, "text": "a", "words": [{"word": "a", "start": 0.5}]},\n{}]',
    ],
    "cued": [b"u1 -1 -2 1 <s> a </s>\nu1 -3 -4 0 <s> </s>\nu2 nan 1e5 7\n"],
    "table": [
        b'id\ttext\trank\tscores.am\treference\nu1\t"a ""b""\n c\t"\t2\t-1.5\tr\n'
        b'u1\t"a\t1\t-2\t\nu2\t\t1\t\t\n',
        b"u1\ttwo be\t-1\nu1\tto be\t-2\nu2\tx\t-3\n",
        b'{"id": "u1", "text": "a", "score": -1}\n{"id": "u1", "text": "b", "score": null}\n',
        b"utt;hyp;confidence\nu1;a;0.5\n\nu1;b;0\n",
    ],
    "icefall": [
        b"u-1:\tref=a b\nu-1:\thyp=['\\u00e4', \"b'\\\\\"]\nu-1:\ttimestamp_hyp=[0.0]\nu-2:\thyp=[]\n"
    ],
    "fairseq": [b"2020 | INFO | x\nH-1\t-0.5\ta b\nP-1\t-0.5 nan\nH-1\t-1\tc\nT-2\tx\nGenerate test\n"],
    "kaldi-text": [b"u-1 a b\nu-2\n"],
    "lines": [b"a b\n\nc\n"],
    "paragraphs": [b"a b\na\n\n\nc\n"],
    "mikolov": [b"u1 a b\nu1 a\nu2\n"],
    "htk": [
        b'VERSION=1.1 base=10 lmscale=2.0\nwdpenalty=-0.5 start=2 end=0 UTTERANCE="a b"\nNODES=3 L=4\nI=2\n'
        b'I=1 t=0.4\nI=0 t=0.9 W="a \\"s"\nJ=0 S=2 E=1 W=a v=1 a=-1 l=-0.5 r=-0.1\nJ=1 S=2 E=1 W=!NULL\n'
        b"J=2 S=1 E=0 W='em a=-2 l=-1\nJ=3 S=1 E=0 WORD=\\303\\274ber acoustic=-3 language=-0.25\n",
        b"VERSION=1.0 base=0\nN=3 L=3\nI=0 W=a\nI=1\nI=2\nJ=0 S=0 E=2 a=.5\nJ=1 S=1 E=2\nJ=2 S=0 E=1 a=1\n",
    ],
    "kaldi-lattice": [
        b"s-u1 \n2\t0\tso\t1.5,100,3_3_4\n2\t7\t<eps>\t0.25,90,\n0\t7\tpear\t2,40.5,5\n0\t7\tpair\t1,42,6\n"
        b"7\t0,1,7\n\nu2\n0 1 <s> 0,0,\n1 2 tree\n2\n1 3,1.25,\n\n"
    ],
    "ctm": [b";; x\nu1 A 0.5 0.25 yeah 0.9 lex\nu1 A 0.75 1e-1 well NA\nu1 B 1 2 a\n"],
}
"""Further valid files, besides the minimal ones and the output of the writers."""
STM = (
    b';; CATEGORY "0" "" ""\nu1 A spk 0.5 1.25 <o,f0> yeah { well / @ } (um)\n'
    b"u1 B x 2 3 IGNORE_TIME_SEGMENT_IN_SCORING\n"
)
TRN = b"{ uh / { a / @ } } yes (s_u1)\n;; no\n (u 2)\n"


def _build_seeds(name: str) -> tuple[bytes, ...]:
    """Return valid files of a format: minimal, from its writer, handwritten, and one compressed."""
    found = [FILES[name].encode()] if name in FILES else []
    if name in FILE_NAMES and name in FOLDERS:
        found.append(SEPARATOR.join(text.encode() for text in FOLDERS[name].values()))
    choice = choose(CHOICES_WITH_OPTIONS.get(name, name))
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary) / "out"
        with choice.writer(target) as write:
            for nbest in LISTS:
                with suppress(InvalidList):
                    write(nbest)
        files = [target / file for file in FILE_NAMES.get(name, ("u1",))] if target.is_dir() else [target]
        found.append(SEPARATOR.join(file.read_bytes() for file in files if file.is_file()))
    found += MORE_SEEDS.get(name, [])
    return (*found, gzip.compress(found[-1]))


TARGETS = {
    target.name: target
    for target in (
        *(
            Target(name, _build_reader(name), _build_seeds(name), FILE_NAMES.get(name, ("u1",)))
            for name in FORMATS
        ),
        Target(
            "srilm-scores",
            lambda folder: choose(f"srilm:scores=rnn={folder / 'rnn'}").read(folder / "u1"),
            (FILES["srilm"].encode() + SEPARATOR + b"-1\n2.5e0\n",),
            ("u1", "rnn/u1"),
        ),
        Target(
            "kaldi-lattice-words",
            lambda folder: choose(f"{CHOICES['kaldi-lattice']},words={folder / 'words'}").read(folder / "u1"),
            (b"u1\n0 1 7 3.5,14,2_4\n1 0.5,1,\n\n" + SEPARATOR + b"<eps> 0\nyeah 7\n",),
            ("u1", "words"),
        ),
        Target(
            "references",
            lambda folder: read_references(folder / "u1"),
            (
                TRN,
                b"u1\ta b\t9\nu2\t\n",
                b'{"id": "u1", "reference": "a"}\n{"id": "u2", "reference": ""}\n',
                b'[{"id": "u1",\n"reference": "a"}, {"id": "u2", "reference": ""}]',
            ),
        ),
        Target("groups", lambda folder: read_groups(folder / "u1"), (b'[{"id": "u1", "speaker": "s"}]\n',)),
        Target("stm-segments", lambda folder: read_segments(folder / "u1"), (STM,)),
        Target("ctm-words", lambda folder: read_recordings(folder / "u1"), tuple(MORE_SEEDS["ctm"])),
        Target(
            "alternations",
            _read_alternations,
            (TRN, b"{ a / b / @ } c { {d/e} / {f} }\n"),
            ("u1",),
            16 * MAX_READINGS,
        ),
        *(
            Target(name, read, tuple(map(SEPARATOR.join, contents)), files, JSON_MEMORY_PER_BYTE)
            for name, (read, files, contents) in SEEDS.items()
        ),
        Target(
            "detect",
            _detect,
            (*map(str.encode, FILES.values()), gzip.compress(b"a (u1)\n")),
        ),
    )
}

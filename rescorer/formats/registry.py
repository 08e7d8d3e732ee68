"""All list formats with their readers and writers, chosen by name or detected from a file.

A user chooses a format as ``NAME`` or ``NAME:OPTION=VALUE,…``. Without a choice, the format is detected from
the beginning of the file; a file that matches several formats, or none, is rejected.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rescorer.errors import ConfigError, FormatError, did_you_mean
from rescorer.formats import (
    delimited,
    espnet,
    json_documents,
    jsonlines,
    kaldi,
    lattices,
    moses,
    nemo,
    nist,
    parquet,
    plain_text,
    speech_services,
    srilm,
)
from rescorer.formats.common import STREAM, ListWriter, parse_finite
from rescorer.formats.fields import NUMBER_KEYS, TIME_KEYS, WORDS_FIELD, suggest_map, suggest_table
from rescorer.formats.io.folders import Lists, Sample, list_entries, name_entries, read_sample
from rescorer.formats.io.text_io import read_lines_strict
from rescorer.formats.nist import find_damaged, read_references
from rescorer.formats.plain_text import KALDI_TEXT, begins_with_ids, choose_reading, suggest_ways
from rescorer.formats.srilm import parse_score_folders
from rescorer.formats.table_layout import DELIMITERS
from rescorer.storage import is_url
from rescorer.types import NBestList

Options = Mapping[str, Callable[[str], Any]]
"""Functions that parse the values of options, by option name; they raise ValueError for an invalid value."""
ALL_PARTS = frozenset({"context", "previous", "phrases", "reference", "group", "fields", "streams"})
"""All parts that a list may have in addition to its id and its texts."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format for n-best lists."""

    name: str
    description: str
    units: str
    """Log base and sign of the scores, and whether the format fixes them."""
    read: Callable[..., Lists]
    looks_like: Callable[[Sample], str]
    """Returns the evidence that a file or folder has this format, or an empty string."""
    writer: Callable[..., ListWriter]
    options: tuple[str, str] = ("", "")
    """Names of the options for reading and for writing, separated by spaces; see ``PARSERS``."""
    suffix: str | tuple[str, ...] = ()
    """Ends of file names, such as ``.csv``. They decide on the format of a file whose content fits none."""
    is_loose: bool = False
    """Whether files of other formats can look like this one. If so, another format that matches wins."""
    is_binary: bool = False
    """Whether files are not text. Such files are not read from a pipe, and not compressed as a whole."""
    is_folder: bool = False
    """Whether the format is written as a folder."""
    reads_folders: bool = False
    """Whether the reader also takes a folder of files, although the format is written as one file."""
    is_numbered: bool = False
    """Whether the format has no ids, so that a list's position in the file becomes its id."""
    parts: AbstractSet[str] = frozenset()
    """Those of ``ALL_PARTS`` that the format can store without restrictions."""
    streams: AbstractSet[str] = frozenset()
    """If the format can store only certain streams, the names of these."""
    stream_prefix: str = ""
    """Prefix of the names of further streams that the format can store; empty if there are none."""
    list_fields: AbstractSet[str] = frozenset()
    """If the format can store only certain fields of lists, the names of these."""
    hypothesis_fields: AbstractSet[str] = frozenset()
    """If the format can store only certain fields of hypotheses, the names of these."""
    word_fields: AbstractSet[str] = frozenset()
    """Keys that the format can store in each object of the hypothesis field ``words``."""
    find_changes: Callable[..., set[str]] | None = None
    """Describes losses in the parts that the format does store, given a list and the write options."""
    stream_option: str = ""
    """Name of the write option that adds streams to the output. The names are the keys of its value."""
    one_best: bool = False
    """Whether the format stores only the first hypothesis of a list."""

    @property
    def read_options(self) -> Options:
        """The options for reading, with the parsers of their values."""
        return {name: PARSERS[name] for name in self.options[0].split()}

    @property
    def write_options(self) -> Options:
        """The options for writing, with the parsers of their values."""
        return {name: PARSERS[name] for name in self.options[1].split()}

    @property
    def takes_folders(self) -> bool:
        """Whether the reader takes a folder as one source."""
        return self.is_folder or self.reads_folders

    def find_losses(self, nbest: NBestList) -> set[str]:
        """Describe the parts of a list that the format cannot hold."""
        present = {
            "context": nbest.context,
            "previous": nbest.previous,
            "phrases": nbest.phrases,
            "reference": nbest.reference is not None,
            "group": nbest.group,
            "fields": nbest.fields.keys() - self.list_fields,
        }
        losses = {part for part, is_present in present.items() if is_present and part not in self.parts}
        if self.one_best and len(nbest.hypotheses) > 1:
            losses.add("hypotheses after the first")
        losses |= {"id"} if self.is_numbered else set()
        if "streams" not in self.parts:
            prefix = self.stream_prefix
            other = (name for name in nbest.streams if not (prefix and name.startswith(prefix)))
            losses |= {f"stream {name}" for name in other if name not in self.streams}
        if "fields" not in self.parts:
            names = {name for hypothesis in nbest.hypotheses for name in hypothesis.fields}
            losses |= {f"hypothesis field {name}" for name in names - self.hypothesis_fields}
            if WORDS_FIELD in self.hypothesis_fields:
                losses |= {f"word field {name}" for name in _collect_word_fields(nbest) - self.word_fields}
        return losses

    def describe_contents(self) -> str:
        """Describe which parts of a list the format can hold, for the table of formats."""
        if self.parts == ALL_PARTS:
            return "everything"
        ids = [] if self.is_numbered else ["ids"]
        texts = "the first text" if self.one_best else "texts"
        streams = "any stream" if "streams" in self.parts else ", ".join(sorted(self.streams))
        streams += f", {self.stream_prefix}*" if self.stream_prefix else ""
        fields = [f"hypothesis field {name}" for name in sorted(self.hypothesis_fields - {WORDS_FIELD})]
        times = ["word times"] if WORDS_FIELD in self.hypothesis_fields else []
        parts = [*sorted(self.parts - {"streams"}), *sorted(self.list_fields)]
        return ", ".join(filter(None, [*ids, texts, streams, *fields, *times, *parts]))


def _collect_word_fields(nbest: NBestList) -> set[str]:
    """Return all keys of the objects in the hypothesis field ``words``."""
    values = (hypothesis.fields.get(WORDS_FIELD) for hypothesis in nbest.hypotheses)
    words = (word for value in values if isinstance(value, list) for word in value if isinstance(word, dict))
    return {name for word in words for name in word}


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """A format with the values of its options, as text."""

    format: Format
    options: Mapping[str, str]

    def read(self, source: str | Path, **further: Any) -> Lists:
        """Read lists in this format with these options.

        Args:
            further: further arguments of the reader, which are not options, such as a ``FieldMap``.

        Raises:
            ConfigError: an option is unknown or its value is invalid.
            FormatError: the source is an object in object storage, from which this format cannot be read.
        """
        if self.format.is_folder and is_url(source):
            message = f"{self.format.name} is read from folders of this machine; copy it to one first"
            raise FormatError(message, file=str(source))
        return self.format.read(source, **self._parse_options(self.format.read_options, "reading"), **further)

    def writer(self, target: str | Path) -> ListWriter:
        """Open an output for lists.

        Raises:
            ConfigError: as for ``read``; or the format is a folder, and the target is a pipe.
        """
        if self.format.is_folder and str(target) == "-":
            raise ConfigError(f"format {self.format.name} is written as a folder and cannot go to a pipe")
        return self.format.writer(target, **self._parse_options(self.format.write_options, "writing"))

    def find_losses(self, nbest: NBestList) -> set[str]:
        """Describe what a list loses in a file that is written with these options.

        Raises:
            ConfigError: an option is unknown or its value is invalid.
        """
        options = self._parse_options(self.format.write_options, "writing")
        further_streams = options.get(self.format.stream_option, ())
        changes = self.format.find_changes(nbest, **options) if self.format.find_changes else set()
        return self.format.find_losses(nbest) - {f"stream {name}" for name in further_streams} | changes

    def _parse_options(self, parsers: Options, purpose: str) -> dict[str, Any]:
        values = {}
        for name, text in self.options.items():
            if name not in parsers:
                message = f"unknown option {name!r} for {purpose}; known: {', '.join(parsers) or 'none'}"
                raise ConfigError(f"{self.format.name}: {message}")
            try:
                values[name] = parsers[name](text)
            except ValueError as error:
                raise ConfigError(f"{self.format.name}: {name}={text!r}: {error}") from None
        return values


def _parse_positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("expected a positive integer")
    return int(text)


def _one_of(values: Mapping[str, Any], expected: str) -> Callable[[str], Any]:
    """Make a parser for an option that accepts only the keys of ``values``, and turns each into its value.

    Args:
        expected: description of the keys for errors.
    """

    def parse(text: str) -> Any:
        if text not in values:
            raise ValueError(f"expected {expected}")
        return values[text]

    return parse


PARSERS: Options = {
    **dict.fromkeys(("id", "text", "reference", "group", "rank", "score", "base", "sign"), str),
    **dict.fromkeys(("words", "manifest"), str),
    **dict.fromkeys(("depth", "max_paths", "beam"), _parse_positive_int),
    **dict.fromkeys(("missing", *lattices.OPTIONS), parse_finite),
    "scores": parse_score_folders,
    "by": _one_of({"order": nemo.BY_ORDER, "name": "name"}, "order or name"),
    "delimiter": _one_of(DELIMITERS, ", ".join(DELIMITERS)),
    "header": _one_of({"yes": True, "no": False}, "yes or no"),
}
"""The parser of each option. An option means the same in every format that has it."""


def _never(sample: Sample) -> str:
    """Find no evidence. This is for formats that any text could have, and that only a user can choose."""
    return ""


_FORMATS = (
    Format(
        "jsonl",
        "JSON lines of this project: one list per line",
        "natural log-probabilities, unless the header line declares other units",
        *(jsonlines.read_lists, jsonlines.looks_like, jsonlines.writer),
        suffix=".jsonl",
        parts=ALL_PARTS,
    ),
    Format(
        "json",
        "JSON with the fields of JSON lines: arrays of lists, or lists on several lines each",
        "as in JSON lines",
        *(jsonlines.read_lists, jsonlines.looks_like_documents, jsonlines.array_writer),
        parts=ALL_PARTS,
    ),
    Format(
        "parquet",
        "Parquet: one list per row, with the columns of JSON lines, or arrays of texts and of scores",
        "natural log-probabilities, unless --stream declares other units",
        *(parquet.read_lists, parquet.looks_like, parquet.writer),
        is_binary=True,
        reads_folders=True,
        parts=ALL_PARTS - {"fields"},
    ),
    Format(
        "table",
        "Tables, csv and tsv: one hypothesis per row, with columns by name or number",
        "natural log-probabilities, unless base, sign or the name of a column such as confidence says so",
        *(delimited.read_lists, delimited.looks_like, delimited.writer),
        options=("id text reference group rank score base sign delimiter header", "delimiter"),
        suffix=(".csv", ".tsv"),
        is_loose=True,
        parts={"reference", "group", "streams"},
        find_changes=delimited.find_losses,
    ),
    Format(
        "srilm",
        "SRILM: one file per utterance; columns: acoustic score, LM score, number of words, words",
        "fixed: log10",
        *(srilm.read_srilm, srilm.looks_like_columns, srilm.srilm_writer),
        options=("scores", "missing scores"),
        stream_option="scores",
        is_folder=True,
        streams=srilm.COLUMN_STREAMS.keys(),
        hypothesis_fields={"nwords"},
    ),
    Format(
        "nbestlist1",
        "SRILM NBestList1.0: one file per utterance, one score per hypothesis",
        "fixed: bytelogs",
        *(srilm.read_srilm, srilm.looks_like_nbestlist1, srilm.nbestlist1_writer),
        options=("scores", "scores"),
        stream_option="scores",
        is_folder=True,
        streams={STREAM},
    ),
    Format(
        "nbestlist2",
        "SRILM NBestList2.0: one file per utterance, words with times and scores",
        "fixed: bytelogs",
        *(srilm.read_srilm, srilm.looks_like_nbestlist2, srilm.nbestlist2_writer),
        options=("scores", "missing scores"),
        stream_option="scores",
        is_folder=True,
        streams=srilm.BYTELOG_STREAMS.keys(),
        hypothesis_fields={WORDS_FIELD},
        word_fields={"word", *TIME_KEYS, "acoustic", "lm"},
    ),
    Format(
        "srinterp",
        "SRILM SRInterp: one file per utterance, features NAME=VALUE before the words",
        "base required, sign optional: base=10, sign=log_prob",
        *(srilm.read_srinterp, srilm.looks_like_srinterp, srilm.srinterp_writer),
        options=("base sign", "base sign"),
        is_folder=True,
        parts={"streams"},
    ),
    Format(
        "kaldi",
        "Kaldi: folder with the text archives words_text, acwt, lmwt, lmwt.*",
        "fixed: natural-log costs",
        *(kaldi.read_kaldi, kaldi.looks_like_kaldi, kaldi.kaldi_writer),
        is_folder=True,
        streams={*kaldi.NBEST_STREAMS.values()},
        stream_prefix=kaldi.EXTRA_ARCHIVE_PREFIX,
    ),
    Format(
        "mlm",
        "mlm-scoring: one JSON object of utterances with hyp_1, hyp_2, …, ref",
        "fixed: natural log-probabilities",
        *(json_documents.read_mlm, json_documents.looks_like_mlm, json_documents.mlm_writer),
        parts={"reference", "fields"},
        streams={STREAM},
    ),
    Format(
        "espnet1",
        "ESPnet 1: data.json with recognition results",
        "fixed: natural log-probabilities",
        *(espnet.read_espnet1, espnet.looks_like_espnet1, espnet.espnet1_writer),
        parts={"reference", "group", "fields"},
        streams={STREAM},
    ),
    Format(
        "espnet2",
        "ESPnet 2: folder with 1best_recog, 2best_recog, …",
        "fixed: natural log-probabilities",
        *(espnet.read_espnet2, espnet.looks_like_espnet2, espnet.espnet2_writer),
        is_folder=True,
        streams={STREAM},
    ),
    Format(
        speech_services.FORMAT,
        "JSON responses of speech services, in a file or folder: arrays named alternatives, NBest, …",
        "no scores unless declared: score=FIELD, base=e, sign=log_prob",
        *(
            speech_services.read_speech_services,
            speech_services.looks_like_speech_services,
            speech_services.speech_services_writer,
        ),
        options=("text score base sign", ""),
        reads_folders=True,
        parts={"reference", "fields"},
        streams={STREAM},
    ),
    Format(
        "whisper",
        "JSON of Whisper, faster-whisper and whisper.cpp, in a file or folder: one list per segment",
        "natural log-probabilities: avg_logprob times the number of tokens and 1, or as it is without tokens;"
        " or of score=FIELD, base=e, sign=log_prob",
        *(speech_services.read_whisper, speech_services.looks_like_whisper, speech_services.whisper_writer),
        options=("score base sign", ""),
        reads_folders=True,
        parts={"fields"},
        streams={STREAM},
    ),
    Format(
        "request",
        "JSON requests of this service: an object with lists",
        "declared by each stream: base and sign, as in the protocol",
        *(
            json_documents.read_service_request,
            json_documents.looks_like_service_request,
            json_documents.service_request_writer,
        ),
        parts={"context", "previous", "phrases", "fields", "streams"},
    ),
    Format(
        "nemo",
        "NeMo: text, tab, score; no ids; the same number of lines per utterance",
        "fixed: natural log-probabilities",
        *(nemo.read_nemo, nemo.looks_like_nemo, nemo.nemo_writer),
        options=("beam", "beam"),
        is_numbered=True,
        streams={STREAM},
    ),
    Format(
        nemo.FORMAT,
        "NeMo manifests that a model has transcribed: beams, or pred_text; ids from the names of audio files",
        "fixed: natural log-probabilities",
        *(nemo.read_manifest, nemo.looks_like_manifest, nemo.filled_manifest_writer),
        options=("", "manifest by"),
        parts={"reference", "group", "fields"},
        streams={STREAM},
    ),
    Format(
        "moses",
        "Moses, Marian: n-best lists of translations with lines NUMBER ||| text ||| features ||| total",
        "fixed: natural log-probabilities; features that count are taken as they are",
        *(moses.read_moses, moses.looks_like_moses, moses.moses_writer),
        options=("", "missing"),
        is_numbered=True,
        parts={"streams"},
        hypothesis_fields={moses.ALIGNMENT_FIELD},
    ),
    Format(
        "cued",
        "CUED-RNNLM -nbest: id, acoustic score, LM score, number of words, words",
        "log-probabilities; base required: base=e or base=10",
        *(plain_text.read_cued, plain_text.looks_like_cued, plain_text.cued_writer),
        options=("base", "base missing"),
        streams={*plain_text.STREAMS},
        hypothesis_fields={"nwords"},
    ),
    Format(
        "mikolov",
        "Mikolov's rnnlm -nbest: id and words; never detected automatically",
        "no scores",
        *(plain_text.read_mikolov, _never, plain_text.mikolov_writer),
    ),
    Format(
        "icefall",
        "icefall: recogs-*.txt with lines ID:<TAB>ref=[…] and ID:<TAB>hyp=[…]",
        "no scores",
        *(plain_text.read_icefall, plain_text.looks_like_icefall, plain_text.icefall_writer),
        parts={"reference"},
        one_best=True,
    ),
    Format(
        "fairseq",
        "fairseq: output of fairseq-generate with lines T-N, H-N, D-N, P-N",
        "log-probabilities; base 2, or base=e for versions of 2019 and before",
        *(plain_text.read_fairseq, plain_text.looks_like_fairseq, plain_text.fairseq_writer),
        options=("base", "base"),
        parts={"reference"},
        streams={STREAM},
    ),
    Format(
        "wenet",
        "wenet: n-best lists of decoder_main with lines `wav ID` and `candidate SCORE TEXT`",
        "fixed: natural log-probabilities",
        *(plain_text.read_wenet, plain_text.looks_like_wenet, plain_text.wenet_writer),
        streams={STREAM},
    ),
    Format(
        "aps",
        "aps: n-best lists of decode.py, an id and lines of score, number of tokens, text",
        "fixed: natural log-probabilities",
        *(plain_text.read_aps, plain_text.looks_like_aps, plain_text.aps_writer),
        streams={STREAM},
        hypothesis_fields={plain_text.TOKENS_FIELD},
    ),
    Format(
        plain_text.KALDI_TEXT,
        "Kaldi's text: id and words; one hypothesis per list",
        "no scores",
        *(plain_text.read_kaldi_text, plain_text.looks_like_kaldi_text, plain_text.kaldi_text_writer),
        is_loose=True,
        one_best=True,
    ),
    Format(
        plain_text.LINES,
        "Plain text: one sentence per line; detected only next to references that are plain text, too",
        "no scores",
        *(plain_text.read_sentences, _never, plain_text.sentences_writer),
        is_numbered=True,
        one_best=True,
    ),
    Format(
        plain_text.PARAGRAPHS,
        "Plain text: one hypothesis per line, blank lines between lists; never detected automatically",
        "no scores",
        *(plain_text.read_paragraphs, _never, plain_text.paragraphs_writer),
        is_numbered=True,
    ),
    Format(
        "htk",
        "HTK lattices (SLF): one file per utterance, expanded to its best word sequences",
        "log-probabilities; base e, unless the file declares another with base=",
        *(lattices.read_lists, lattices.looks_like, lattices.writer),
        options=("depth max_paths acscale lmscale prscale wdpenalty", "acscale lmscale prscale wdpenalty"),
        is_folder=True,
        streams={*lattices.STREAMS.values()},
        list_fields={lattices.NAME_FIELD},
        hypothesis_fields={WORDS_FIELD},
        word_fields={"word", *TIME_KEYS},
        find_changes=lattices.find_losses,
    ),
    Format(
        "kaldi-lattice",
        "Kaldi compact lattices in text form, expanded to their best word sequences",
        "fixed: natural-log costs",
        *(kaldi.read_kaldi_lattice, kaldi.looks_like_kaldi_lattice, kaldi.kaldi_lattice_writer),
        options=("words depth max_paths acscale lmscale wdpenalty", "words missing"),
        streams={*kaldi.LATTICE_STREAMS},
        find_changes=kaldi.find_losses,
    ),
    Format(
        "trn",
        "NIST transcripts: words (id), or PocketSphinx's words (id score); one hypothesis per list",
        "no scores, or PocketSphinx's integers, converted to natural log-probabilities",
        *(nist.read_trn_lists, nist.looks_like_trn, nist.trn_writer),
        suffix=".trn",
        one_best=True,
    ),
    Format(
        "ctm",
        "NIST words with times: one list per file and channel, one hypothesis per list",
        "no scores",
        *(nist.read_ctm_lists, nist.looks_like_ctm, nist.ctm_writer),
        suffix=".ctm",
        hypothesis_fields={WORDS_FIELD},
        word_fields={"word", *NUMBER_KEYS},
        one_best=True,
    ),
    Format(
        "stm",
        "NIST segments with times and speakers: one list per segment, one hypothesis per list",
        "no scores",
        *(nist.read_lists, nist.looks_like, nist.writer),
        is_numbered=True,
        parts={"group"},
        list_fields=nist.FIELDS,
        one_best=True,
    ),
    Format(
        "seglst",
        "SegLST of meeteval: a JSON array of segments with session, speaker, times and words; one text each",
        "no scores",
        *(json_documents.read_seglst, json_documents.looks_like_seglst, json_documents.seglst_writer),
        parts={"group", "fields"},
        one_best=True,
    ),
)
FORMATS: Mapping[str, Format] = MappingProxyType({format_.name: format_ for format_ in _FORMATS})
"""All formats by name, in the order of the documentation."""


MAX_SAMPLED_FILES = 10
"""Maximum number of files in a folder that are sampled, if the first ones match no format."""


def choose(choice: str) -> FormatChoice:
    """Parse the choice of a format, ``NAME[:OPTION=VALUE,…]``.

    Raises:
        ConfigError: the format is unknown, or the options are malformed.
    """
    name, colon, rest = choice.partition(":")
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise ConfigError(f"unknown format {name!r}; known: {known}{did_you_mean(name, FORMATS)}")
    options: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not option or option in options:
            raise ConfigError(f"{choice!r}: expected {name}:OPTION=VALUE,… with each option once")
        options[option] = value
    return FormatChoice(FORMATS[name], options)


def detect(path: str | Path) -> tuple[str, str]:
    """Detect the format of a file or folder; return the name of the format and the evidence.

    The name of a file counts only if its content matches no format. A pipe is taken for JSON lines. A folder
    must have a format that consists of a folder of files; ``inputs.find_parts`` finds lists in other folders.

    Raises:
        FormatError: no format matches, or several formats match; in that case the error names each of them
            with its evidence.
    """
    if is_pipe(path):
        return "jsonl", "the default for a pipe, which can be read only once"
    sample, matches = match_path(path)
    matches = matches or _match_name(sample)
    if len(matches) == 1:
        return next(iter(matches.items()))
    if matches:
        candidates = " or ".join(f"{name} ({evidence})" for name, evidence in matches.items())
        raise FormatError(f"ambiguous: could be {candidates}; choose one with --format", file=str(path))
    if _may_be_plain(sample) and (evidence := plain_text.looks_like_paragraphs(path)):
        return plain_text.PARAGRAPHS, evidence
    beginning = f"it begins with {sample.first[:60]!r}" if sample.first else "it has no UTF-8 text"
    if sample.excess:
        beginning = f"its first line {sample.excess}"
    if sample.path.is_file() and not sample.path.stat().st_size:
        beginning = "it is empty"
    if sample.path.is_dir():
        beginning = f"the folder has {name_entries(sample.path)}" if sample.names else "the folder is empty"
    hints = filter(None, (suggest_map(value) or suggest_table(value) for value in sample.documents))
    beginning += "".join(f"; {hint}" for hint in islice(hints, 1))
    hint = f"; {suggest_ways(sample.lines)}" if _may_be_plain(sample) else ""
    message = f"no known format matches: {beginning}{hint}; formats for --format: {', '.join(FORMATS)}"
    message += "; `rescorer help lists` says what to give for each toolkit"
    raise FormatError(message, file=str(path))


def detect_measured(path: str | Path, reference: str | Path | None) -> str:
    """Detect the format of lists as ``detect`` does. If there are references, recognise plain text, too.

    Args:
        reference: the file of references; None if there is none.

    Raises:
        FormatError: no format matches, or the lines of plain text may begin with ids as well as with words.
    """
    if reference is not None and not is_pipe(path) and is_plain_text(path):
        if is_plain_text(reference):
            return choose_reading(path, reference)
        with suppress(FormatError):  # a document, whose lists or utterances it takes more to match
            texts = (text for _, text in read_lines_strict(path))
            if not is_pipe(reference) and begins_with_ids(texts, read_references(reference)):
                return KALDI_TEXT
    return detect(path)[0]


def is_plain_text(path: str | Path) -> bool:
    """Whether a file is plain text: it matches no format, or only ``kaldi-text`` (lines of ids and words)."""
    if not Path(path).is_file():
        return False
    sample = read_sample(path)
    matches = find_matches(sample) or _match_name(sample)
    return _may_be_plain(sample) and not matches.keys() - {KALDI_TEXT}


def _may_be_plain(sample: Sample) -> bool:
    is_text = bool(sample.lines) and not sample.is_folder
    return is_text and sample.first[:1] not in "{[<" and "\t" not in sample.text


def match_path(path: str | Path, formats: Mapping[str, Format] = FORMATS) -> tuple[Sample, dict[str, str]]:
    """Read a sample of a file or folder; return the sample and the evidence for each format that it matches.

    If the first file in a folder matches no format (it may be empty, for instance), a few others are tried.

    Raises:
        FormatError: a file cannot be opened.
    """
    sample = read_sample(path)
    if (matches := find_matches(sample, formats)) or not Path(path).is_dir():
        return sample, matches
    for entry in islice(filter(Path.is_file, list_entries(Path(path))), 1, MAX_SAMPLED_FILES):
        other = replace(read_sample(entry), path=sample.path, names=sample.names)
        if matches := find_matches(other, formats):
            return other, matches
    return sample, {}


COLUMNS = ("ctm", "stm")
"""Formats whose lines have columns of numbers before their words."""


def find_matches(sample: Sample, formats: Mapping[str, Format] = FORMATS) -> dict[str, str]:
    """Return the evidence for each format that a sample matches, by the name of the format.

    A loose format counts only if no other format matches. Only if none does either, damaged files are
    recognised.
    """
    matches: dict[str, str] = {}
    for name, format_ in formats.items():
        if (format_.takes_folders or not sample.is_folder) and (evidence := format_.looks_like(sample)):
            matches[name] = evidence
    strict = {name: evidence for name, evidence in matches.items() if not formats[name].is_loose}
    if strict or matches.keys() - {KALDI_TEXT}:
        return strict or matches
    damaged = {name: evidence for name, evidence in find_damaged(sample).items() if name in formats}
    # columns of numbers are no words, whereas words in parentheses may end a line of ids and words
    columns = {name: evidence for name, evidence in damaged.items() if name in COLUMNS}
    return columns or matches or damaged


def _match_name(sample: Sample) -> dict[str, str]:
    """Return the evidence for each format that a file has according to the end of its name."""
    name_of_file = sample.path.name.removesuffix(".gz").lower()
    return {
        name: f"a file name that ends in {Path(name_of_file).suffix}"
        for name, format_ in FORMATS.items()
        if format_.suffix and not sample.is_folder and name_of_file.endswith(format_.suffix)
    }


def is_pipe(path: str | Path) -> bool:
    """Whether a source can be read only once: standard input, a pipe or a device."""
    is_other = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    return str(path) == "-" or is_other


def assign_groups(lists: Lists, group_of: Callable[[str], str]) -> Lists:
    """Yield the lists. A list without a group gets the group that ``group_of`` returns for its id."""
    for item in lists:
        if isinstance(item, NBestList) and not item.group:
            item = replace(item, group=group_of(item.id))
        yield item

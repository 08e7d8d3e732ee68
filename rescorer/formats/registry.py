"""Owns the table of list formats, the choice among them, and the telling of a format from a file.

A choice is written ``NAME`` or ``NAME:OPTION=VALUE,…``; a file whose format is not told is looked at, and
refused where two formats fit or none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.formats import (
    alternatives,
    espnet1,
    espnet2,
    htk,
    jsonlines,
    kaldi,
    kaldi_lattice,
    mlm,
    nemo,
    nist,
    rnnlm,
    srilm,
    srinterp,
)
from rescorer.formats.format import EVERYTHING, Choice, Format
from rescorer.formats.sample import sample_of
from rescorer.formats.score_folders import score_folders
from rescorer.types import NBestList


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("expected a number from 1")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


_TABLE = (
    Format(
        "jsonl",
        "JSON lines of this project, one list a line",
        "natural log-probabilities, or as the header line declares",
        jsonlines.read_lists,
        jsonlines.looks_like,
        jsonlines.writer,
        holds=EVERYTHING,
    ),
    Format(
        "srilm",
        "SRILM: a file an utterance, with the columns acoustic score, LM score, number of words, words",
        "fixed: log10",
        srilm.read_lists,
        srilm.looks_like_columns,
        srilm.writer,
        read_options={"scores": score_folders},
        write_options={"missing": _finite, "scores": score_folders},
        stream_option="scores",
        folder=True,
        streams=frozenset(srilm.COLUMNS),
        hypothesis_fields=frozenset({"nwords"}),
    ),
    Format(
        "nbestlist1",
        "SRILM's NBestList1.0: a file an utterance, one score",
        "fixed: bytelogs",
        srilm.read_lists,
        srilm.looks_fused,
        srilm.fused_writer,
        read_options={"scores": score_folders},
        folder=True,
        streams=frozenset({"first_pass"}),
    ),
    Format(
        "nbestlist2",
        "SRILM's NBestList2.0: a file an utterance, words with times and scores",
        "fixed: bytelogs",
        srilm.read_lists,
        srilm.looks_like_words,
        read_options={"scores": score_folders},
    ),
    Format(
        "srinterp",
        "SRILM's SRInterp: a file an utterance, with features NAME=VALUE before the words",
        "the base is told, the sign may be: base=10,sign=log_prob",
        srinterp.read_lists,
        srinterp.looks_like,
        srinterp.writer,
        read_options=dict.fromkeys(("base", "sign"), str),
        write_options=dict.fromkeys(("base", "sign"), str),
        folder=True,
        holds=frozenset({"streams"}),
    ),
    Format(
        "kaldi",
        "Kaldi: a folder with the text archives words_text, acwt, lmwt",
        "fixed: natural-log costs",
        kaldi.read_lists,
        kaldi.looks_like,
        kaldi.writer,
        folder=True,
        streams=frozenset(kaldi.STREAMS.values()),
    ),
    Format(
        "mlm",
        "mlm-scoring: one JSON object of utterances with hyp_1, hyp_2, …, ref",
        "fixed: natural log-probabilities",
        mlm.read_lists,
        mlm.looks_like,
        mlm.writer,
        holds=frozenset({"reference", "fields"}),
        streams=frozenset({mlm.STREAM}),
    ),
    Format(
        "espnet1",
        "ESPnet 1: data.json with recognition results",
        "fixed: natural log-probabilities",
        espnet1.read_lists,
        espnet1.looks_like,
        espnet1.writer,
        holds=frozenset({"reference", "group", "fields"}),
        streams=frozenset({espnet1.STREAM}),
    ),
    Format(
        "espnet2",
        "ESPnet 2: a folder with 1best_recog, 2best_recog, …",
        "fixed: natural log-probabilities",
        espnet2.read_lists,
        espnet2.looks_like,
        espnet2.writer,
        folder=True,
        streams=frozenset({espnet2.STREAM}),
    ),
    Format(
        "alternatives",
        "JSON answers of speech services: arrays called alternatives, NBest, nbest or choices",
        "no scores, or base and sign as told: score=FIELD,base=e,sign=log_prob",
        alternatives.read_lists,
        alternatives.looks_like,
        alternatives.writer,
        read_options=dict.fromkeys(("text", "score", "base", "sign"), str),
        holds=frozenset({"fields"}),
        streams=frozenset({alternatives.STREAM}),
    ),
    Format(
        "nemo",
        "NeMo: text and score by a tab, no ids, always one number of lines an utterance",
        "fixed: natural log-probabilities",
        nemo.read_lists,
        nemo.looks_like,
        nemo.writer,
        read_options={"beam": _count},
        write_options={"beam": _count},
        numbered=True,
        streams=frozenset({nemo.STREAM}),
    ),
    Format(
        "cued",
        "CUED-RNNLM's -nbest: id, acoustic score, LM score, number of words, words",
        "log-probabilities; the base is told: base=e or base=10",
        rnnlm.read_cued,
        rnnlm.looks_like_cued,
        rnnlm.cued_writer,
        read_options={"base": str},
        write_options={"base": str, "missing": _finite},
        streams=frozenset(rnnlm.STREAMS),
        hypothesis_fields=frozenset({"nwords"}),
    ),
    Format(
        "mikolov",
        "Mikolov's rnnlm -nbest: id and words; never told from a file",
        "no scores",
        rnnlm.read_mikolov,
        rnnlm.looks_like_mikolov,
        rnnlm.mikolov_writer,
    ),
    Format(
        "htk",
        "HTK lattices (SLF): a file an utterance, expanded to its best word sequences",
        "log-probabilities; base e, or as the file's base= says",
        htk.read_with,
        htk.looks_like,
        read_options={"depth": _count, "max_paths": _count, **dict.fromkeys(htk.OPTIONS, _finite)},
    ),
    Format(
        "kaldi-lattice",
        "Kaldi's compact lattices in text form, expanded to their best word sequences",
        "fixed: natural-log costs",
        kaldi_lattice.read_lists,
        kaldi_lattice.looks_like,
        read_options={
            "words": str,
            "depth": _count,
            "max_paths": _count,
            **dict.fromkeys(("acscale", "lmscale", "wdpenalty"), _finite),
        },
    ),
    Format(
        "trn",
        "NIST's transcripts, words (id): one hypothesis a list",
        "no scores",
        nist.read_trn_lists,
        nist.looks_like_trn,
        nist.trn_writer,
        one_best=True,
    ),
    Format(
        "ctm",
        "NIST's words with times: a list a file and channel, one hypothesis",
        "no scores",
        nist.read_ctm_lists,
        nist.looks_like_ctm,
        nist.ctm_writer,
        hypothesis_fields=frozenset({nist.WORDS_FIELD}),
        one_best=True,
    ),
)
FORMATS: Mapping[str, Format] = MappingProxyType({each.name: each for each in _TABLE})


def choose(choice: str) -> Choice:
    """The format that ``NAME[:OPTION=VALUE,…]`` names.

    Raises:
        ConfigError: no such format, or the options are malformed.
    """
    name, colon, rest = choice.partition(":")
    if name not in FORMATS:
        raise ConfigError(f"no format {name!r}; there is {', '.join(FORMATS)}")
    options: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not option or option in options:
            raise ConfigError(f"{choice!r}: expected {name}:OPTION=VALUE,… with each option once")
        options[option] = value
    return Choice(FORMATS[name], options)


def detect(path: str | Path) -> tuple[str, str]:
    """Name of the format of a file or folder, and what says so; a pipe is JSON lines.

    Raises:
        FormatError: no format fits, or more than one: it names them and what speaks for each.
    """
    place = Path(path)
    if str(path) == "-" or (place.exists() and not place.is_file() and not place.is_dir()):
        return "jsonl", "a pipe, which can be read only once, is JSON lines unless told"
    sample = sample_of(place)
    seen = {name: saw for name, each in FORMATS.items() if (saw := each.looks_like(sample))}
    if len(seen) == 1:
        return next(iter(seen.items()))
    if seen:
        both = " and ".join(f"{name} ({saw})" for name, saw in seen.items())
        raise FormatError(f"could be {both}; say which with --format", file=str(path))
    begins = f"it begins {sample.first[:60]!r}" if sample.first else "it has no text"
    known = ", ".join(FORMATS)
    raise FormatError(f"no format known fits: {begins}; say one with --format: {known}", file=str(path))


def with_groups(
    lists: Iterator[NBestList | InputError], group_of: Callable[[str], str]
) -> Iterator[NBestList | InputError]:
    """The lists, those that do not say their group with the one that their id tells."""
    for item in lists:
        if isinstance(item, NBestList) and not item.group:
            item = replace(item, group=group_of(item.id))
        yield item

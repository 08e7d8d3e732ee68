"""Import language models of other toolkits: read, choose how they score, check, and write a folder.

Users of other tools must guess which unit comes before a sentence and whether one ends it, and the special
units that a toolkit declares are often wrong for scoring: an instruct model that expects a chat gives plain
sentences ten times the perplexity after its declared start. So both are chosen by text (``choose_start``,
``choose_end``). Before the folder is written, scores of tries are compared with those of one sentence at a
time in float64, and the model is refused if they differ.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, InputError, quote
from rescorer.models.bundle import new_folder
from rescorer.models.kernels import check_finite
from rescorer.models.network_files import (
    CONFIG_FILE,
    LICENCE_FILE,
    SENTENCEPIECE_FILE,
    TOKENIZER_FILE,
    TOKENIZER_FILES,
    WEIGHTS_FILE,
)
from rescorer.models.precision import PRECISIONS, PrecisionCheck, compare_precisions, vary
from rescorer.safe_input import Folder, open_regular
from rescorer.trie import SENTENCE_END, Words, build_trie
from rescorer.types import NBestList
from rescorer.units import huggingface
from rescorer.units.automodel import AutoModelConfig, is_installed, read_automodel
from rescorer.units.decoders import DecoderConfig
from rescorer.units.files import TextForm, UnitConfig, load_unit_model, make_model
from rescorer.units.gguf import GgufFile
from rescorer.units.model import MAX_DIFFERENCE, DecoderScorer, UnitLanguageModel
from rescorer.units.prompts import Prompt, check_units, read_before
from rescorer.units.recurrent import RecurrentConfig
from rescorer.units.smoothing import smooth_channels
from rescorer.units.tokens import (
    MAX_TOKENIZER_BYTES,
    JsonTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WordDivider,
    build_unit_trie,
    build_whole_trie,
    change_of,
    renumber,
)

AUTO, NONE = "auto", "none"
USUAL_STARTS = ("<|endoftext|>", "<s>", "</s>", "<bos>", "<|begin_of_text|>")
"""Units that come before texts in many models, besides those that a toolkit declares."""
MAX_READ_LISTS = 2000  # largest number of lists that are read for their first hypotheses
CHOSEN_BY = 50  # largest number of sentences by which start and end are chosen
CHECKED = 5  # number of sentences whose scores are compared in float64


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """A model as another toolkit wrote it."""

    decoder: DecoderConfig | RecurrentConfig | AutoModelConfig
    tensors: Mapping[str, Tensor]
    tokenizer: bytes
    tokenizer_file: str
    declared: Mapping[str, str | int]
    """Special units by their roles in the toolkit's files, such as ``bos``."""
    source: Mapping[str, Any]
    units: tuple[str, ...] = ()
    """See ``UnitConfig``."""
    certain: bool = False
    """Whether the model was trained with the declared units around each sentence, so that no others are
    considered."""
    licence: bytes = b""
    """Text of the licence, if a file has it."""

    def digest(self) -> str:
        """SHA-256, in hexadecimal, of all that the scores depend on besides start, end and writing."""
        digest = hashlib.sha256(json.dumps([self.decoder.to_dict(), self.units]).encode())
        digest.update(hashlib.sha256(self.tokenizer).digest())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def read_tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        kind = JsonTokenizer if self.tokenizer_file == TOKENIZER_FILE else SentencePieceTokenizer
        place = f"{self.source.get('path')}: {self.tokenizer_file}"
        return renumber(kind(self.tokenizer, place), self.units)


MAX_LICENCE_BYTES = 1 << 16


def read_licence(folder: Path) -> tuple[str, bytes]:
    """Name and text of a model's licence, as far as files of its folder say them; otherwise empty.

    The name is that of the front matter of README.md, as model hubs write it. A text of more than
    ``MAX_LICENCE_BYTES`` is cut.
    """
    name, text = "", b""
    if (folder / "README.md").is_file():
        with open_regular(folder / "README.md") as stream:
            head = stream.read(MAX_LICENCE_BYTES).decode(errors="replace")
        front = re.match(r"---\s*\n(.*?)\n---", head, re.S)
        if front and (found := re.search(r"^licen[sc]e:\s*([\w.+-]{1,100})\s*$", front[1], re.M)):
            name = found[1]
    for file in sorted(folder.glob("*")):
        if re.match(r"licen[sc]e", file.name, re.I) and file.is_file():
            with open_regular(file) as stream:
                text = stream.read(MAX_LICENCE_BYTES)
            break
    return name, text


def read_huggingface(folder: Path) -> ForeignModel:
    """Read a folder that transformers saved; it runs families that have no runtime here, if it is installed.

    Raises:
        BundleError: the folder is of a kind that is not supported.
    """
    files = Folder(folder)
    values = huggingface.read_config(files)
    is_known = values.get("model_type") in huggingface.FAMILIES or not is_installed()
    decoder, tensors = huggingface.read_folder(folder) if is_known else read_automodel(folder)
    name = next((name for name in (TOKENIZER_FILE, SENTENCEPIECE_FILE) if (folder / name).exists()), "")
    if not name:
        raise BundleError(
            f"{folder}: no {TOKENIZER_FILE}; save one by "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    declared = {}
    if (folder / "tokenizer_config.json").exists():
        settings = files.read_json("tokenizer_config.json")
        for role in ("bos", "eos"):
            unit = settings.get(f"{role}_token")
            unit = unit.get("content") if isinstance(unit, dict) else unit
            if isinstance(unit, str):
                declared[role] = unit
    for role in ("bos", "eos"):
        if role not in declared and isinstance(values.get(f"{role}_token_id"), int):
            declared[role] = values[f"{role}_token_id"]
    source = {"toolkit": "transformers", "path": folder.name, "architecture": values.get("model_type")}
    data = files.read_bytes(name, MAX_TOKENIZER_BYTES)
    return ForeignModel(decoder, tensors, data, name, declared, source)


def read_gguf(path: Path) -> ForeignModel:
    """Read a GGUF file.

    Raises:
        BundleError: the file is of a kind that is not supported.
        ConfigError: the package gguf is not installed.
    """
    file = GgufFile(path)
    decoder, tensors = file.read()
    declared = {role: unit for role in ("bos", "eos") if (unit := file.unit(role)) is not None}
    source = {"toolkit": "gguf", "path": path.name, "architecture": file.architecture}
    source |= {"licence": file.licence} if file.licence else {}
    return ForeignModel(decoder, tensors, file.tokenizer_json(), TOKENIZER_FILE, declared, source)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A unit that may come before sentences, or end them."""

    name: str
    unit: int | None
    """None: no unit."""
    value: float
    """For a start, the perplexity per word after it; for an end, its mean ln P after sentences."""


CHOOSE_BY_TEXT = "import it by `rescorer-train import … --validation TEXT`, with a text of short sentences"
"""Advice if the sentences of lists cannot choose start and end."""


def split_words(text: str) -> Words:
    """The words of a text as they are written."""
    return tuple(text.split())


def first_best_sentences(
    lists: Iterator[NBestList | InputError], normalise: Callable[[str], Words]
) -> list[Words]:
    """Words of the first hypotheses of the first lists, without repetitions: text to choose start and end by.

    Raises:
        InputError: no list can be read.
        ConfigError: these lists have no words.
    """
    sentences, errors = dict[Words, None](), list[InputError]()
    for item in islice(lists, MAX_READ_LISTS):
        if isinstance(item, InputError):
            errors.append(item)
        elif words := normalise(item.hypotheses[0].text):
            sentences[words] = None
            if len(sentences) == CHOSEN_BY:
                break
    if not sentences and errors:
        raise errors[0]
    if not sentences:
        raise ConfigError(
            "the first hypotheses of the lists have no words to choose start and end of the model by; "
            f"{CHOOSE_BY_TEXT}"
        )
    return list(sentences)


def choose_start(
    foreign: ForeignModel, model: UnitLanguageModel, sentences: Sequence[Words], also: Sequence[int] = ()
) -> list[Candidate]:
    """Units that may come before sentences, the one with the lowest perplexity per word first.

    Args:
        model: the model, with any start, and without an end.
        also: further units to consider.

    Raises:
        ConfigError: no unit of the tokenizer can come before a text.
    """
    names = [*foreign.declared.values(), *USUAL_STARTS, "\n"]
    if foreign.certain:
        names = [foreign.declared["bos"]]
    tokenizer = model.divider.tokenizer
    numbers = [*also, *(find_unit(tokenizer, name) for name in names)]
    units = dict.fromkeys(number for number in numbers if number is not None)
    if not units:
        raise ConfigError("no unit that can come before a text was found; name one by --start")
    found = []
    for number in units:
        log_prob, n_words = score_sentences(_score_after(model, number), sentences)
        found.append(Candidate(tokenizer.name(number), number, find_perplexity(log_prob, n_words)))
    return sorted(found, key=lambda candidate: candidate.value)


def choose_end(
    foreign: ForeignModel, model: UnitLanguageModel, sentences: Sequence[Words]
) -> list[Candidate]:
    """Units that may end sentences, and none, the chosen one first.

    A unit is chosen if it says more about where sentences end than their mean length does: its mean ln P at
    their ends must be above that of a constant rate of ends.
    """
    declared = [unit for role, unit in foreign.declared.items() if role == "eos"]
    names = declared if foreign.certain else [*declared, "</s>", "\n"]
    tokenizer = model.divider.tokenizer
    units = dict.fromkeys(number for name in names if (number := find_unit(tokenizer, name)) is not None)
    assert isinstance(model.scorer, DecoderScorer)
    build = build_whole_trie if model.divider.whole else build_unit_trie
    trie = build(build_trie(sentences), model.divider).trie
    is_sentence = trie.end_nodes >= trie.n_roots  # whole texts have an empty one besides, for their context
    means = model.scorer.score_ends(trie, list(units))[is_sentence].mean(axis=0).tolist()
    constant = -math.log(sum(map(len, sentences)) / len(sentences) + 1)
    found = [Candidate(tokenizer.name(unit), unit, mean) for unit, mean in zip(units, means, strict=True)]
    none = [] if foreign.certain else [Candidate(NONE, None, constant)]
    return sorted([*none, *found], key=lambda candidate: -candidate.value)


def find_unit(tokenizer: Tokenizer, name: str | int) -> int | None:
    """The unit of a name or number, or the only one that a text such as a line end has; None if none is."""
    if isinstance(name, int):
        return name if 0 <= name < tokenizer.size else None
    if (number := tokenizer.find(name)) is not None:
        return number
    if name.isdecimal() and int(name) < tokenizer.size:
        return int(name)
    units = tokenizer.encode([name])[0] if not name.isprintable() else []
    return units[0] if len(units) == 1 else None


def _score_after(
    model: UnitLanguageModel, start: int | None, end: int | None = None, prompt: Prompt | None = None
) -> UnitLanguageModel:
    """The same network and tokenizer, which are slow to make, with another start, end and prompt."""
    assert isinstance(model.scorer, DecoderScorer)
    scorer = DecoderScorer(model.scorer.decoder, start, end, context_cache_bytes=0)
    return UnitLanguageModel(scorer, model.divider, model.name, prompt=prompt)


def score_sentences(
    model: UnitLanguageModel, sentences: Sequence[Words], histories: Sequence[Words] | None = None
) -> tuple[float, int]:
    """ln P of all sentences, and their number of words.

    Args:
        histories: what was said before each sentence; None: nothing.
    """
    trie = build_trie(sentences, histories)
    return float(model.score(trie).sum_paths(trie).sum()), sum(map(len, sentences))


def find_perplexity(log_prob: float, n_words: int) -> float:
    """Perplexity per word, as far as a number can hold it: models that do not fit a text have huge ones."""
    return math.exp(min(-log_prob / n_words, 700.0))


@dataclass(frozen=True, slots=True)
class Check:
    """Measurements of a model before its folder is written."""

    max_difference: float
    """Largest difference per word between scores of tries and of one sentence at a time, in nats."""
    perplexity: float
    """Perplexity per word of the sentences, ends included if they are scored."""
    words_per_s: float
    """Words of hypotheses per second of processor time on this machine, for lists like the checked ones."""


def check_model(model: UnitLanguageModel, config: UnitConfig, sentences: Sequence[Words]) -> Check:
    """Compare scores of a trie with those of one sentence at a time in float64.

    Raises:
        BundleError: they differ by more than ``MAX_DIFFERENCE`` per word.
    """
    context = sentences[0][:3]
    spoken = (*context, SENTENCE_END, *sentences[-1][:5], SENTENCE_END)
    befores = [context, (), spoken if config.prompt else ()]
    pairs = [
        (words, befores[n % 3]) for n, words in enumerate(chain.from_iterable(map(vary, sentences[:CHECKED])))
    ]
    pairs = [(words, said) for words, said in pairs if fits(model, (*said, *words))]
    hypotheses, contexts = [words for words, _ in pairs], [said for _, said in pairs]
    trie = build_trie(hypotheses, contexts)
    started = time.process_time()
    found = model.score(trie).sum_paths(trie)
    seconds = time.process_time() - started
    largest = 0.0
    for words, context, log_prob in zip(hypotheses, contexts, found.tolist(), strict=True):
        expected = score_alone(model, config, words, context)
        largest = max(largest, abs(expected - log_prob) / (len(words) + 1))
    if not largest <= MAX_DIFFERENCE:
        raise BundleError(
            f"scores of tries differ from those of one sentence at a time by {largest:.2g} nats per word; "
            f"expected at most {MAX_DIFFERENCE:g}: this model cannot be used"
        )
    total, n_words = score_sentences(model, sentences)
    speed = sum(map(len, hypotheses)) / max(seconds, 1e-9)
    return Check(largest, find_perplexity(total, n_words), speed)


def check_precisions(folder: Path, sentences: Sequence[Words]) -> dict[str, PrecisionCheck]:
    """Compare the scores of an imported model in the lower precisions of this machine with float32.

    Args:
        sentences: the first of them are compared, with variants of each, as hypotheses are.
    """
    load = partial(load_unit_model, folder, context_cache_bytes=0)
    found = compare_precisions(lambda dtype: load(dtype=dtype), sentences[:CHOSEN_BY])
    return {dtype: check for dtype, check in found.items() if dtype != PRECISIONS[0]}


def score_alone(model: UnitLanguageModel, config: UnitConfig, words: Words, history: Words = ()) -> float:
    """ln P of one text after its history, read alone in float64: the slow twin of ``UnitLanguageModel``."""
    texts = [(*history, *words), history]
    log_probs = []
    for text, ends in zip(texts, (config.end, None), strict=True):
        before = read_before(model.divider, text, config.prompt)
        units = [*config.start, *before.units, *([] if ends is None else [ends])]
        if len(units) <= 1:  # nothing is predicted
            log_probs.append(0.0)
            continue
        found = model.scorer.decoder.sequence_log_probs(units, torch.float64)  # type: ignore[union-attr]
        log_probs.append(float(found[max(len(config.start) - 1, 0) :].sum()))
    return log_probs[0] - log_probs[1]


def fits(model: UnitLanguageModel, words: Words) -> bool:
    """Whether a model can read a text after a start."""
    assert isinstance(model.scorer, DecoderScorer)
    return len(model.divider.divide_text(words)) < model.scorer.decoder.n_positions


@dataclass(frozen=True, slots=True)
class Imported:
    """A model that was imported, and what decided about it."""

    config: UnitConfig
    starts: Sequence[Candidate]
    ends: Sequence[Candidate]
    check: Check
    n_parameters: int


def import_model(
    foreign: ForeignModel,
    folder: Path,
    sentences: Sequence[Words],
    start: str | int = AUTO,
    end: str | int = AUTO,
    text: TextForm = "canonical",
    on_step: Callable[[str], object] = lambda step: None,
    *,
    whole: bool | None = None,
    prompt: Prompt | None = None,
) -> Imported:
    """Choose how a model scores, check it, and write its folder.

    Args:
        sentences: words of sentences by which start and end are chosen, and with which the model is checked;
            canonical ones, or for the text form ``surface`` those of texts as they are written.
        start, end: ``auto``, ``none``, or the name or number of a unit.
        on_step: called with the name of each step, before it begins.
        whole: whether texts are divided as a whole; None: if some sentences have to be.
        prompt: what is read before a sentence; None: only its context. It does not choose start and end.

    Raises:
        BundleError: the model cannot be used.
        ConfigError: there are no sentences, no unit of a name, or the prompt does not fit the model.
        OSError: the folder cannot be written.
    """
    sentences = [words for words in sentences if words][:CHOSEN_BY]
    if not sentences:
        raise ConfigError("no sentences to choose start and end by; name a file of text by --validation")
    on_step("choosing start and end")
    check_finite(str(foreign.source.get("path")), foreign.tensors)
    tokenizer = foreign.read_tokenizer()
    _check_case(tokenizer, text)
    source = {**foreign.source, "sha256": foreign.digest()}
    if whole is None:
        whole = WordDivider(tokenizer, change_of(text)).find_inseparable(sentences) is not None
    config = UnitConfig(foreign.decoder, (0,), None, text, whole, foreign.units, prompt, source=source)
    model = make_model(config, foreign.tensors, tokenizer, context_cache_bytes=0)
    if prompt is not None:
        check_units(model.divider, prompt, model.scorer.decoder.n_positions)
    sentences = [words for words in sentences if fits(model, words)]
    if not sentences:
        raise ConfigError(
            f"all sentences have more than the {model.scorer.decoder.n_positions:,} pieces of words that the "
            f"model can read, so that they cannot choose its start and end; {CHOOSE_BY_TEXT}"
        )
    named = [] if start in (AUTO, NONE) else [_require_unit(tokenizer, start, "start")]
    starts = []
    if isinstance(start, str) and start != NONE:  # a number is a choice that was made before
        starts = choose_start(foreign, model, sentences, named)
    first = [one.unit for one in starts[:1] if one.unit is not None] if start == AUTO else named
    config = replace(config, start=tuple(first))
    model = _score_after(model, first[0] if first else None)
    ends = choose_end(foreign, model, sentences) if end == AUTO else []
    if end != NONE:
        config = replace(config, end=ends[0].unit if ends else _require_unit(tokenizer, end, "end"))
    model = _score_after(model, next(iter(config.start), None), config.end, prompt)
    config, check = check_and_write(foreign, config, model, sentences, folder, on_step)
    return Imported(config, starts, ends, check, sum(tensor.numel() for tensor in foreign.tensors.values()))


def check_and_write(
    foreign: ForeignModel,
    config: UnitConfig,
    model: UnitLanguageModel,
    sentences: Sequence[Words],
    folder: Path,
    on_step: Callable[[str], object] = lambda step: None,
) -> tuple[UnitConfig, Check]:
    """Scale the channels of a decoder for int8, check the scores of a model, and write its folder.

    Args:
        model: made of ``foreign`` and ``config``.
        sentences: words with which channels are judged and scores are checked; the model can read them all.

    Returns:
        The configuration with the measurements, and these.

    Raises:
        BundleError: scores of tries differ from those of one sentence at a time.
        OSError: the folder cannot be written.
    """
    if isinstance(config.decoder, DecoderConfig):
        on_step("scaling channels for int8")
        foreign = replace(foreign, tensors=smooth_channels(model, sentences))
        model = make_model(config, foreign.tensors, model.divider.tokenizer, context_cache_bytes=0)
    on_step("checking its scores")
    check = check_model(model, config, sentences)
    config = replace(
        config,
        check={
            "max_difference_per_word": check.max_difference,
            "perplexity_per_word": check.perplexity,
            "sentences": len(sentences),
        },
    )
    on_step("writing it")
    write_folder(folder, config, foreign)
    return config, check


def reopen(folder: Path, config: UnitConfig, tensors: Mapping[str, Tensor]) -> ForeignModel:
    """An imported model as what it can be written from again, with other tensors of the same shapes."""
    files = Folder(folder)
    tokenizer = next(name for name in TOKENIZER_FILES if (folder / name).exists())
    licence = files.read_bytes(LICENCE_FILE, MAX_LICENCE_BYTES) if (folder / LICENCE_FILE).exists() else b""
    data = files.read_bytes(tokenizer, MAX_TOKENIZER_BYTES)
    source = config.source or {}
    return ForeignModel(config.decoder, tensors, data, tokenizer, {}, source, config.units, licence=licence)


def is_upper_case(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer knows letters in upper case only."""
    names = (tokenizer.name(number) for number in range(tokenizer.size))
    pieces = [name for name in names if not name.startswith("<")]  # special units have lower case anyway
    return any(map(str.isupper, pieces)) and all(piece == piece.upper() for piece in pieces)


def _check_case(tokenizer: Tokenizer, text: TextForm) -> None:
    """Refuse to write words in lower case for a tokenizer that knows no such letters."""
    if text == "canonical" and is_upper_case(tokenizer):
        raise ConfigError(
            "all letters of the tokenizer are upper case, but words would be written in lower case; give "
            "--text upper"
        )


def _require_unit(tokenizer: Tokenizer, name: str | int, role: str) -> int:
    if (number := find_unit(tokenizer, name)) is None:
        raise ConfigError(f"--{role} is {quote(str(name))}, which is not a unit of the tokenizer")
    return number


def write_folder(folder: Path, config: UnitConfig, foreign: ForeignModel) -> None:
    """Write the folder of a model, with weights in float32: all of it, or after an error nothing.

    Raises:
        OSError: it cannot be written.
    """
    tensors = {name: tensor.float().contiguous() for name, tensor in foreign.tensors.items()}
    with new_folder(folder) as partial:
        try:
            save_file(tensors, partial / WEIGHTS_FILE)
        except SafetensorError as error:  # in place of an OSError
            raise OSError(errno.EIO, str(error)) from None
        (partial / WEIGHTS_FILE).chmod(
            0o644
        )  # safetensors makes it private; a server may run as another user
        (partial / foreign.tokenizer_file).write_bytes(foreign.tokenizer)
        if foreign.licence:
            (partial / LICENCE_FILE).write_bytes(foreign.licence)
        (partial / CONFIG_FILE).write_text(json.dumps(config.to_dict(), indent=1) + "\n", encoding="utf-8")

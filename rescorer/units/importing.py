"""Import language models of other toolkits: read, choose how they score, check, and write a folder.

Users of other tools must guess which unit comes before a sentence and whether one ends it, and the special
units that a toolkit declares are often wrong for scoring: an instruct model that expects a chat gives plain
sentences ten times the perplexity after its declared start. So both are chosen by text (``choose_start``,
``choose_end``). Before the folder is written, scores of tries are compared with those of one sentence at a
time in float64, and the model is refused if they differ.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, quote
from rescorer.models.network_files import CONFIG_FILE, SENTENCEPIECE_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from rescorer.safe_input import Folder
from rescorer.trie import Words, build_trie
from rescorer.units import huggingface
from rescorer.units.automodel import AutoModelConfig, is_installed, read_automodel
from rescorer.units.decoders import DecoderConfig
from rescorer.units.files import TextForm, UnitConfig, make_model
from rescorer.units.gguf import GgufFile
from rescorer.units.model import MAX_DIFFERENCE, DecoderScorer, UnitLanguageModel
from rescorer.units.tokens import (
    JsonTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    build_unit_trie,
)

AUTO, NONE = "auto", "none"
USUAL_STARTS = ("<|endoftext|>", "<s>", "</s>", "<bos>", "<|begin_of_text|>")
"""Units that come before texts in many models, besides those that a toolkit declares."""
CHOSEN_BY = 50  # largest number of sentences by which start and end are chosen
CHECKED = 12  # number of sentences whose scores are compared in float64


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """A model as another toolkit wrote it."""

    decoder: DecoderConfig | AutoModelConfig
    tensors: Mapping[str, Tensor]
    tokenizer: bytes
    tokenizer_file: str
    declared: Mapping[str, str | int]
    """Special units by their roles in the toolkit's files, such as ``bos``."""
    source: Mapping[str, Any]

    def read_tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        kind = JsonTokenizer if self.tokenizer_file == TOKENIZER_FILE else SentencePieceTokenizer
        return kind(self.tokenizer, self.tokenizer_file)


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
    return ForeignModel(decoder, tensors, (folder / name).read_bytes(), name, declared, source)


def read_gguf(path: Path) -> ForeignModel:
    """Read a GGUF file.

    Raises:
        BundleError: the file is of a kind that is not supported.
        ConfigError: the package gguf is not installed.
    """
    file = GgufFile(path)
    decoder, tensors = file.read()
    declared = {
        role: int(file.values[f"tokenizer.ggml.{role}_token_id"])
        for role in ("bos", "eos")
        if f"tokenizer.ggml.{role}_token_id" in file.values
    }
    source = {"toolkit": "gguf", "path": path.name, "architecture": file.architecture}
    if "general.license" in file.values:
        source["licence"] = file.values["general.license"]
    return ForeignModel(decoder, tensors, file.tokenizer_json(), TOKENIZER_FILE, declared, source)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A unit that may come before sentences, or end them."""

    name: str
    unit: int | None
    """None: no unit."""
    value: float
    """For a start, the perplexity per word after it; for an end, its mean ln P after sentences."""


def choose_start(
    foreign: ForeignModel, tokenizer: Tokenizer, sentences: Sequence[Words], text: TextForm
) -> list[Candidate]:
    """Units that may come before sentences, the one with the lowest perplexity per word first.

    Raises:
        ConfigError: no unit of the tokenizer can come before a text.
    """
    names = [*foreign.declared.values(), *USUAL_STARTS, "\n"]
    units = dict.fromkeys(number for name in names if (number := find_unit(tokenizer, name)) is not None)
    if not units:
        raise ConfigError("no unit that can come before a text was found; name one by --start")
    found = []
    for number in units:
        model = _make(foreign, tokenizer, UnitConfig(foreign.decoder, (number,), None, text))
        log_prob, n_words = _score_sentences(model, sentences)
        found.append(Candidate(tokenizer.name(number), number, math.exp(-log_prob / n_words)))
    return sorted(found, key=lambda candidate: candidate.value)


def choose_end(
    foreign: ForeignModel, tokenizer: Tokenizer, sentences: Sequence[Words], config: UnitConfig
) -> list[Candidate]:
    """Units that may end sentences, and none, the chosen one first.

    A unit is chosen if it says more about where sentences end than their mean length does: its mean ln P at
    their ends must be above that of a constant rate of ends.
    """
    names = [*(unit for role, unit in foreign.declared.items() if role == "eos"), "</s>", "\n"]
    units = dict.fromkeys(number for name in names if (number := find_unit(tokenizer, name)) is not None)
    model = _make(foreign, tokenizer, config)
    assert isinstance(model.scorer, DecoderScorer)
    trie = build_unit_trie(build_trie(sentences), model.divider).trie
    means = model.scorer.score_ends(trie, list(units)).mean(axis=0).tolist()
    constant = -math.log(sum(map(len, sentences)) / len(sentences) + 1)
    found = [Candidate(tokenizer.name(unit), unit, mean) for unit, mean in zip(units, means, strict=True)]
    return sorted([Candidate(NONE, None, constant), *found], key=lambda candidate: -candidate.value)


def find_unit(tokenizer: Tokenizer, name: str | int) -> int | None:
    """The unit of a name or number, or the only one that a text such as a line end has; None if none is."""
    if isinstance(name, int):
        return name if name < tokenizer.size else None
    if (number := tokenizer.find(name)) is not None:
        return number
    if name.isdecimal() and int(name) < tokenizer.size:
        return int(name)
    units = tokenizer.encode([name])[0] if not name.isprintable() else []
    return units[0] if len(units) == 1 else None


def _make(foreign: ForeignModel, tokenizer: Tokenizer, config: UnitConfig) -> UnitLanguageModel:
    return make_model(config, foreign.tensors, tokenizer, context_cache_bytes=0)


def _score_sentences(model: UnitLanguageModel, sentences: Sequence[Words]) -> tuple[float, int]:
    """ln P of all sentences, and their number of words."""
    trie = build_trie(sentences)
    return float(model.score(trie).sum_paths(trie).sum()), sum(map(len, sentences))


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
    hypotheses = [*_vary(sentences[:CHECKED])]
    contexts: list[Words] = [sentences[0][:3] if number % 3 == 0 else () for number in range(len(hypotheses))]
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
    total, n_words = _score_sentences(model, sentences)
    speed = sum(map(len, hypotheses)) / max(seconds, 1e-9)
    return Check(largest, math.exp(-total / n_words), speed)


def score_alone(model: UnitLanguageModel, config: UnitConfig, words: Words, context: Words = ()) -> float:
    """ln P of one text after its context, read alone in float64: the slow twin of ``UnitLanguageModel``."""
    before = model.divider.divide_text(context)
    units = [*config.start, *model.divider.divide_text((*context, *words))]
    units += [] if config.end is None else [config.end]
    log_probs = model.scorer.decoder.sequence_log_probs(units, torch.float64)  # type: ignore[union-attr]
    return float(log_probs[len(config.start) - 1 + len(before) :].sum())


def _vary(sentences: Sequence[Words]) -> Iterator[Words]:
    """Texts that share prefixes, as hypotheses do: sentences, and these with a word left out or repeated."""
    for words in sentences:
        middle = len(words) // 2
        yield from (
            words,
            words[:middle],
            words[:middle] + words[middle + 1 :],
            words[: middle + 1] + words[middle:],
        )


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
    start: str = AUTO,
    end: str = AUTO,
    text: TextForm = "canonical",
) -> Imported:
    """Choose how a model scores, check it, and write its folder.

    Args:
        sentences: canonical words of sentences by which start and end are chosen, and with which the model is
            checked.
        start, end: ``auto``, or the name or number of a unit; an end may be ``none``.

    Raises:
        BundleError: the model cannot be used, or its words are not divided by themselves.
        ConfigError: there are no sentences, or no unit of a name.
    """
    sentences = [words for words in sentences if words][:CHOSEN_BY]
    if not sentences:
        raise ConfigError("no sentences to choose start and end by; name a file of text by --validation")
    tokenizer = foreign.read_tokenizer()
    starts = choose_start(foreign, tokenizer, sentences, text) if start == AUTO else []
    first = starts[0].unit if starts else _require_unit(tokenizer, start, "start")
    assert first is not None
    config = UnitConfig(foreign.decoder, (first,), None, text, source=foreign.source)
    ends = choose_end(foreign, tokenizer, sentences, config) if end == AUTO else []
    if end != NONE:
        config = replace(config, end=ends[0].unit if ends else _require_unit(tokenizer, end, "end"))
    model = _make(foreign, tokenizer, config)
    if (words := model.divider.find_inseparable(sentences)) is not None:
        raise BundleError(
            f"the tokenizer divides the words of {quote(' '.join(words))} otherwise than each by itself, "
            "which is not supported"
        )
    check = check_model(model, config, sentences)
    config = replace(
        config,
        check={
            "max_difference_per_word": check.max_difference,
            "perplexity_per_word": check.perplexity,
            "sentences": len(sentences),
        },
    )
    write_folder(folder, config, foreign)
    return Imported(config, starts, ends, check, sum(tensor.numel() for tensor in foreign.tensors.values()))


def _require_unit(tokenizer: Tokenizer, name: str, role: str) -> int:
    if (number := find_unit(tokenizer, name)) is None:
        raise ConfigError(f"--{role} is {quote(name)}, which is not a unit of the tokenizer")
    return number


def write_folder(folder: Path, config: UnitConfig, foreign: ForeignModel) -> None:
    """Write the folder of a model, with weights in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.float().contiguous() for name, tensor in foreign.tensors.items()}
    save_file(tensors, folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors makes it private; a server may run as another user
    (folder / foreign.tokenizer_file).write_bytes(foreign.tokenizer)
    (folder / CONFIG_FILE).write_text(json.dumps(config.to_dict(), indent=1) + "\n", encoding="utf-8")

"""Make a bundle from trained models: copy them, fit λ, measure perplexities, publish."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rescorer.bundle import RERANKERS, TEXT, WEIGHTS, publish, read_rerankers, read_weights
from rescorer.bundle.manifest import MAX_MODELS, MAX_SLOTS
from rescorer.bundle.publishing import hash_files
from rescorer.errors import ConfigError, quote
from rescorer.lm.base import LanguageModel
from rescorer.lm.checkpoint import load_model, save_model
from rescorer.lm.files.arpa import is_arpa
from rescorer.lm.files.network_files import NETWORK_FILES
from rescorer.lm.ngrams import NgramModel
from rescorer.lm.ngrams.reading import contains_words
from rescorer.lm.ngrams.table_file import SUFFIX
from rescorer.lm.vocabulary_alignment import align_vocabularies
from rescorer.model_loading import load_network, load_ngram
from rescorer.reranking.files import RERANKER_FILES
from rescorer.safe_input.files import Folder, SealedFolder
from rescorer.score_combination import MIXTURE, weights_to_dict
from rescorer.text import Normaliser
from rescorer.types import Weights
from rescorer_training.data.corpus import read_sentences
from rescorer_training.data.direction import is_backward
from rescorer_training.data.pipes import check_no_pipe
from rescorer_training.evaluation.perplexity import measure
from rescorer_training.evaluation.token_scores import TokenScores, score_tokens
from rescorer_training.recipe.bundles.models import (
    check_model_name,
    check_shares,
    choose_shares,
    divide_weight,
)
from rescorer_training.recipe.bundles.tables import write_arpa_table

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz")
SLOT = re.compile(r"\$[^\W\d]\w*")
"""Words of a text that stand for phrases, such as ``$name``; amounts, such as ``$5``, do not."""


@dataclass(frozen=True)
class BundleParts:
    """Models, texts and settings that make a bundle."""

    name: str
    version: int
    ngrams: Mapping[str, Path]
    """ARPA files and KenLM binaries by model name; the vocabulary of the first decides unknown words."""
    networks: Mapping[str, Path]
    """Folders of trained networks, such as ``best`` of a run, by model name."""
    normaliser: Normaliser
    weights: Weights
    """Default weights. If they have no interpolation weights λ, or only λ of 0, the λ of the other models
    are fitted on ``validation``."""
    validation: Path
    """Held-out text for fitting the interpolation weights λ."""
    tests: Mapping[str, Path]
    """Texts to measure perplexities on, by name."""
    weight_sets: Sequence[Path] = ()
    """JSON files of further weight sets; each set is named after its file."""
    rerankers: Sequence[Path] = ()
    """Folders of rerankers that were trained with these very models; each is named after its folder."""
    tables: bool = False
    """Store n-grams as tables that are mapped into memory; otherwise ARPA files are copied unchanged."""
    half: bool = False
    """Store the networks in half precision; otherwise their weights are copied unchanged."""
    facts: Mapping[str, Any] | None = None
    """Metadata about the training, for the manifest."""


def make_bundle(parts: BundleParts, folder: Path) -> dict[str, Any]:
    """Publish a bundle and return its manifest.

    Raises:
        ConfigError: the folder exists, no model is given, a model cannot have its name, or the λ do not fit
            the models.
        BundleError: a model cannot be read.
    """
    names = [*parts.ngrams, *parts.networks]
    if not names:
        raise ConfigError("a bundle needs a model: give --ngram, --neural or both")
    if len(names) > MAX_MODELS:
        raise ConfigError(f"{len(names)} models; a bundle has at most {MAX_MODELS}")
    for name in names:
        check_model_name(name, parts.weights.streams)
    if len(set(names)) < len(names):
        raise ConfigError("an n-gram and a network have the same name; every model needs a name of its own")

    def fill(partial: Path) -> dict[str, Any]:
        entries, models = copy_models(parts, partial)
        backward = [name for name, model in models.items() if model.backward]
        check_shares(parts.weights.mixture, names, backward)
        align_vocabularies(list(models.values()))
        texts = {"validation": parts.validation, **parts.tests}
        scores = {name: score_text(models, parts.normaliser, path) for name, path in texts.items()}
        shares = choose_shares(parts.weights.mixture, scores["validation"].log_probs, backward)
        ngram = next(iter(parts.ngrams), None)
        measured = {name: summarise_text(scores[name], path, shares, ngram) for name, path in texts.items()}
        (partial / TEXT).write_text(parts.normaliser.settings.to_json() + "\n", encoding="utf-8")
        (partial / WEIGHTS).mkdir()
        lm = divide_weight(parts.weights.lm[MIXTURE], shares, backward)
        weights = weights_to_dict(replace(parts.weights, name="default", lm=lm, mixture=shares))
        default_file = partial / WEIGHTS / "default.json"
        default_file.write_text(json.dumps(weights, indent=2) + "\n", encoding="utf-8")
        for path in parts.weight_sets:
            shutil.copyfile(path, partial / WEIGHTS / path.name)
        sets = {path.stem: f"{WEIGHTS}/{path.name}" for path in (partial / WEIGHTS).glob("*.json")}
        for path in parts.rerankers:
            for file in RERANKER_FILES:
                copy = partial / RERANKERS / path.resolve().name / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path / file, copy)
        # check all rerankers and weight sets before publishing
        rerankers = read_rerankers(SealedFolder(partial), {"models": entries, "files": hash_files(partial)})
        read_weights(Folder(partial), sets, list(models), rerankers, backward)
        return {
            "name": parts.name,
            "version": parts.version,
            "models": entries,
            "measured": measured,
            "training": dict(parts.facts or {}) | read_network_facts(parts.networks),
        }

    publish(folder, fill)
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def copy_models(parts: BundleParts, partial: Path) -> tuple[dict[str, Any], dict[str, LanguageModel]]:
    """Copy the models into the unfinished bundle and load them from there, as the service will.

    Returns:
        Manifest entries and models, both by model name.
    """
    entries: dict[str, Any] = {}
    models: dict[str, LanguageModel] = {}
    for name, source in parts.ngrams.items():
        entries[name] = _copy_ngram(source, partial / name, parts.tables)
        ngram = load_ngram(Folder(partial), name, entries[name])
        entries[name] |= {"order": ngram.order, **describe_slots(ngram)}
        models[name] = ngram
    for name, source in parts.networks.items():
        _copy_network(source, partial / name, parts.half)
        models[name] = load_network(partial / name, name, "cpu")
        entries[name] = {"kind": "neural", "path": name, **describe_direction(models[name].backward)}
    return entries, models


def _copy_ngram(source: Path, folder: Path, as_table: bool) -> dict[str, Any]:
    """Copy an n-gram model, and the word list of a KenLM binary; return its manifest entry.

    Args:
        as_table: write the table of an ARPA file instead of the file.
    """
    check_no_pipe(source)
    if not source.is_file():
        raise ConfigError(f"{source}: no such file; expected an ARPA file, an n-gram table or a KenLM binary")
    direction = describe_direction(is_backward(source))
    if as_table and is_arpa(source):
        folder.mkdir()
        with source.open("rb") as arpa:
            write_arpa_table(arpa, folder / f"model{SUFFIX}")
        return {"kind": "ngram", "path": f"{folder.name}/model{SUFFIX}", **direction}
    has_words = contains_words(source)
    suffix = "".join(source.suffixes[-2:]) if source.suffix in COMPRESSED_SUFFIXES else source.suffix
    path = folder / f"model{suffix}"
    folder.mkdir()
    shutil.copyfile(source, path)
    entry = {"kind": "ngram", "path": f"{folder.name}/{path.name}", **direction}
    if not has_words:
        words = source.with_suffix(".words.txt")  # written by `rescorer-train ngram`
        if not words.exists():
            raise ConfigError(
                f"{source}: is a KenLM binary, and the list of its words, {words}, is missing; give its ARPA "
                "file"
            )
        shutil.copyfile(words, folder / "words.txt")
        entry["words"] = f"{folder.name}/words.txt"
    return entry


def describe_direction(backward: bool) -> dict[str, bool]:
    """The direction of a model for its manifest entry, which only backward models have."""
    return {"backward": True} if backward else {}


def describe_slots(ngram: NgramModel) -> dict[str, list[str]]:
    """The slots of an n-gram for its manifest entry: words like ``$name``; backward models use none.

    Raises:
        ConfigError: there are too many.
    """
    slots = [] if ngram.backward else sorted(filter(SLOT.fullmatch, ngram.vocabulary()))
    if len(slots) > MAX_SLOTS:
        raise ConfigError(
            f"the n-gram {ngram.name!r} has {len(slots):,} words like {quote(slots[0])}, which are slots of "
            f"phrases; expected at most {MAX_SLOTS:,}"
        )
    return {"slots": slots} if slots else {}


def _copy_network(source: Path, folder: Path, half: bool) -> None:
    """Copy a network, in half precision if asked; raises BundleError for a damaged one."""
    model, vocabulary = load_model(source)
    if half:
        return save_model(model, vocabulary, folder, torch.float16)
    folder.mkdir()
    for name in NETWORK_FILES:
        shutil.copyfile(source / name, folder / name)


def read_network_facts(networks: Mapping[str, Path]) -> dict[str, Any]:
    """Read the metadata that training runs saved alongside their models, if any, by model name."""
    files = {name: folder / "training.json" for name, folder in networks.items()}
    return {name: json.loads(file.read_text("utf-8")) for name, file in files.items() if file.exists()}


def score_text(models: Mapping[str, LanguageModel], normaliser: Normaliser, path: Path) -> TokenScores:
    """Score every token of a text, starting each sentence from the start state as the service does."""
    return score_tokens(models, list(read_sentences([path], normaliser)), f"scoring {path.name}")


def summarise_text(
    scores: TokenScores, path: Path, shares: Mapping[str, float], ngram_name: str | None
) -> dict[str, Any]:
    """Return token counts and perplexities of one text, for the manifest.

    Args:
        ngram_name: the first n-gram, with which the mixture is compared.
    """
    measured = measure(scores, shares)
    ngram = measured.models[ngram_name] if ngram_name else None
    first = next(iter(measured.models.values()))
    gain = 100 * (1 - measured.models[MIXTURE].shared / ngram.shared) if ngram else None
    return {
        "text": path.name,
        "sentences": measured.n_sentences,
        "tokens": measured.n_tokens,
        "unknown_words": (ngram or first).n_unknown,
        "perplexity": {name: round(model.shared, 3) for name, model in measured.models.items()},
        **({"mixture_below_ngram_percent": round(gain, 2)} if gain is not None else {}),
    }

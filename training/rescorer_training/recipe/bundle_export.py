"""Make a bundle from trained models: copy them, fit λ, measure perplexities, publish."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rescorer.bundle import RERANKERS, TEXT, WEIGHTS, publish, read_rerankers, read_weights
from rescorer.bundle.publishing import hash_files
from rescorer.errors import ConfigError
from rescorer.lm import checkpoint
from rescorer.lm.base import LanguageModel
from rescorer.lm.checkpoint import load_model, save_model
from rescorer.lm.files.arpa import is_arpa
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.vocabulary_alignment import align_vocabularies
from rescorer.model_loading import load_ngram
from rescorer.reranking.files import RERANKER_FILES
from rescorer.safe_input.files import Folder, SealedFolder
from rescorer.score_combination import MIXTURE, weights_to_dict
from rescorer.text import Normaliser
from rescorer.types import Weights
from rescorer_training.data.corpus import read_sentences
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.perplexity import measure
from rescorer_training.evaluation.token_scores import TokenScores, score_tokens


@dataclass(frozen=True)
class BundleParts:
    """Models, texts and settings that make a bundle."""

    name: str
    version: int
    ngram: Path | None
    neural: Path | None
    """Folder of a trained network, such as ``best`` of its run."""
    normaliser: Normaliser
    weights: Weights
    """Default weights. If they have no interpolation weights λ, these are fitted on ``validation``."""
    validation: Path
    """Held-out text for fitting the interpolation weights λ."""
    tests: Mapping[str, Path]
    """Texts to measure perplexities on, by name."""
    weight_sets: Sequence[Path] = ()
    """JSON files of further weight sets; each set is named after its file."""
    rerankers: Sequence[Path] = ()
    """Folders of rerankers that were trained with these very models; each is named after its folder."""
    half: bool = False
    """Store the network in half precision; otherwise its weights are copied unchanged."""
    facts: Mapping[str, Any] | None = None
    """Metadata about the training, for the manifest."""


def make_bundle(parts: BundleParts, folder: Path) -> dict[str, Any]:
    """Publish a bundle and return its manifest.

    Raises:
        ConfigError: the folder exists, or no model is given.
        BundleError: a model cannot be read.
    """
    if parts.ngram is None and parts.neural is None:
        raise ConfigError("a bundle needs a model: give --ngram, --neural or both")

    def fill(partial: Path) -> dict[str, Any]:
        entries, models = copy_models(parts, partial)
        align_vocabularies(list(models.values()))
        texts = {"validation": parts.validation, **parts.tests}
        scores = {name: score_text(models, parts.normaliser, path) for name, path in texts.items()}
        shares = dict(parts.weights.mixture) or fit_mixture(scores["validation"].log_probs)
        measured = {name: summarise_text(scores[name], path, shares) for name, path in texts.items()}
        (partial / TEXT).write_text(parts.normaliser.settings.to_json() + "\n", encoding="utf-8")
        (partial / WEIGHTS).mkdir()
        weights = weights_to_dict(replace(parts.weights, name="default", mixture=shares))
        default_file = partial / WEIGHTS / "default.json"
        default_file.write_text(json.dumps(weights, indent=2) + "\n", encoding="utf-8")
        for path in parts.weight_sets:
            shutil.copyfile(path, partial / WEIGHTS / path.name)
        names = {path.stem: f"{WEIGHTS}/{path.name}" for path in (partial / WEIGHTS).glob("*.json")}
        for path in parts.rerankers:
            for file in RERANKER_FILES:
                copy = partial / RERANKERS / path.resolve().name / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path / file, copy)
        # check all rerankers and weight sets before publishing
        rerankers = read_rerankers(SealedFolder(partial), {"models": entries, "files": hash_files(partial)})
        read_weights(Folder(partial), names, list(models), rerankers)
        return {
            "name": parts.name,
            "version": parts.version,
            "models": entries,
            "measured": measured,
            "training": dict(parts.facts or {}) | read_network_facts(parts.neural),
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
    if parts.ngram:
        entries["ngram"] = _copy_ngram(parts.ngram, partial)
        ngram = load_ngram(Folder(partial), "ngram", entries["ngram"])
        entries["ngram"]["order"] = ngram.order
        models["ngram"] = ngram
    if parts.neural:
        path = partial / "neural"
        model, vocabulary = load_model(parts.neural)  # raises for a damaged model before it is copied
        if parts.half:
            save_model(model, vocabulary, path, torch.float16)
        else:
            path.mkdir()
            for name in (checkpoint.CONFIG_FILE, checkpoint.WEIGHTS_FILE, checkpoint.VOCABULARY_FILE):
                shutil.copyfile(parts.neural / name, path / name)
        models["neural"] = NeuralLanguageModel(*load_model(path))
        entries["neural"] = {"kind": "neural", "path": "neural"}
    return entries, models


def _copy_ngram(source: Path, partial: Path) -> dict[str, Any]:
    """Copy an n-gram model, and the word list of a KenLM binary; return its manifest entry."""
    suffix = "".join(source.suffixes[-2:]) if source.suffix == ".gz" else source.suffix
    path = partial / "ngram" / f"model{suffix}"
    path.parent.mkdir()
    shutil.copyfile(source, path)
    entry = {"kind": "ngram", "path": str(path.relative_to(partial))}
    if not is_arpa(path):
        words = source.with_suffix(".words.txt")  # written by `rescorer-train ngram`
        if not words.exists():
            raise ConfigError(f"{source}: the word list of a KenLM binary, {words}, is missing")
        shutil.copyfile(words, path.parent / "words.txt")
        entry["words"] = "ngram/words.txt"
    return entry


def read_network_facts(neural: Path | None) -> dict[str, Any]:
    """Read the metadata that the training run saved alongside its model, if any."""
    file = neural / "training.json" if neural else None
    return {"neural": json.loads(file.read_text(encoding="utf-8"))} if file and file.exists() else {}


def score_text(models: Mapping[str, LanguageModel], normaliser: Normaliser, path: Path) -> TokenScores:
    """Score every token of a text, starting each sentence from the start state as the service does."""
    return score_tokens(models, list(read_sentences([path], normaliser)), f"scoring {path.name}")


def summarise_text(scores: TokenScores, path: Path, shares: Mapping[str, float]) -> dict[str, Any]:
    """Return token counts and perplexities of one text, for the manifest."""
    measured = measure(scores, shares)
    ngram = measured.models.get("ngram")
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

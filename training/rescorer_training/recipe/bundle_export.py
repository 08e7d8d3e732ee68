"""Owns the way from trained models to a bundle: copies them, fits λ, measures, publishes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rescorer.bundle import TEXT, WEIGHTS, publish, read_weights
from rescorer.errors import ConfigError
from rescorer.lm import checkpoint
from rescorer.lm.base import LanguageModel
from rescorer.lm.checkpoint import load_model, save_model
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.ngram import is_arpa
from rescorer.lm.vocabulary_alignment import align_vocabularies
from rescorer.model_loading import load_ngram
from rescorer.score_combination import MIXTURE, weights_to_dict
from rescorer.text import Normaliser
from rescorer.types import Weights
from rescorer_training.data.corpus import read_sentences
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.perplexity import measure
from rescorer_training.evaluation.token_scores import TokenScores, score_tokens


@dataclass(frozen=True)
class BundleParts:
    """What goes into a bundle."""

    name: str
    version: int
    ngram: Path | None
    neural: Path | None
    """Folder of a trained model, such as a run's ``best``."""
    normaliser: Normaliser
    weights: Weights
    """λ are fitted where they are empty."""
    validation: Path
    """Text that λ are fitted on."""
    tests: Mapping[str, Path]
    """Texts to measure, by name."""
    weight_sets: Sequence[Path] = ()
    """Further weights to offer beside the default, JSON, called as their files are."""
    half: bool = False
    """Store the network's weights in half precision; else they stay as they are stored."""
    facts: Mapping[str, Any] | None = None
    """How the models came to be, for the manifest."""


def make_bundle(parts: BundleParts, folder: Path) -> dict[str, Any]:
    """Publishes a bundle and returns its manifest.

    Raises:
        ConfigError: the folder exists, or there is no model.
        BundleError: a model cannot be read.
    """
    if parts.ngram is None and parts.neural is None:
        raise ConfigError("a bundle needs a model: give --ngram, --neural or both")

    def fill(partial: Path) -> dict[str, Any]:
        entries, models = place_models(parts, partial)
        align_vocabularies(list(models.values()))
        texts = {"validation": parts.validation, **parts.tests}
        scores = {name: scored_text(models, parts.normaliser, path) for name, path in texts.items()}
        shares = dict(parts.weights.mixture) or fit_mixture(scores["validation"].log_probs)
        weights = replace(parts.weights, name="default", mixture=shares)
        measured = {name: measure_text(scores[name], path, shares) for name, path in texts.items()}
        (partial / TEXT).write_text(parts.normaliser.settings.to_json() + "\n", encoding="utf-8")
        (partial / WEIGHTS).mkdir()
        text = json.dumps(weights_to_dict(weights), indent=2) + "\n"
        (partial / WEIGHTS / "default.json").write_text(text, encoding="utf-8")
        for path in parts.weight_sets:
            shutil.copyfile(path, partial / WEIGHTS / path.name)
        read_weights(partial, list(models))
        return {
            "name": parts.name,
            "version": parts.version,
            "models": entries,
            "measured": measured,
            "training": dict(parts.facts or {}) | network_facts(parts.neural),
        }

    publish(folder, fill)
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def place_models(parts: BundleParts, partial: Path) -> tuple[dict[str, Any], dict[str, LanguageModel]]:
    """Copies the models into the bundle and loads them from there, as they will be served."""
    entries: dict[str, Any] = {}
    models: dict[str, LanguageModel] = {}
    if parts.ngram:
        suffix = "".join(parts.ngram.suffixes[-2:]) if parts.ngram.suffix == ".gz" else parts.ngram.suffix
        path = partial / "ngram" / f"model{suffix}"
        path.parent.mkdir()
        shutil.copyfile(parts.ngram, path)
        entries["ngram"] = {"kind": "ngram", "path": str(path.relative_to(partial))}
        if not is_arpa(path):
            words = parts.ngram.with_suffix(".words.txt")  # `rescorer-train ngram` leaves it there
            if not words.exists():
                raise ConfigError(f"{parts.ngram}: a KenLM binary cannot list its words; {words} is missing")
            shutil.copyfile(words, path.parent / "words.txt")
            entries["ngram"]["words"] = "ngram/words.txt"
        ngram = load_ngram(partial, "ngram", entries["ngram"])
        models["ngram"] = ngram
        entries["ngram"]["order"] = ngram.order
    if parts.neural:
        path = partial / "neural"
        model, vocabulary = load_model(parts.neural)  # a damaged one is not copied
        if parts.half:
            save_model(model, vocabulary, path, torch.float16)
        else:
            path.mkdir()
            for name in (checkpoint.CONFIG_FILE, checkpoint.WEIGHTS_FILE, checkpoint.VOCABULARY_FILE):
                shutil.copyfile(parts.neural / name, path / name)
        models["neural"] = NeuralLanguageModel(*load_model(path))
        entries["neural"] = {"kind": "neural", "path": "neural"}
    return entries, models


def network_facts(neural: Path | None) -> dict[str, Any]:
    """What the training run wrote beside its model."""
    file = neural / "training.json" if neural else None
    return {"neural": json.loads(file.read_text(encoding="utf-8"))} if file and file.exists() else {}


def scored_text(models: Mapping[str, LanguageModel], normaliser: Normaliser, path: Path) -> TokenScores:
    """Scores of every token of a text, each sentence from its start, as it will be served."""
    return score_tokens(models, list(read_sentences([path], normaliser)), f"scoring {path.name}")


def measure_text(scores: TokenScores, path: Path, shares: Mapping[str, float]) -> dict[str, Any]:
    """Perplexities of one text, for the manifest."""
    measured = measure(scores, shares)
    values = {name: round(each.shared, 3) for name, each in measured.models.items()}
    ngram = measured.models.get("ngram")
    decides = ngram or next(iter(measured.models.values()))  # whose vocabulary says what is unknown
    gain = 100 * (1 - measured.models[MIXTURE].shared / ngram.shared) if ngram else None
    return {
        "text": path.name,
        "sentences": measured.n_sentences,
        "tokens": measured.n_tokens,
        "unknown_words": decides.n_unknown,
        "perplexity": values,
        **({"mixture_below_ngram_percent": round(gain, 2)} if gain is not None else {}),
    }

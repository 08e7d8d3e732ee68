"""Owns the set of models that a measuring command works on: a bundle's, single n-grams and networks, or all
of them together over one union of vocabularies, with the shares of their mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rescorer.bundle import load_bundle, load_network, read_words
from rescorer.errors import BundleError, ConfigError
from rescorer.lm.base import LanguageModel
from rescorer.lm.mixture import align_vocabularies, check_mixture
from rescorer.lm.ngram import NgramModel, is_arpa
from rescorer.text import Normaliser


@dataclass(frozen=True)
class ModelSet:
    """Models by name, aligned, and the text form that they share."""

    models: Mapping[str, LanguageModel]
    normaliser: Normaliser
    shares: Mapping[str, float]
    """λ of each model in their word-level mixture; empty where there is one model only."""


def load_models(
    bundle: Path | None,
    ngrams: Sequence[Path] = (),
    neurals: Sequence[Path] = (),
    *,
    normaliser: Normaliser | None = None,
    shares: Mapping[str, float] | None = None,
    device: str = "cpu",
) -> ModelSet:
    """Loads the models and fixes how unknown words are shared between them, as in a bundle.

    Args:
        ngrams: ARPA files or KenLM binaries, called ngram, ngram2, …
        neurals: folders of trained networks, or of the runs that trained them: neural, neural2, …
        normaliser: None: the bundle's, or the default one.
        shares: λ by name; None: the bundle's where it brings all the models, else even ones.

    Raises:
        ConfigError: no model is given, or the shares do not fit them.
        BundleError: a model cannot be read.
    """
    loaded = load_bundle(bundle, device) if bundle else None
    models: dict[str, LanguageModel] = dict(loaded.models) if loaded else {}
    for path in ngrams:
        name = free_name("ngram", models)
        models[name] = open_ngram(path, name)
    for folder in neurals:
        name = free_name("neural", models)
        models[name] = load_network(model_folder(folder), name, device)
    if not models:
        raise ConfigError("no model: give --bundle, --ngram or --neural")
    align_vocabularies(list(models.values()))
    chosen: Mapping[str, float] = {name: 1 / len(models) for name in models}
    if shares:
        check_mixture(shares, list(models))
        chosen = shares
    elif loaded and len(models) == len(loaded.models):
        chosen = loaded.weights["default"].mixture
    chosen = chosen if len(models) > 1 else {}
    return ModelSet(models, normaliser or (loaded.normaliser if loaded else Normaliser()), chosen)


def free_name(kind: str, taken: Mapping[str, object]) -> str:
    """``kind``, or ``kind2``, … where that is taken."""
    names = [kind, *(f"{kind}{i}" for i in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)


def open_ngram(path: Path, name: str = "ngram") -> NgramModel:
    """An n-gram model; a KenLM binary cannot list its words, ``rescorer-train ngram`` wrote them beside it.

    Raises:
        BundleError: the file, or the list of a binary's words, cannot be read.
    """
    return NgramModel(path, name, None if is_arpa(path) else binary_words(path))


def binary_words(path: Path) -> frozenset[str]:
    """Words of a KenLM binary, from the list beside it; raises BundleError where there is none."""
    words = path.with_suffix(".words.txt")
    if path.exists() and not words.exists():
        raise BundleError(
            f"{path}: no ARPA file, and a KenLM binary cannot list its words; {words} is missing"
        )
    return frozenset(read_words(words)) if words.exists() else frozenset()


def model_folder(folder: Path) -> Path:
    """The best model of a run, where ``folder`` is a run; else ``folder``."""
    best = folder / "best"
    return best if best.is_dir() else folder

"""Load the models that a command evaluates: those of a bundle, single n-gram models and networks, or any
combination, aligned over the union of their vocabularies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rescorer.bundle import read_bundle
from rescorer.errors import BundleError, ConfigError
from rescorer.lm.base import LanguageModel
from rescorer.lm.files.word_list import read_words
from rescorer.lm.mixture import check_mixture
from rescorer.lm.ngrams import NgramModel, read_ngram
from rescorer.lm.ngrams.reading import contains_words
from rescorer.lm.vocabulary_alignment import align_vocabularies
from rescorer.model_loading import load_bundle_models, load_network
from rescorer.safe_input.files import Folder
from rescorer.text import Normaliser
from rescorer_training.data.direction import is_backward
from rescorer_training.data.normalisation import common_normaliser, recorded_normalisers
from rescorer_training.data.pipes import check_no_pipe


@dataclass(frozen=True)
class ModelSet:
    """Models with aligned vocabularies, by name, and their common normaliser."""

    models: Mapping[str, LanguageModel]
    normaliser: Normaliser
    shares: Mapping[str, float]
    """Interpolation weight λ of each model in the word-level mixture; empty for a single model and for both
    directions."""


def load_models(
    bundle: Path | None,
    ngrams: Sequence[Path] = (),
    neurals: Sequence[Path] = (),
    *,
    normaliser: Normaliser | None = None,
    shares: Mapping[str, float] | None = None,
    device: str = "cpu",
) -> ModelSet:
    """Load models and align their vocabularies, so that unknown words are treated as in a bundle.

    Args:
        ngrams: ARPA files or KenLM binaries, named ngram, ngram2, …
        neurals: folders of trained networks or of their training runs, named neural, neural2, …
        normaliser: None uses the normaliser recorded with the models, or the default one if none is recorded.
        shares: interpolation weight λ by model name. None uses the bundle's weights if all models come from
            the bundle, and equal weights otherwise; models of both directions are not mixed.

    Raises:
        ConfigError: no model is given, the shares do not match the models, or the models were trained with
            different normalisers and none is given.
        BundleError: a model cannot be read.
    """
    loaded = read_bundle(bundle) if bundle else None
    if normaliser is None:
        recorded = {bundle: loaded.normaliser} if bundle and loaded else {}
        recorded |= recorded_normalisers([*ngrams, *map(resolve_model_folder, neurals)])
        normaliser = common_normaliser(recorded) or Normaliser()
    models = load_bundle_models(loaded, device) if loaded else {}
    for path in ngrams:
        name = choose_name("ngram", models)
        models[name] = open_ngram(path, name)
    for folder in neurals:
        name = choose_name("neural", models)
        models[name] = load_network(resolve_model_folder(folder), name, device)
    if not models:
        raise ConfigError("no model given: add --bundle, --ngram or --neural")
    align_vocabularies(list(models.values()))
    chosen: Mapping[str, float] = {name: 1 / len(models) for name in models}
    backward = [name for name, model in models.items() if model.backward]
    if shares:
        check_mixture(shares, list(models), backward)
        chosen = shares
    elif 0 < len(backward) < len(models):
        chosen = {}
    elif loaded and len(models) == len(loaded.model_kinds):
        chosen = loaded.weights["default"].mixture
    chosen = chosen if len(models) > 1 else {}
    return ModelSet(models, normaliser, chosen)


def choose_name(kind: str, taken: Collection[str]) -> str:
    """Return ``kind``, or the first of ``kind2``, ``kind3``, … that is not taken."""
    names = [kind, *(f"{kind}{i}" for i in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)


def open_ngram(path: Path, name: str = "ngram") -> NgramModel:
    """Open an n-gram model.

    A KenLM binary does not contain its word list; ``rescorer-train ngram`` writes the word list
    to a file next to the binary.

    Raises:
        BundleError: the file, the word list of a binary, or the record of its direction cannot be read.
        ConfigError: it is a pipe.
    """
    check_no_pipe(path)
    words = None if contains_words(path) else _read_binary_words(path)
    return read_ngram(path, name, words, backward=is_backward(path))


def _read_binary_words(path: Path) -> frozenset[str]:
    """Read the word list next to a KenLM binary; raises BundleError if there is none."""
    words = path.with_suffix(".words.txt")
    if not words.exists():
        raise BundleError(
            f"{path}: is a KenLM binary, and the list of its words, {words}, is missing; give its ARPA file"
        )
    return frozenset(read_words(Folder(words.parent), words.name))


def resolve_model_folder(folder: Path) -> Path:
    """Return the best model's folder if ``folder`` is a training run, and ``folder`` itself otherwise."""
    best = folder / "best"
    return best if best.is_dir() else folder

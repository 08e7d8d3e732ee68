"""Make bundles from trained models: name and copy the models, fit their mixture, measure, and publish."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import torch

from rescorer.errors import ConfigError, FormatError, quote
from rescorer.models.arpa import has_arpa_header, is_arpa
from rescorer.models.bundle import (
    MAX_MODELS,
    MAX_SLOTS,
    RERANKERS,
    TEXT,
    WEIGHTS,
    Bundle,
    check_model_name,
    find_networks,
    hash_files,
    hash_model,
    publish,
    read_bundle,
    read_rerankers,
    read_unit_facts,
    read_weights,
)
from rescorer.models.language_model import LanguageModel
from rescorer.models.network_files import (
    CONFIG_FILE,
    LICENCE_FILE,
    NETWORK_FILES,
    TOKENIZER_FILES,
    WEIGHTS_FILE,
)
from rescorer.models.neural import load_model, save_model
from rescorer.models.ngram_files import SUFFIX, contains_words, read_arpa_model, write_table
from rescorer.models.ngrams import NgramModel, align_vocabularies
from rescorer.models.precision import RECORD, PrecisionCheck, compare_precisions, make_record
from rescorer.pipeline import load_network, load_ngram
from rescorer.reranking.reranker import RERANKER_CONFIG_FILE, RERANKER_FILES
from rescorer.safe_input import Folder, SealedFolder
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.types import Weights
from rescorer.units.files import load_unit_model
from rescorer.units.model import UnitLanguageModel
from rescorer.units.tokens import NO_WORD_STARTS
from rescorer.weights import MIXTURE, KnownNames, check_mixture, weights_to_dict
from rescorer_training.corpus import is_backward, read_sentences
from rescorer_training.evaluation import perplexity
from rescorer_training.pipes import check_no_pipe


def name_models(kind: str, values: Sequence[str]) -> dict[str, Path]:
    """Read the options ``FILE`` and ``NAME=FILE``. Models without a name are called KIND, KIND2, … in order.

    Raises:
        ConfigError: two models have the same name.
    """
    models: dict[str, Path] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not equals or Path(value).exists():  # a path may contain "="
            name, path = perplexity.choose_name(kind, models), value
        if name in models:
            raise ConfigError(f"--{kind} {value}: there is already a model {quote(name)}, {models[name]}")
        models[name] = Path(path)
    return models


def check_shares(given: Mapping[str, float], names: Sequence[str], backward: Collection[str] = ()) -> None:
    """Check the given interpolation weights λ.

    Either they are all weights of a mixture, and sum to 1; or all are 0, which leaves these models out of the
    mixture, and the other λ will be fitted.

    Args:
        backward: names of the backward models.

    Raises:
        ConfigError: a model is unknown, no model is left, the λ do not sum to 1, or they mix directions.
    """
    left = [name for name in names if given.get(name) != 0]
    if any(given.values()) or not left:
        check_mixture(given, names, backward)
    elif unknown := sorted(set(given) - set(names)):
        raise ConfigError(f"λ of an unknown model {quote(unknown[0])}; the models are {', '.join(names)}")


def choose_shares(
    given: Mapping[str, float], log_probs: Mapping[str, np.ndarray], backward: Collection[str] = ()
) -> dict[str, float]:
    """Choose the interpolation weight λ of every model of one direction.

    If any λ above 0 is given, the given λ are used, and the other models get 0. The direction is that of the
    models with a λ above 0. Otherwise, the λ of all models without a given λ are fitted by EM. The direction
    is then forward, unless only backward models are left.

    Args:
        given: λ that have passed ``check_shares``.
        log_probs: for each model, (T,) ln P of every held-out token.
        backward: names of the backward models.
    """
    left = [name for name in log_probs if given.get(name) or (name not in given and not any(given.values()))]
    is_backward = all(name in backward for name in left)
    mixed = {name: part for name, part in log_probs.items() if (name in backward) == is_backward}
    fitted = {} if any(given.values()) else {name: mixed[name] for name in left if name in mixed}
    shares = {**given, **(perplexity.fit_mixture(fitted) if fitted else {})}
    return {name: shares.get(name, 0.0) for name in mixed}


def divide_weight(
    mixture_weight: float, mixture: Collection[str], backward: Collection[str]
) -> dict[str, float]:
    """Divide the weight of the mixture, so that the sentence scores of both directions are averaged.

    The mixture gets half of the weight, and the backward models outside the mixture share the other half. If
    there are none, the mixture gets all of it.

    Args:
        mixture: names of the models that are mixed.
    """
    outside = [name for name in backward if name not in mixture]
    if not outside:
        return {MIXTURE: mixture_weight}
    half = mixture_weight / 2
    return {MIXTURE: half, **dict.fromkeys(outside, half / len(outside))}


def write_arpa_table(arpa: BinaryIO, path: Path) -> None:
    """Write an open ARPA file as an n-gram table; raises BundleError if it cannot be read."""
    model = read_arpa_model(arpa)
    with path.open("wb") as output:
        write_table(output, model.content)


def publish_tables(source: Path, output: Path) -> list[str]:
    """Publish a copy of a bundle with n-gram tables in place of ARPA files.

    Scores stay the same to the last bit, so that weights sets and rerankers stay valid.

    Args:
        output: folder of the new bundle, NAME/VERSION.

    Returns:
        Names of the models that have become tables.

    Raises:
        BundleError: the bundle cannot be read.
        ConfigError: the bundle has no ARPA file, or the output exists.
    """
    bundle = read_bundle(source)
    converted = [name for name in bundle.manifest["models"] if _is_arpa(bundle, name)]
    if not converted:
        kinds = ", ".join(f"{name} ({kind})" for name, kind in bundle.model_kinds.items())
        raise ConfigError(f"{bundle.label}: has no n-gram as ARPA file to make a table of; it has {kinds}")
    publish(output, lambda partial: _fill(partial, bundle, converted, output))
    return converted


def _is_arpa(bundle: Bundle, name: str) -> bool:
    entry = bundle.manifest["models"][name]
    if entry["kind"] != "ngram":
        return False
    with bundle.files.open(entry["path"]) as stream:
        return has_arpa_header(stream)


def _fill(partial: Path, bundle: Bundle, converted: list[str], output: Path) -> dict[str, Any]:
    """Write the files of the new bundle; return its manifest."""
    entries = dict(bundle.manifest["models"])
    copy_files(bundle, partial, {entries[name]["path"] for name in converted})
    for name in converted:
        path = PurePosixPath(entries[name]["path"])
        table = str(path.with_name(path.name.split(".")[0] + SUFFIX))
        entries[name] = {**entries[name], "path": table}
        (partial / table).parent.mkdir(parents=True, exist_ok=True)
        with bundle.files.open(str(path)) as stream:
            write_arpa_table(stream, partial / table)
    manifest = {"models": entries, "files": hash_files(partial)}
    for name in bundle.rerankers:
        _update_hashes(partial / RERANKERS / name / RERANKER_CONFIG_FILE, manifest)
    training = {**bundle.manifest.get("training", {}), "tables_of": bundle.label}
    return {**rename_manifest(bundle, output), "models": entries, "training": training}


def copy_files(bundle: Bundle, folder: Path, without: Collection[str] = ()) -> None:
    """Copy the files of a bundle, without the manifest and without some of them."""
    for file in bundle.manifest["files"]:
        if file not in without:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            with bundle.files.open(file) as stream, (folder / file).open("wb") as copy:
                shutil.copyfileobj(stream, copy)


def rename_manifest(bundle: Bundle, output: Path) -> dict[str, Any]:
    """The manifest of a bundle without its files, for a copy in the folder ``output``, NAME/VERSION."""
    kept = {key: value for key, value in bundle.manifest.items() if key not in ("schema", "files")}
    return {**kept, "name": output.absolute().parent.name, "version": int(output.name)}


def _load_in(bundle: Bundle, name: str, dtype: str) -> LanguageModel:
    """Load a network or a model in pieces of words in a precision, without a cache."""
    entry = bundle.manifest["models"][name]
    load = load_unit_model if entry["kind"] == "units" else load_network
    return load(bundle.files.subfolder(entry["path"].rstrip("/")), name, "cpu", dtype, 0)


def publish_precisions(
    source: Path, output: Path, sentences: Sequence[Words], tolerance: float
) -> dict[str, dict[str, PrecisionCheck]]:
    """Publish a copy of a bundle that records which precision its models shall have on CPUs.

    Args:
        output: folder of the new bundle, NAME/VERSION.
        sentences: text on which the precisions of each model are compared.
        tolerance: largest mean difference from float32 per word, in nats.

    Returns:
        Differences and speeds in each precision, by model.

    Raises:
        BundleError: the bundle cannot be read.
        ConfigError: the bundle has only n-grams, or the output exists.
    """
    bundle = read_bundle(source)
    names = find_networks(bundle.manifest, "neural", "units")
    found = {
        name: compare_precisions(partial(_load_in, bundle, name), sentences, REPETITIONS) for name in names
    }
    if not found:
        raise ConfigError(f"{bundle.label}: has only n-grams, which have no precision to choose")

    def fill(folder: Path) -> dict[str, Any]:
        copy_files(bundle, folder)
        return {**rename_manifest(bundle, output), RECORD: make_record(found, tolerance)}

    publish(output, fill)
    return found


def _update_hashes(path: Path, manifest: Mapping[str, Any]) -> None:
    """Update the hashes of model files in the configuration of a reranker."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["models"] = {name: hash_model(manifest, name) for name in config["models"]}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


REPETITIONS = 3  # how often a text is scored in each precision; the fastest time counts

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz")
SLOT = re.compile(r"\$[^\W\d]\w*")
"""Pattern of words that stand for phrases, such as ``$name``, but not of amounts, such as ``$5``."""


@dataclass(frozen=True)
class BundleParts:
    """Models, texts and settings that make a bundle."""

    name: str
    version: int
    ngrams: Mapping[str, Path]
    """ARPA files and KenLM binaries by model name. Words that the first one lacks count as unknown words."""
    networks: Mapping[str, Path]
    """Folders of trained networks, such as ``best`` of a run, by model name."""
    normaliser: Normaliser
    weights: Weights
    """Default weights. If they have no interpolation weight λ above 0, λ are fitted on ``validation``."""
    validation: Path
    """Held-out text for fitting the interpolation weights λ."""
    tests: Mapping[str, Path]
    """Texts to measure perplexities on, by name."""
    units: Mapping[str, Path] = field(default_factory=dict)
    """Folders of imported models in pieces of words, by model name."""
    mix_units: bool = False
    """Mix these word by word with the other models, and not only those that have a λ in ``weights``."""
    weight_sets: Sequence[Path] = ()
    """JSON files of further weight sets. Each set is named after its file."""
    rerankers: Sequence[Path] = ()
    """Folders of rerankers that were trained with the same models. Each is named after its folder."""
    tables: bool = False
    """Convert ARPA files to n-gram tables, which are mapped into memory, instead of copying them."""
    half: bool = False
    """Store networks in half precision instead of copying their weights."""
    facts: Mapping[str, Any] | None = None
    """Metadata about the training, for the manifest."""


def make_bundle(parts: BundleParts, folder: Path) -> dict[str, Any]:
    """Publish a bundle and return its manifest.

    Raises:
        ConfigError: the folder exists, no model is given, a model cannot have its name, or the λ do not fit
            the models.
        BundleError: a model cannot be read.
    """
    names = [*parts.ngrams, *parts.networks, *parts.units]
    if not names:
        raise ConfigError("a bundle needs a model: give --ngram, --neural or --units")
    if len(names) > MAX_MODELS:
        raise ConfigError(f"{len(names)} models; a bundle has at most {MAX_MODELS}")
    for name in names:
        check_model_name(name, parts.weights.streams)
    if len(set(names)) < len(names):
        raise ConfigError("two models of different kinds have the same name; every model needs its own name")

    def fill(partial: Path) -> dict[str, Any]:
        entries, models = copy_models(parts, partial)
        unit_entries, unit_models = copy_units(parts.units, partial)
        entries |= unit_entries
        unmixed = find_unmixed(entries, unit_models, partial)
        models |= select_mixed(parts, unit_models, unmixed)
        measured, weights = measure_mixture(parts, models)
        (partial / TEXT).write_text(parts.normaliser.settings.to_json() + "\n", encoding="utf-8")
        (partial / WEIGHTS).mkdir()
        default_file = partial / WEIGHTS / "default.json"
        default_file.write_text(json.dumps(weights_to_dict(weights), indent=2) + "\n", encoding="utf-8")
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
        backward = [name for name, model in models.items() if model.backward]
        known = KnownNames(
            list(entries), rerankers, backward, open_vocabulary=list(parts.units), unmixed=unmixed
        )
        read_weights(Folder(partial), sets, known)
        files = {name: folder / "training.json" for name, folder in parts.networks.items()}
        return {
            "name": parts.name,
            "version": parts.version,
            "models": entries,
            "measured": measured,
            "training": dict(parts.facts or {})
            | {name: json.loads(file.read_text("utf-8")) for name, file in files.items() if file.exists()},
        }

    publish(folder, fill)
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def measure_mixture(
    parts: BundleParts, models: Mapping[str, LanguageModel]
) -> tuple[dict[str, Any], Weights]:
    """Measure texts under models that are mixed word by word; return facts about them, and default weights.

    If no model is mixed, all read pieces of words, and each gets the same weight.
    """
    if not models:
        share = parts.weights.lm[MIXTURE] / len(parts.units)
        return {}, replace(parts.weights, name="default", lm=dict.fromkeys(parts.units, share), mixture={})
    backward = [name for name, model in models.items() if model.backward]
    check_shares(parts.weights.mixture, list(models), backward)
    align_vocabularies(list(models.values()))
    texts = {"validation": parts.validation, **parts.tests}
    scores = {name: score_text(models, parts.normaliser, path) for name, path in texts.items()}
    shares = choose_shares(parts.weights.mixture, scores["validation"].log_probs, backward)
    ngram = next(iter(parts.ngrams), None)
    measured = {name: summarise_text(scores[name], path, shares, ngram) for name, path in texts.items()}
    lm = divide_weight(parts.weights.lm[MIXTURE], shares, backward)
    lm |= {name: 0.0 for name in parts.units if name not in models}  # tuning finds their weights
    return measured, replace(parts.weights, name="default", lm=lm, mixture=shares)


def find_unmixed(
    entries: Mapping[str, Any], models: Mapping[str, UnitLanguageModel], partial: Path
) -> dict[str, str]:
    """Find the models in pieces of words that cannot be mixed word by word, each with the reason."""
    facts = read_unit_facts(Folder(partial), {"models": entries})
    found = {name: facts[name].unmixed for name in models}
    for name, model in models.items():
        if not found[name] and not model.scores_words:
            found[name] = NO_WORD_STARTS
    return {name: reason for name, reason in found.items() if reason}


def select_mixed(
    parts: BundleParts, models: Mapping[str, UnitLanguageModel], unmixed: Mapping[str, str]
) -> dict[str, UnitLanguageModel]:
    """Select the models in pieces of words that are mixed word by word.

    Raises:
        ConfigError: one of them cannot be.
    """
    selected = {
        name: model for name, model in models.items() if parts.mix_units or name in parts.weights.mixture
    }
    for name in selected:
        if name in unmixed:
            raise ConfigError(f"the model {quote(name)} is one {unmixed[name]}; it cannot be mixed")
    return selected


def copy_units(
    units: Mapping[str, Path], partial: Path
) -> tuple[dict[str, Any], dict[str, UnitLanguageModel]]:
    """Copy models in pieces of words into the unfinished bundle, and load them.

    Returns:
        Manifest entries and models, both by model name.

    Raises:
        BundleError: a folder is not one that ``rescorer-train import`` wrote.
    """
    entries, models = {}, {}
    for name, source in units.items():
        models[name] = load_unit_model(source, name)  # which checks its files
        tokenizer = next(file for file in TOKENIZER_FILES if (source / file).exists())
        (partial / name).mkdir()
        for file in (CONFIG_FILE, WEIGHTS_FILE, tokenizer, LICENCE_FILE):
            if file != LICENCE_FILE or (source / file).exists():
                shutil.copyfile(source / file, partial / name / file)
        entries[name] = {"kind": "units", "path": name, "tokenizer": tokenizer}
    return entries, models


def copy_models(parts: BundleParts, partial: Path) -> tuple[dict[str, Any], dict[str, LanguageModel]]:
    """Copy the models into the unfinished bundle, and load them from there, as the service will do.

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
        as_table: convert an ARPA file to an n-gram table.
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
    """Return the field ``backward`` for a model's manifest entry; nothing for forward models."""
    return {"backward": True} if backward else {}


def describe_slots(ngram: NgramModel) -> dict[str, list[str]]:
    """Return the slots of an n-gram, words like ``$name``, for its manifest entry. Backward models have none.

    Raises:
        ConfigError: there are too many slots.
    """
    slots = [] if ngram.backward else sorted(filter(SLOT.fullmatch, ngram.vocabulary()))
    if len(slots) > MAX_SLOTS:
        raise ConfigError(
            f"the n-gram {ngram.name!r} has {len(slots):,} words like {quote(slots[0])}, which are slots of "
            f"phrases; expected at most {MAX_SLOTS:,}"
        )
    return {"slots": slots} if slots else {}


def _copy_network(source: Path, folder: Path, half: bool) -> None:
    """Copy a network, optionally in half precision; raises BundleError if the network is damaged."""
    model, vocabulary = load_model(source)
    if half:
        return save_model(model, vocabulary, folder, torch.float16)
    folder.mkdir()
    for name in NETWORK_FILES:
        shutil.copyfile(source / name, folder / name)


def score_text(
    models: Mapping[str, LanguageModel], normaliser: Normaliser, path: Path
) -> perplexity.TokenScores:
    """Score every token of a text; raises FormatError if it has no words.

    As in the service, each sentence starts from the start state.
    """
    sentences = list(read_sentences([path], normaliser))
    if not sentences:
        raise FormatError("no words in the text to score", file=str(path))
    return perplexity.score_tokens(models, sentences, f"scoring {path.name}")


def summarise_text(
    scores: perplexity.TokenScores, path: Path, shares: Mapping[str, float], ngram_name: str | None
) -> dict[str, Any]:
    """Return token counts and perplexities of one text, for the manifest.

    For models that lack words which another model knows, there are also the numbers of unknown words, and the
    perplexities in which all unknown words count as one word, as in training.

    Args:
        ngram_name: name of the first n-gram, with which the mixture is compared; None without n-grams.
    """
    measured = perplexity.measure(scores, shares)
    ngram = measured.models[ngram_name] if ngram_name else None
    first = next(iter(measured.models.values()))
    gain = 100 * (1 - measured.models[MIXTURE].shared / ngram.shared) if ngram else None
    as_trained = {
        name: {"perplexity": round(model.counted, 3), "unknown_words": model.n_unknown}
        for name, model in measured.models.items()
        if name != MIXTURE and model.counted is not None and round(model.counted, 2) != round(model.shared, 2)
    }
    return {
        "text": path.name,
        "sentences": measured.n_sentences,
        "tokens": measured.n_tokens,
        "unknown_words": (ngram or first).n_unknown,
        "perplexity": {name: round(model.shared, 3) for name, model in measured.models.items()},
        **({"unknown_as_one_word": as_trained} if as_trained else {}),
        **({"mixture_below_ngram_percent": round(gain, 2)} if gain is not None else {}),
    }

"""Owns the run of a recipe, from raw text to a verified bundle and its report; a stage whose result is there
already is not done again, and a network that was killed goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import cast

import torch
import typer

from rescorer.bundle import read_bundle
from rescorer.errors import ConfigError
from rescorer.lm.device import use_threads
from rescorer.lm.networks import NeuralModel
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.model_loading import load_bundle_models
from rescorer.text import Normaliser
from rescorer.types import Weights
from rescorer_training.data.corpus import count_words, read_lines, read_sentences
from rescorer_training.data.normalisation import read_normaliser
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.model_set import load_models
from rescorer_training.evaluation.perplexity import Perplexity, measure
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.neural import train
from rescorer_training.neural.checkpoint import STATE
from rescorer_training.neural.postprocess import quantise
from rescorer_training.neural.prepare import prepared
from rescorer_training.ngram.backoff_model import load_backoff_model
from rescorer_training.ngram.estimate import atomic_output, train_ngram
from rescorer_training.ngram.prune import compute_stationary_history, prune
from rescorer_training.recipe.bundle_export import BundleParts, make_bundle
from rescorer_training.recipe.config import NetworkRecipe, Recipe
from rescorer_training.recipe.report import MeasuredModel, Report, machine, write_report

NGRAM, VOCABULARY, NETWORKS, BUNDLES = "ngram.arpa.gz", "vocabulary.txt", "networks", "bundle"
UNKNOWN_WORDS = (
    "The n-gram and each network share the union of their vocabularies: a word that one of them lacks "
    "costs it a part of its `<unk>`."
)


@dataclass(frozen=True)
class Kitchen:
    """Where a recipe is made: its texts found, its folder there."""

    recipe: Recipe
    data: Path
    folder: Path
    device: str
    threads: int | None
    normaliser: Normaliser
    train: tuple[Path, ...]
    validation: Path

    @property
    def tests(self) -> tuple[Path, ...]:
        return tuple(self.data / name for name in self.recipe.text.tests)

    def text(self, name: str) -> Path:
        """A training text of the recipe, without what was held out of it."""
        return self.train[0] if name == self.recipe.text.train[0] else self.data / name

    def network_folder(self, name: str) -> Path:
        return self.folder / NETWORKS / name

    def tell(self, what: str) -> None:
        typer.echo(f"{self.recipe.name}: {what}", err=True)


def run_recipe(
    recipe: Recipe, data: Path, folder: Path, *, device: str = "cpu", threads: int | None = None
) -> Report:
    """Makes the n-gram, the networks, the bundle and the report in ``folder``.

    Raises:
        ConfigError: a text of the recipe is not in ``data``.
        RescorerError: whatever a stage raises; what was done before it stays.
    """
    kitchen = lay_out(recipe, data, folder, device, threads)
    make_ngram(kitchen)
    for name, network in recipe.networks.items():
        make_network(kitchen, name, network)
    publish(kitchen)
    report = measure_all(kitchen)
    write_report(report, folder)
    return report


def lay_out(recipe: Recipe, data: Path, folder: Path, device: str, threads: int | None) -> Kitchen:
    """Finds the texts and takes the held-out lines out of the first."""
    text = recipe.text
    own = chain.from_iterable(network.place.train for network in recipe.networks.values())
    named = [*text.train, text.validation, *text.tests, *recipe.vocabulary.all_of, *own]
    missing = sorted({name for name in named if name and not (data / name).exists()})
    if missing:
        raise ConfigError(f"{data} has no {', '.join(missing)}; say where the texts are with --data")
    folder.mkdir(parents=True, exist_ok=True)
    train, validation = tuple(data / name for name in text.train), data / text.validation
    if text.held_out_lines:
        train, validation = hold_out(train, text.held_out_lines, folder / "text")
    settings = text.normaliser or None
    if settings not in (None, "raw"):
        settings = str(recipe.beside(settings))
    normaliser = read_normaliser(settings)
    return Kitchen(recipe, data, folder, device, threads, normaliser, train, validation)


def hold_out(train: tuple[Path, ...], n_lines: int, folder: Path) -> tuple[tuple[Path, ...], Path]:
    """The first text without its last lines, which become the validation text; both written to ``folder``."""
    kept, held = folder / f"{train[0].name.split('.')[0]}-kept.txt", folder / "held-out.txt"
    if not held.exists():
        lines = list(read_lines(train[0]))
        if len(lines) <= n_lines:
            raise ConfigError(f"{train[0]} has {len(lines)} lines; {n_lines} cannot be held out")
        folder.mkdir(exist_ok=True)
        kept.write_text("".join(f"{line}\n" for line in lines[:-n_lines]), encoding="utf-8")
        held.write_text("".join(f"{line}\n" for line in lines[-n_lines:]), encoding="utf-8")
    return (kept, *train[1:]), held


def make_ngram(kitchen: Kitchen) -> None:
    """Estimates the n-gram, unless it is there."""
    output = kitchen.folder / NGRAM
    if output.exists():
        return kitchen.tell(f"{output} is there")
    kitchen.tell("estimating the n-gram")
    summary = train_ngram(kitchen.train, kitchen.normaliser, output, kitchen.recipe.ngram)
    kitchen.tell(f"n-gram: {summary.n_words:,} words in {summary.seconds:.0f} s")


def make_network(kitchen: Kitchen, name: str, recipe: NetworkRecipe) -> None:
    """Trains one network, or goes on with it, or leaves it where it is finished."""
    folder, place = kitchen.network_folder(name), recipe.place
    if (folder / "best" / "training.json").exists():
        return kitchen.tell(f"{folder} is there")
    kitchen.tell(f"training {name}")
    inputs = train.RunInputs(
        texts=[kitchen.text(text) for text in place.train] or list(kitchen.train),
        validation=kitchen.validation,
        folder=folder,
        normaliser=kitchen.normaliser,
        longest=place.longest,
        start_from=kitchen.network_folder(place.start_from) if place.start_from else None,
        weights=place.weights,
    )
    network = recipe.network
    if network.vectors in kitchen.recipe.networks:
        network = replace(network, vectors=str(kitchen.network_folder(str(network.vectors))))
    resume = (folder / STATE).exists()
    if resume:
        text = prepared(folder, place.longest)
    else:
        text = train.prepare_run(inputs, vocabulary_file(kitchen), kitchen.recipe.vocabulary.size, network)
    train.train(
        inputs, text, network, recipe.training,
        device=kitchen.device, threads=kitchen.threads, resume=resume,
    )  # fmt: skip


def vocabulary_file(kitchen: Kitchen) -> Path:
    """The networks' words, one a line, chosen once."""
    file = kitchen.folder / VOCABULARY
    if not file.exists():
        recipe = kitchen.recipe.vocabulary
        counts = count_words(kitchen.train, kitchen.normaliser)
        words = dict.fromkeys(word for word, _ in counts.most_common(recipe.size))
        whole = count_words([kitchen.text(name) for name in recipe.all_of], kitchen.normaliser)
        words |= dict.fromkeys(sorted(whole))
        file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return file


def publish(kitchen: Kitchen) -> None:
    """Makes the bundle, and reads it back as a server would."""
    recipe = kitchen.recipe.bundle
    folder = kitchen.folder / BUNDLES / kitchen.recipe.name / str(recipe.version)
    if folder.exists():
        return kitchen.tell(f"{folder} is there")
    kitchen.tell("making the bundle")
    parts = BundleParts(
        name=kitchen.recipe.name,
        version=recipe.version,
        ngram=bundled_ngram(kitchen),
        neural=bundled_network(kitchen),
        normaliser=kitchen.normaliser,
        weights=Weights("default", recipe.streams, {"mixture": recipe.lm_weight}, recipe.word),
        validation=kitchen.validation,
        tests={path.name.split(".")[0]: path for path in kitchen.tests},
        weight_sets=[kitchen.recipe.beside(name) for name in recipe.weight_sets],
        facts={"recipe": kitchen.recipe.file.name, **recipe.notes},
    )
    make_bundle(parts, folder)
    load_bundle_models(read_bundle(folder))


def bundled_ngram(kitchen: Kitchen) -> Path:
    """The n-gram that is published: as estimated, or pruned."""
    whole, keep = kitchen.folder / NGRAM, kitchen.recipe.bundle.keep_ngrams
    if not keep:
        return whole
    kitchen.tell(f"pruning the n-gram to {keep:,} n-grams")
    model = load_backoff_model(whole, "reading")
    small, _ = prune(model, compute_stationary_history(model, "history"), keep=keep)
    output = kitchen.folder / "pruned.arpa.gz"
    with atomic_output(output) as partial:
        small.save(partial)
    return output


def bundled_network(kitchen: Kitchen) -> Path:
    """The network that is published, in the precision it is published in."""
    recipe = kitchen.recipe.bundle
    best = kitchen.network_folder(recipe.network) / "best"
    if recipe.store == "float32":
        return best
    stored = kitchen.folder / f"{recipe.network}-{recipe.store}"
    if not stored.exists():
        quantise(best, stored, recipe.store)
    return stored


def measure_all(kitchen: Kitchen) -> Report:
    """Perplexities of the n-gram, of every network, and of each network mixed with the n-gram."""
    use_threads(kitchen.threads or 0)
    texts = {
        path.name: list(read_sentences([path], kitchen.normaliser))
        for path in (kitchen.validation, *kitchen.tests)
    }
    models: list[MeasuredModel] = []
    for name in kitchen.recipe.networks:
        pair = load_models(
            None, [kitchen.folder / NGRAM], [kitchen.network_folder(name)], device=kitchen.device
        ).models
        scores = {
            text: score_tokens(pair, words, f"{name}: {text}", in_order=True) for text, words in texts.items()
        }
        shares = fit_mixture(scores[kitchen.validation.name].log_probs)
        found = {text: measure(each, shares).models for text, each in scores.items()}
        if not models:
            ngram = {text: each["ngram"].shared for text, each in found.items()}
            models.append(
                MeasuredModel("n-gram", ngram, {}, note=f"Kneser-Ney, order {kitchen.recipe.ngram.order}")
            )
        network = cast(NeuralLanguageModel, pair["neural"])
        models.append(describe(kitchen, name, network.model, found, shares["neural"]))
    curves = {name: kitchen.network_folder(name) / "log.jsonl" for name in kitchen.recipe.networks}
    return Report(
        title=kitchen.recipe.title,
        texts=tuple(texts),
        models=tuple(models),
        curves={name: list(read_log(path)) for name, path in curves.items()},
        machine=machine(torch.get_num_threads()),
        unknown=UNKNOWN_WORDS,
    )


def describe(
    kitchen: Kitchen, name: str, model: NeuralModel, found: dict[str, Mapping[str, Perplexity]], share: float
) -> MeasuredModel:
    """One network's line of the report."""
    file = kitchen.network_folder(name) / "best" / "training.json"
    facts = json.loads(file.read_text(encoding="utf-8"))
    return MeasuredModel(
        name=name,
        perplexity={text: each["neural"].shared for text, each in found.items()},
        with_ngram={text: each["mixture"].shared for text, each in found.items()},
        network_share=share,
        n_parameters=sum(value.numel() for value in model.parameters()),
        minutes=facts["seconds"] / 60,
        words_per_s=facts["words"] / facts["seconds"] if facts["seconds"] else None,  # too short to tell
        note=kitchen.recipe.networks[name].place.note,
    )


def read_log(path: Path) -> Iterator[dict]:  # type: ignore[type-arg]
    """The validations of a run; one that was logged again after a kill counts once."""
    entries = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        entries[entry["step"]] = entry
    yield from entries.values()

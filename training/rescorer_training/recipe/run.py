"""Run a recipe from raw text to a verified bundle and its report.

Stages whose results already exist are skipped, and an interrupted training run is resumed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from rescorer.bundle import read_bundle
from rescorer.errors import BundleError, ConfigError
from rescorer.model_loading import load_bundle_models
from rescorer.types import Weights
from rescorer_training.data.corpus import count_words
from rescorer_training.data.normalisation import record_normaliser
from rescorer_training.neural import train
from rescorer_training.neural.build import check_network
from rescorer_training.neural.checkpoint import STATE_FILE
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.postprocess import quantise
from rescorer_training.neural.prepare import RunInputs, choose_vocabulary, load_prepared
from rescorer_training.ngram.backoff_model import load_backoff_model
from rescorer_training.ngram.output import atomic_output
from rescorer_training.ngram.prune import compute_stationary_history, prune
from rescorer_training.recipe.bundles.export import BundleParts, make_bundle
from rescorer_training.recipe.config import NetworkRecipe, Recipe
from rescorer_training.recipe.measure import measure_models
from rescorer_training.recipe.ngrams import FIRST, estimate_ngrams, ngram_file
from rescorer_training.recipe.report import Report, write_report
from rescorer_training.recipe.start import RecipeRun, start_run
from rescorer_training.recipe.vector_tables import check_embeddings
from rescorer_training.recipe.vectors import resolve_embeddings, train_vectors
from rescorer_training.state_files import describe_changes, read_metadata

VOCABULARY_FILE, BUNDLES_FOLDER = "vocabulary.txt", "bundle"
FOUND_ELSEWHERE = {"start_from", "vectors", "embeddings", "vocabulary"}
"""What is saved of a run and depends on where the folder is, or has been counted before."""


def run_recipe(
    recipe: Recipe, data: Path, folder: Path, *, device: str = "cpu", threads: int | None = None
) -> Report:
    """Make the n-gram models, the vectors, the networks, the bundle and the report in ``folder``.

    Raises:
        ConfigError: a text of the recipe is missing from ``data``, or matplotlib is missing.
        RescorerError: a stage fails; the results of earlier stages remain.
    """
    run = start_run(recipe, data, folder, device, threads)
    check_networks(run)
    estimate_ngrams(run)
    train_vectors(run)
    for name, network in recipe.networks.items():
        train_network(run, name, network)
    publish_bundle(run)
    report = measure_models(run)
    write_report(report, folder)
    return report


def check_networks(run: RecipeRun) -> None:
    """Count the vocabulary, and raise ConfigError if a network cannot be built, before any work."""
    if not run.recipe.networks:
        return
    vocabulary = choose_vocabulary({}, write_vocabulary(run), run.recipe.vocabulary.size)
    for name, recipe in run.recipe.networks.items():
        try:
            check_network(
                recipe.network,
                recipe.training.objective,
                len(vocabulary),
                starts_from_other=bool(recipe.run.start_from),
            )
            check_embeddings(run.recipe.vectors, recipe.network)
        except (BundleError, ConfigError) as error:
            raise ConfigError(f"{run.recipe.file}: [networks.{name}] {error}") from None


def train_network(run: RecipeRun, name: str, recipe: NetworkRecipe) -> None:
    """Train a network or resume its training, unless it is finished."""
    folder, settings = run.network_folder(name), recipe.run
    inputs = RunInputs(
        texts=[run.training_text(text) for text in settings.train] or list(run.train),
        validation=run.validation,
        folder=folder,
        normaliser=run.normaliser,
        longest=settings.longest,
        start_from=run.network_folder(settings.start_from) if settings.start_from else None,
        weights=settings.weights,
    )
    network = resolve_embeddings(run, recipe.network)
    if network.vectors in run.recipe.networks:
        network = replace(network, vectors=str(run.network_folder(str(network.vectors))))
    if (folder / "best" / "training.json").exists():
        check_unchanged(inputs, network, recipe.training)
        return run.log(f"{folder} exists")
    run.log(f"training {name}")
    resume = (folder / STATE_FILE).exists()
    if resume:
        text = load_prepared(folder, settings.longest)
    else:
        text = train.prepare_run(inputs, write_vocabulary(run), run.recipe.vocabulary.size, network)
    train.train(inputs, text, network, recipe.training, RunOptions(run.threads, run.device, resume))


def check_unchanged(inputs: RunInputs, network: NetworkOptions, options: TrainingOptions) -> None:
    """Raise ConfigError if a finished network was trained with other options or on other texts."""
    state = inputs.folder / STATE_FILE
    if not state.exists():
        return
    now = {**asdict(options), **inputs.identity(), "network": asdict(network)}
    saved, now = json.loads(read_metadata(state)["options"]), json.loads(json.dumps(now))
    changes = describe_changes(saved, now, FOUND_ELSEWHERE, known_to_both=True)
    if changes:
        raise ConfigError(
            f"{inputs.folder} was trained by another recipe or on another text: {changes}; remove the folder "
            "to train the network again, or choose another --output"
        )


def write_vocabulary(run: RecipeRun) -> Path:
    """Write the vocabulary of the networks, one word per line, unless it exists; return its path."""
    file = run.folder / VOCABULARY_FILE
    if not file.exists():
        recipe = run.recipe.vocabulary
        counts = count_words(run.train, run.normaliser)
        words = dict.fromkeys(word for word, _ in counts.most_common(recipe.size))
        extra = count_words([run.training_text(name) for name in recipe.all_of], run.normaliser)
        words |= dict.fromkeys(sorted(extra))
        file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return file


def publish_bundle(run: RecipeRun) -> None:
    """Make the bundle unless it exists, and verify it by loading it as the service does."""
    recipe = run.recipe.bundle
    folder = run.folder / BUNDLES_FOLDER / run.recipe.name / str(recipe.version)
    if folder.exists():
        return run.log(f"{folder} exists")
    run.log("making the bundle")
    parts = BundleParts(
        name=run.recipe.name,
        version=recipe.version,
        ngrams={FIRST: make_bundle_ngram(run)} | {name: ngram_file(run, name) for name in recipe.ngrams},
        networks={"neural": make_bundle_network(run)} if recipe.network else {},
        normaliser=run.normaliser,
        weights=Weights("default", recipe.streams, {"mixture": recipe.lm_weight}, recipe.word),
        validation=run.validation,
        tests={path.name.split(".")[0]: path for path in run.tests},
        weight_sets=run.recipe.list_weight_sets(),
        facts={"recipe": run.recipe.file.name, **recipe.notes},
    )
    make_bundle(parts, folder)
    load_bundle_models(read_bundle(folder))


def make_bundle_ngram(run: RecipeRun) -> Path:
    """Return the n-gram model for the bundle, pruned if the recipe asks for it."""
    full, keep = ngram_file(run, FIRST), run.recipe.bundle.keep_ngrams
    if not keep:
        return full
    run.log(f"pruning the n-gram model to {keep:,} n-grams")
    model = load_backoff_model(full, "reading")
    pruned, _ = prune(model, compute_stationary_history(model, "history"), keep=keep)
    output = run.folder / "pruned.arpa.gz"
    with atomic_output(output) as partial:
        pruned.save(partial)
    record_normaliser(output, run.normaliser)
    return output


def make_bundle_network(run: RecipeRun) -> Path:
    """Return the folder of the network for the bundle, stored in the precision that the recipe asks for."""
    recipe = run.recipe.bundle
    best = run.network_folder(recipe.network) / "best"
    if recipe.store == "float32":
        return best
    stored = run.folder / f"{recipe.network}-{recipe.store}"
    if not stored.exists():
        quantise(best, stored, recipe.store)
    return stored

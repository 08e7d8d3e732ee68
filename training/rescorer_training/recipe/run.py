"""Run a recipe from raw text to a verified bundle and its report.

Stages whose results already exist are skipped, and an interrupted training run is resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from rescorer.errors import BundleError, ConfigError
from rescorer.formats.io.text_io import make_folder, write_text
from rescorer.models.bundle import read_bundle
from rescorer.models.language_model import LanguageModel
from rescorer.models.network_files import WEIGHTS_FILE
from rescorer.models.neural import load_model
from rescorer.models.ngram_files import SUFFIX
from rescorer.pipeline import load_bundle_models
from rescorer.runtime import use_threads
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.types import Weights
from rescorer.units.files import load_unit_model
from rescorer.weights import MIXTURE
from rescorer_training.corpus import (
    UNITS_FOLDER,
    choose_normaliser,
    count_words,
    read_lines,
    read_sentences,
    record_normaliser,
)
from rescorer_training.evaluation.past_text import score_past_texts
from rescorer_training.evaluation.perplexity import (
    TokenScores,
    fit_mixture,
    load_models,
    measure,
    score_tokens,
)
from rescorer_training.neural import train
from rescorer_training.neural.build import check_network, name_activation
from rescorer_training.neural.checkpoint import STATE_FILE, quantise, read_run_options
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.pieces import check_pieces
from rescorer_training.neural.prepare import RunInputs, choose_vocabulary, load_prepared, print_status
from rescorer_training.ngram.backoff_model import load_backoff_model
from rescorer_training.ngram.estimate import NGramOptions, atomic_output, train_ngram
from rescorer_training.ngram.prune import compute_stationary_history, prune
from rescorer_training.recipe.bundles import BundleParts, make_bundle
from rescorer_training.recipe.config import NetworkRecipe, Recipe, check_embeddings
from rescorer_training.recipe.report import (
    MeasuredModel,
    Report,
    add_means,
    check_plotting,
    compare,
    describe_machine,
    write_report,
)
from rescorer_training.state_files import describe_changes, lock_folder
from rescorer_training.vectors import word2vec
from rescorer_training.vectors.files import VectorFormat, write_vectors
from rescorer_training.vectors.runs import VECTORS_STATE_FILE
from rescorer_training.vectors.word2vec import Word2VecOptions

NETWORKS_FOLDER = "networks"


@dataclass(frozen=True)
class RecipeRun:
    """A recipe with its texts, its output folder and the settings of this run."""

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
        """Texts to measure perplexities on."""
        return tuple(self.data / name for name in self.recipe.text.tests)

    def training_text(self, name: str) -> Path:
        """Return the path of a training text or, for a text of the whole recipe, of the part that is used."""
        names = self.recipe.text.train
        return self.train[names.index(name)] if name in names else self.data / name

    def network_folder(self, name: str) -> Path:
        """Return the folder of a network's training run."""
        return self.folder / NETWORKS_FOLDER / name

    @cached_property
    def texts(self) -> dict[str, list[Words]]:
        """The sentences of the validation text and of each test text, by the name of the text's file."""
        paths = (self.validation, *self.tests)
        return {path.name: list(read_sentences([path], self.normaliser)) for path in paths}

    def log(self, message: str) -> None:
        """Print a status line that begins with the recipe's name."""
        print_status(f"{self.recipe.name}: {message}")


@contextmanager
def open_run(
    recipe: Recipe, data: Path, folder: Path, device: str, threads: int | None
) -> Iterator[RecipeRun]:
    """Check that all texts exist, make the output folder, and write the parts of texts that are used.

    Within the context, no other process trains in the folder.
    """
    text = recipe.text
    names = [*text.train, text.validation, *text.tests, *recipe.vocabulary.all_of]
    names += chain.from_iterable(network.run.train for network in recipe.networks.values())
    names += chain.from_iterable(vectors.train for vectors in recipe.vectors.values())
    missing = sorted({name for name in names if name and not (data / name).exists()})
    if missing:
        raise ConfigError(f"{data} has no {', '.join(missing)}; give the folder of the texts with --data")
    recipe.list_weight_sets()  # raises an error now rather than after hours of training
    made = (*folder.glob("*.arpa.gz"), *folder.glob("ngrams/*"), *folder.glob(f"{NETWORKS_FOLDER}/*"))
    normaliser = recipe.load_normaliser(sorted(made))
    if recipe.networks:
        check_plotting()  # now rather than after hours of training
    make_folder(folder)
    with lock_folder(folder):
        train, validation = tuple(data / name for name in text.train), data / text.validation
        if text.held_out_lines:
            train, validation = split_held_out(train, text.held_out_lines, folder / "text")
        if text.first_share < 1:
            train = tuple(
                take_first(path, text.first_share, folder / "text" / f"{number}-first.txt")
                for number, path in enumerate(train, start=1)
            )
        yield RecipeRun(recipe, data, folder, device, threads, normaliser, train, validation)


def split_held_out(train: tuple[Path, ...], n_lines: int, folder: Path) -> tuple[tuple[Path, ...], Path]:
    """Split the last lines off the first training text, writing both parts to ``folder``.

    Returns:
        The training texts and the validation text.
    """
    kept, held_out = folder / f"{train[0].name.split('.')[0]}-kept.txt", folder / "held-out.txt"
    if not held_out.exists():
        lines = list(read_lines(train[0]))
        if len(lines) <= n_lines:
            raise ConfigError(f"{train[0]} has {len(lines)} lines, but held_out_lines is {n_lines}")
        folder.mkdir(exist_ok=True)
        write_text(kept, "".join(f"{line}\n" for line in lines[:-n_lines]))
        write_text(held_out, "".join(f"{line}\n" for line in lines[-n_lines:]))
    return (kept, *train[1:]), held_out


def take_first(path: Path, share: float, first: Path) -> Path:
    """Write the first lines of a text to the file ``first``, and return its path.

    Raises:
        ConfigError: the share is less than a line.
    """
    if not first.exists():
        lines = list(read_lines(path))
        n_lines = int(share * len(lines))
        if not n_lines:
            raise ConfigError(f"{path} has {len(lines)} lines, of which first_share {share} is not even one")
        first.parent.mkdir(exist_ok=True)
        write_text(first, "".join(f"{line}\n" for line in lines[:n_lines]))
    return first


FIRST, BACKWARD = "ngram", "ngram-backward"
"""Names of the n-gram model of ``[ngram]``, and of the same model trained for backward networks."""
NGRAMS_FOLDER = "ngrams"


def list_ngrams(recipe: Recipe) -> dict[str, NGramOptions]:
    """Return the options of all n-gram models of a recipe, by name."""
    has_backward = any(map(recipe.is_backward, recipe.networks))
    backward = {BACKWARD: replace(recipe.ngram, backward=True)} if has_backward else {}
    return {FIRST: recipe.ngram, **backward, **recipe.ngrams}


def ngram_file(run: RecipeRun, name: str) -> Path:
    """Return the file of an n-gram model of the recipe."""
    if name in (FIRST, BACKWARD):
        return run.folder / f"{name}.arpa.gz"
    return run.folder / NGRAMS_FOLDER / f"{name}{SUFFIX}"


def estimate_ngrams(run: RecipeRun) -> None:
    """Estimate the n-gram models that do not exist yet."""
    for name, options in list_ngrams(run.recipe).items():
        output, made_from = ngram_file(run, name), describe_source(run.train, options)
        if is_made(run, output, made_from):
            continue
        run.log(f"estimating {name}")
        summary = train_ngram(run.train, run.normaliser, output, options)
        write_model_facts(output, asdict(summary), made_from)
        run.log(f"estimated {name} from {summary.n_words:,} words in {summary.seconds:.0f} s")


def describe_source(texts: Sequence[Path], options: NGramOptions | Word2VecOptions) -> dict[str, Any]:
    """Describe the origin of a model as plain data: its options, and the name and size of each text."""
    sizes = [[path.name, path.stat().st_size] for path in texts]
    source: dict[str, Any] = json.loads(json.dumps({**asdict(options), "texts": sizes}, default=str))
    return source


def write_model_facts(model: Path, facts: Mapping[str, Any], made_from: Mapping[str, Any]) -> None:
    """Write facts about a model, and what it was made from, to a file next to it."""
    text = json.dumps({**facts, "made_from": made_from}, indent=2) + "\n"
    write_text(model.with_name(f"{model.name}.json"), text)


def read_model_facts(model: Path) -> dict[str, Any]:
    """Read what ``write_model_facts`` wrote; empty if there is no file."""
    file = model.with_name(f"{model.name}.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def is_made(run: RecipeRun, model: Path, made_from: Mapping[str, Any]) -> bool:
    """Whether a model exists; raises ConfigError if it was made with other options or from other texts."""
    if not model.exists():
        return False
    before = read_model_facts(model).get("made_from", {})
    if changes := describe_changes(before, made_from, known_to_both=True):
        raise ConfigError(
            f"{model} was estimated by another recipe or from another text: {changes}; remove the file to "
            "estimate the model again, or choose another --output"
        )
    run.log(f"{model} exists")
    return True


@dataclass(frozen=True)
class JointMeasurement:
    """Perplexities of several models of a recipe and, if there are two or more, of their mixture."""

    models: Mapping[str, LanguageModel]
    shares: Mapping[str, float]
    """Interpolation weights λ, fitted on the validation text; empty for a single model."""
    by_text: Mapping[str, Mapping[str, float]]
    """Perplexities by text, then by model or ``mixture``."""

    def perplexities(self, name: str) -> dict[str, float]:
        """Return the perplexity of a model or of the ``mixture`` by text; empty if there is no such model."""
        return {text: values[name] for text, values in self.by_text.items() if name in values}


def load_and_score(
    run: RecipeRun, names: Sequence[str]
) -> tuple[dict[str, LanguageModel], dict[str, TokenScores]]:
    """Load models of the recipe, n-grams before networks, and score all texts with them.

    Returns:
        The models by name, and the scores by text.
    """
    networks = [name for name in names if name in run.recipe.networks]
    ngrams = [name for name in names if name not in networks]
    if any(map(run.recipe.has_pieces, networks)):
        models: dict[str, LanguageModel] = {
            name: load_unit_model(run.network_folder(name) / UNITS_FOLDER, name, run.device)
            for name in networks
        }
    else:
        files, folders = [ngram_file(run, name) for name in ngrams], map(run.network_folder, networks)
        loaded = load_models(None, files, [*folders], device=run.device).models
        models = dict(zip([*ngrams, *networks], loaded.values(), strict=True))
    scores = {
        text: score_tokens(models, words, f"scoring {text}", in_order=True)
        for text, words in run.texts.items()
    }
    return models, scores


def measure_together(run: RecipeRun, names: Sequence[str]) -> JointMeasurement:
    """Measure several models of the recipe, and their mixture if there are two or more."""
    models, scores = load_and_score(run, names)
    shares = fit_mixture(scores[run.validation.name].log_probs) if len(models) > 1 else {}
    by_text = {
        text: {name: figures.shared for name, figures in measure(of_text, shares).models.items()}
        for text, of_text in scores.items()
    }
    return JointMeasurement(models, shares, by_text)


def measure_ngrams(run: RecipeRun) -> Iterator[MeasuredModel]:
    """Measure each n-gram model, alone and, if it reads forward, mixed with the first one."""
    for name, options in list_ngrams(run.recipe).items():
        alone = name == FIRST or options.backward
        measured = measure_together(run, [name] if alone else [FIRST, name])
        seconds = read_model_facts(ngram_file(run, name)).get("seconds")
        yield MeasuredModel(
            "n-gram" if name in (FIRST, BACKWARD) else name,
            measured.perplexities(name),
            measured.perplexities(MIXTURE),
            measured.shares.get(name),
            minutes=None if seconds is None else seconds / 60,
            note=describe_ngram(options),
        )


def measure_networks(run: RecipeRun) -> Iterator[MeasuredModel]:
    """Measure each network, alone and, if it predicts words, mixed with the first n-gram of its direction."""
    for name, recipe in run.recipe.networks.items():
        ngram = [] if run.recipe.has_pieces(name) else [BACKWARD if run.recipe.is_backward(name) else FIRST]
        measured = measure_together(run, [*ngram, name])
        best = run.network_folder(name) / "best"
        facts = json.loads((best / "training.json").read_text(encoding="utf-8"))
        yield MeasuredModel(
            name,
            measured.perplexities(name),
            measured.perplexities(MIXTURE),
            measured.shares.get(name),
            n_parameters=sum(value.numel() for value in load_model(best)[0].parameters()),
            minutes=facts["seconds"] / 60,
            # a very short run takes 0.0 s after rounding
            words_per_s=facts["words"] / facts["seconds"] if facts["seconds"] else None,
            note=recipe.run.note,
        )


def measure_mixtures(run: RecipeRun) -> Iterator[MeasuredModel]:
    """Measure each mixture of the recipe, with λ fitted on the validation text."""
    for name, models in run.recipe.mixtures.items():
        measured = measure_together(run, models)
        note = ", ".join(f"{model} {share:.2f}" for model, share in measured.shares.items())
        yield MeasuredModel(name, measured.perplexities(MIXTURE), with_ngram={}, note=note)


def describe_ngram(options: NGramOptions) -> str:
    """Describe an n-gram model in a few words, for the report."""
    method = {"kneser-ney": "Kneser-Ney", "katz": "Katz", "witten-bell": "Witten-Bell", "none": "unsmoothed"}[
        options.smoothing
    ]
    parts = [method, f"order {options.order}"]
    parts += [f"{options.classes} Brown classes"] * bool(options.classes)
    parts += [f"classes of {options.class_file}"] * bool(options.class_file)
    parts += [f"a gap of {options.skip}"] * bool(options.skip)
    parts += ["backward"] * options.backward
    parts += [f"cut-offs {' '.join(map(str, options.cutoffs))}"] * any(options.cutoffs)
    return ", ".join(parts)


VECTORS_FOLDER = "vectors"


def vectors_file(run: RecipeRun, name: str) -> Path:
    """Return the file of word vectors of the recipe."""
    return run.folder / VECTORS_FOLDER / f"{name}.txt.gz"


def train_vectors(run: RecipeRun) -> None:
    """Train the vectors that are not finished, or resume their training, by default with one thread."""
    for name, recipe in run.recipe.vectors.items():
        output = vectors_file(run, name)
        texts = [run.data / text for text in recipe.train]
        made_from = describe_source(texts, recipe.options)
        if is_made(run, output, made_from):
            continue
        run.log(f"training vectors {name}")
        folder = output.parent / name
        if not (folder / VECTORS_STATE_FILE).exists():
            word2vec.start_run(texts, choose_normaliser(None), folder, recipe.options)
        vectors, report = word2vec.run(folder, recipe.options, run.threads or 1)
        write_model_facts(output, report, made_from)
        write_vectors(output, vectors, VectorFormat.WORD2VEC)
        run.log(f"trained {len(vectors):,} vectors in {report['seconds']:.0f} s")


PAST_TEXT_FILE = "past-text.json"


def measure_past_text(run: RecipeRun) -> list[MeasuredModel]:
    """Measure the networks of ``[past_text]`` with a neural cache and by dynamic evaluation.

    Settings are fitted on the validation text. Results are kept with the network, because dynamic evaluation
    takes as long as epochs of training.
    """
    recipe, rows = run.recipe.past_text, []
    for name in recipe.networks:
        file = run.network_folder(name) / PAST_TEXT_FILE
        asked = {"cache_words": recipe.cache_words, "dynamic": recipe.dynamic}
        facts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if facts.get("asked") != asked or "ways" not in facts:  # older versions wrote no mixtures
            run.log(f"measuring {name} with the past of the text")
            facts = {"asked": asked, "ways": _measure_ways(run, name)}
            with atomic_output(file) as partial:
                partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        rows += [
            MeasuredModel(
                f"{name}, {way}", found["perplexity"], found["mixture"], note=_describe(found["settings"])
            )
            for way, found in facts["ways"].items()
        ]
    return rows


def _measure_ways(run: RecipeRun, name: str) -> dict[str, dict[str, Any]]:
    """Fit and measure each way of learning from the past, alone and mixed with the n-gram model."""
    recipe, validation = run.recipe.past_text, run.validation.name
    models, scores = load_and_score(run, [FIRST, name])
    found = score_past_texts(
        models, run.texts, validation, cache_words=recipe.cache_words, dynamic=recipe.dynamic
    )
    return {past.way: past.figures(scores, validation) for past in found}


def _describe(settings: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())


UNKNOWN_WORDS_NOTE = (
    "The n-gram and each network share the union of their vocabularies: a word that one of them does not "
    "know gets a share of that model's `<unk>` probability."
)


def measure_models(run: RecipeRun) -> Report:
    """Measure the n-gram models, the networks and their mixtures."""
    use_threads(run.threads or 0)
    groups = {name: network.group for name, network in run.recipe.networks.items()}
    rows = add_means([*measure_ngrams(run), *measure_networks(run)], groups)
    rows += [*measure_mixtures(run), *measure_past_text(run)]
    return Report(
        title=run.recipe.title,
        texts=tuple(run.texts),
        models=tuple(rows),
        comparisons=compare(rows, run.recipe.comparisons),
        curves={name: read_log(run.network_folder(name) / "log.jsonl") for name in run.recipe.networks},
        machine=describe_machine(torch.get_num_threads()),
        unknown=UNKNOWN_WORDS_NOTE,
    )


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the validations of a run. If a step has several entries, only the last one is kept.

    A step has several entries if the run was killed after logging a validation, before saving it.
    """
    entries = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return list({entry["step"]: entry for entry in entries}.values())


VOCABULARY_FILE, BUNDLES_FOLDER = "vocabulary.txt", "bundle"
FOUND_ELSEWHERE = {"start_from", "vectors", "embeddings", "vocabulary", "tags"}
"""Saved options of a finished run that may differ: they are paths, or follow from the other options."""


def run_recipe(
    recipe: Recipe, data: Path, folder: Path, *, device: str = "cpu", threads: int | None = None
) -> Report:
    """Make the n-gram models, the vectors, the networks, the bundle and the report in ``folder``.

    Raises:
        ConfigError: a text of the recipe is missing from ``data``, matplotlib is missing, or another process
            trains in the folder.
        RescorerError: a stage fails; the results of earlier stages remain.
    """
    with open_run(recipe, data, folder, device, threads) as run:
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
    """Raise ConfigError, before any training, if a network cannot be built. Counts the words for this."""
    if not run.recipe.networks:
        return
    vocabulary = choose_vocabulary({}, write_vocabulary(run), run.recipe.vocabulary.size)
    for name, recipe in run.recipe.networks.items():
        try:
            starts_from_other, objective = bool(recipe.run.start_from), recipe.training.objective
            if run.recipe.has_pieces(name):
                check_pieces(recipe.network, recipe.run.units)
            check_network(recipe.network, objective, len(vocabulary), starts_from_other=starts_from_other)
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
        units=settings.units or None,
    )
    network = recipe.network
    if network.embeddings and network.embeddings in run.recipe.vectors:
        network = replace(network, embeddings=str(vectors_file(run, network.embeddings)))
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
    network = name_activation(network, state)
    now = {**asdict(options), **inputs.identity(), "network": asdict(network)}
    now = json.loads(json.dumps(now))
    if changes := describe_changes(read_run_options(state), now, FOUND_ELSEWHERE, known_to_both=True):
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
        write_text(file, "".join(f"{word}\n" for word in words))
    return file


def publish_bundle(run: RecipeRun) -> None:
    """Make the bundle unless it exists, and verify it by loading it as the service does."""
    recipe = run.recipe.bundle
    folder = run.folder / BUNDLES_FOLDER / run.recipe.name / str(recipe.version)
    if folder.exists():
        return run.log(f"{folder} exists")
    run.log("making the bundle")
    has_pieces = bool(recipe.network) and run.recipe.has_pieces(recipe.network)
    parts = BundleParts(
        name=run.recipe.name,
        version=recipe.version,
        ngrams={FIRST: make_bundle_ngram(run)} | {name: ngram_file(run, name) for name in recipe.ngrams},
        networks={} if has_pieces or not recipe.network else {"neural": make_bundle_network(run)},
        units={recipe.network: run.network_folder(recipe.network) / UNITS_FOLDER} if has_pieces else {},
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
    if not (stored / WEIGHTS_FILE).exists():
        quantise(best, stored, recipe.store)
    return stored

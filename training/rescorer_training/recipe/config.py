"""Read and check recipes: TOML files that describe a whole training, from raw text to a bundle."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rescorer.errors import ConfigError, did_you_mean
from rescorer.models.network_files import NetworkConfig
from rescorer.text import Normaliser
from rescorer_training.corpus import choose_normaliser
from rescorer_training.neural.options import NetworkOptions, TrainingOptions
from rescorer_training.ngram.estimate import NGramOptions
from rescorer_training.vectors.word2vec import Word2VecOptions


def parse_table(kind: type, table: dict[str, Any], location: str) -> Any:
    """Convert a table to a dataclass; raises ConfigError if a value is invalid.

    Args:
        location: name of the table, for errors.
    """
    check_keys(table, [item.name for item in fields(kind)], location)
    try:
        return TypeAdapter(kind).validate_python(table)
    except ValidationError as error:
        details = (f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
        raise ConfigError(f"{location} {'; '.join(details)}") from None
    except ConfigError as error:
        raise ConfigError(f"{location} {error}") from None


def check_keys(table: Mapping[str, Any], known: Collection[str], location: str) -> None:
    """Raise ConfigError if a table has an unknown option."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{location} is {table!r}; expected a table of options")
    unknown = sorted(set(table) - set(known))
    if unknown:
        hint = did_you_mean(unknown[0], known) or f"; expected some of {', '.join(known)}"
        raise ConfigError(f"{location} unknown {', '.join(unknown)}{hint}")


DEFAULT_SIZE = next(item.default for item in fields(NetworkConfig) if item.name == "embedding_size")


@dataclass(frozen=True)
class VectorsRecipe:
    """Texts and options of word vectors. A network starts from them if its ``embeddings`` is their name."""

    train: tuple[str, ...]
    """Training texts, relative to the data folder. They are normalised with the default normaliser."""
    options: Word2VecOptions


def parse_vectors(tables: Mapping[str, Any], file: str) -> dict[str, VectorsRecipe]:
    """Parse the tables of all vectors, by name.

    Raises:
        ConfigError: an option is unknown or invalid, or a table has no texts.
    """
    vectors = {}
    for name, table in tables.items():
        location = f"{file}: [vectors.{name}]"
        check_keys(table, ["train", *(item.name for item in fields(Word2VecOptions))], location)
        texts = table.get("train")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"{location} train is {texts!r}; expected a list of one or more texts")
        options = {key: value for key, value in table.items() if key != "train"}
        vectors[name] = VectorsRecipe(tuple(texts), parse_table(Word2VecOptions, options, location))
    return vectors


def check_embeddings(vectors: Mapping[str, VectorsRecipe], options: NetworkOptions) -> None:
    """Raise ConfigError if a network names vectors that do not exist, or that do not fit its size."""
    name = options.embeddings
    if name is None or (name not in vectors and Path(name).is_file()):
        return
    if name not in vectors:
        known = ", ".join(vectors) or "none"
        raise ConfigError(f"embeddings is {name!r}; expected a file, or one of the recipe's vectors: {known}")
    size = options.embedding_size or DEFAULT_SIZE
    dimensions = vectors[name].options.dimensions
    if dimensions != size:
        raise ConfigError(f"vectors {name!r} have {dimensions} dimensions; expected embedding_size, {size}")


@dataclass(frozen=True)
class RunSettings:
    """Settings of one network's training run, in addition to network options and training options."""

    note: str = ""
    """Description for the report."""
    start_from: str = ""
    """Name of an earlier network of the recipe. Training starts from its best model and vocabulary."""
    train: tuple[str, ...] = ()
    """Training texts of this network, relative to the data folder. If empty, those of the recipe are used."""
    weights: tuple[float, ...] = ()
    """For each text, the mean number of times per epoch that a sentence is drawn. Empty: once each."""
    longest: int = 200
    """Maximum number of words per training sentence; longer sentences are truncated."""
    extends: str = ""
    """Name of an earlier network. Its settings, except for its note, are the defaults of this one."""
    units: str = ""
    """Pieces of words to train in, such as ``bpe:8000``. Empty: words, or the pieces of ``start_from``."""
    seeds: tuple[int, ...] = ()
    """Seeds with which to train the network. With seeds 1 and 2, ``x`` becomes ``x-1`` and ``x-2``."""

    def __post_init__(self) -> None:
        seeds = self.seeds
        if seeds and (len(set(seeds)) < len(seeds) or len(seeds) < 2 or min(seeds) < 0):
            raise ConfigError(
                f"seeds are {', '.join(map(str, seeds))}; expected two or more, each once and at least 0"
            )


@dataclass(frozen=True)
class NetworkRecipe:
    """Options and settings of one network."""

    network: NetworkOptions
    training: TrainingOptions
    run: RunSettings
    group: str = ""
    """Name of the network in the recipe, if it is trained with several seeds; otherwise empty."""


def parse_networks(tables: Mapping[str, Any], file: str) -> dict[str, NetworkRecipe]:
    """Parse the tables of all networks, by name. A table with several seeds becomes one network per seed.

    Raises:
        ConfigError: an option is unknown or invalid, or a network refers to one that is not above it.
    """
    complete: dict[str, dict[str, Any]] = {}
    networks: dict[str, NetworkRecipe] = {}
    for name, table in tables.items():
        location = f"{file}: [networks.{name}]"
        complete[name] = _extend(table, complete, location)
        recipe = _parse_network(complete[name], location)
        for seed in recipe.run.seeds or [None]:
            own = name if seed is None else f"{name}-{seed}"
            if own in networks:
                raise ConfigError(f"{location} has the name of another network, {own!r}; choose another one")
            networks[own] = _with_seed(recipe, name, seed, networks, location)
    return networks


def _extend(table: Any, above: Mapping[str, dict[str, Any]], location: str) -> dict[str, Any]:
    """Add the settings of the extended table to a table."""
    if not isinstance(table, Mapping) or not table.get("extends"):
        return table
    if table["extends"] not in above:
        raise ConfigError(f"{location} extends {table['extends']!r}, which is not a network above it")
    inherited = {key: value for key, value in above[table["extends"]].items() if key != "note"}
    return {**inherited, **table}


def _parse_network(table: dict[str, Any], location: str) -> NetworkRecipe:
    """Divide the table of a network into network options, training options and settings of the run."""
    kinds = (NetworkOptions, TrainingOptions, RunSettings)
    kind_of = {item.name: kind for kind in kinds for item in fields(kind)}
    check_keys(table, sorted(kind_of), location)
    return NetworkRecipe(
        *(
            parse_table(kind, {key: value for key, value in table.items() if kind_of[key] is kind}, location)
            for kind in kinds
        )
    )


def _with_seed(
    recipe: NetworkRecipe, name: str, seed: int | None, above: Mapping[str, NetworkRecipe], location: str
) -> NetworkRecipe:
    """Make the network for one seed. It starts from the same seed of another network, if that has several."""
    run, network = recipe.run, recipe.network
    start_from = _member(run.start_from, seed, above)
    if start_from and start_from not in above:
        raise ConfigError(f"{location} starts from {start_from!r}, which is not a network above it")
    if network.vectors:
        vectors = _member(str(network.vectors), seed, above)
        if vectors not in above and not Path(vectors).exists():
            raise ConfigError(
                f"{location} takes the vectors of {vectors!r}, which is neither a network above it nor a "
                "file or folder"
            )
        network = replace(network, vectors=vectors)
    run = replace(run, start_from=start_from)
    if seed is None:
        return NetworkRecipe(network, recipe.training, run)
    return NetworkRecipe(network, replace(recipe.training, seed=seed), run, group=name)


def _member(name: str, seed: int | None, above: Mapping[str, NetworkRecipe]) -> str:
    """Return the name of a network's variant with this seed; ``name`` itself if it has only one seed."""
    member = f"{name}-{seed}"
    return member if member in above and above[member].group == name else name


PACKAGE = Path(__file__).parents[1]
SHIPPED, WEIGHT_SETS, NORMALISERS = PACKAGE / "recipes", PACKAGE / "weight_sets", PACKAGE / "normalisers"
"""Folders of the recipes, weights sets and normaliser settings that come with the package."""


@dataclass(frozen=True)
class TextRecipe:
    """Paths of the texts, relative to the data folder: plain or gzip, with one sentence per line."""

    train: tuple[str, ...]
    validation: str = ""
    """Text for early stopping and for fitting λ. It cannot be combined with ``held_out_lines``."""
    held_out_lines: int = 0
    """Number of lines at the end of the first training text that are used only for validation."""
    first_share: float = 1.0
    """Share of the lines of each training text to use, from its start. Held-out lines are removed before."""
    tests: tuple[str, ...] = ()
    """Texts on which models are evaluated. In the report, they have the names of their files."""
    normaliser: str = ""
    """``raw``, the name of shipped settings, or a file of settings, relative to the recipe; empty for the
    default normaliser."""

    def __post_init__(self) -> None:
        if bool(self.validation) == bool(self.held_out_lines):
            raise ConfigError("[text] must have either validation or held_out_lines")
        if not 0 < self.first_share <= 1:
            raise ConfigError(f"first_share is {self.first_share}; expected 0 < first_share ≤ 1")


@dataclass(frozen=True)
class VocabularyRecipe:
    """Vocabulary of the networks: the most frequent words of the training texts, plus those of ``all_of``."""

    size: int = 50_000
    all_of: tuple[str, ...] = ()
    """Texts from which every word is included, however rare."""


@dataclass(frozen=True)
class PastTextRecipe:
    """Networks that are also measured while they learn from the past of the text."""

    networks: tuple[str, ...] = ()
    """Names of networks that carry their state."""
    cache_words: int = 2000
    """Number of past words in the neural cache; 0 for no cache."""
    dynamic: bool = True
    """Also measure dynamic evaluation, which takes a step of training every five words."""


@dataclass(frozen=True)
class BundleRecipe:
    """Contents of the bundle that the recipe publishes."""

    network: str = ""
    """Name of one of the recipe's networks; empty if it has none."""
    ngrams: tuple[str, ...] = ()
    """Names of further n-gram models of the recipe."""
    version: int = 1
    store: str = "float32"
    """Precision of the stored network: float32, float16 or int8."""
    keep_ngrams: int = 0
    """Number of n-grams that pruning by relative entropy keeps; 0 for no pruning."""
    streams: Mapping[str, float] = field(default_factory=lambda: {"acoustic": 1.0})
    lm_weight: float = 1.0
    word: float = 0.0
    weight_sets: tuple[str, ...] = ()
    """Further weight sets: names of shipped sets, or files relative to the recipe. A file names its set."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Notes for the manifest, such as the origin and the licence of the text."""


@dataclass(frozen=True)
class Recipe:
    """A complete recipe."""

    file: Path
    name: str
    title: str
    text: TextRecipe
    vocabulary: VocabularyRecipe
    ngram: NGramOptions
    networks: Mapping[str, NetworkRecipe]
    bundle: BundleRecipe
    ngrams: Mapping[str, NGramOptions] = field(default_factory=dict)
    """N-gram models other than the first, by name."""
    mixtures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The models of each mixture to measure, by the name of the mixture."""
    comparisons: Mapping[str, str] = field(default_factory=dict)
    """For each network that is compared with another one by perplexity, the name of the other."""
    past_text: PastTextRecipe = PastTextRecipe()
    vectors: Mapping[str, VectorsRecipe] = field(default_factory=dict)
    """Word vectors to train before the networks, by name."""

    def is_backward(self, network: str) -> bool:
        """Whether a network reads sentences backwards. It has the direction of the network it starts from."""
        recipe = self.networks[network]
        start_from = recipe.run.start_from
        return self.is_backward(start_from) if start_from else bool(recipe.network.backward)

    def has_pieces(self, network: str) -> bool:
        """Whether a network predicts pieces of words, like the network it starts from."""
        run = self.networks[network].run
        return self.has_pieces(run.start_from) if run.start_from else bool(run.units)

    def resolve(self, name: str, shipped: Path) -> Path:
        """Return the path of a file that a recipe names.

        Args:
            name: path relative to the recipe; or, without a suffix, name of a file in ``shipped``, so that a
                copy of a recipe works in any folder.
            shipped: folder of files that come with the package.

        Raises:
            ConfigError: there is no such file.
        """
        path = self.file.parent / name if Path(name).suffix else shipped / f"{name}.json"
        if not path.is_file():
            names = ", ".join(sorted(file.stem for file in shipped.glob("*.json")))
            raise ConfigError(
                f"{path} does not exist; expected a path relative to the recipe, or one of the names "
                f"{names}, which come with the package"
            )
        return path

    def list_weight_sets(self) -> list[Path]:
        """Return the files of the further weight sets; raises ConfigError if one does not exist."""
        try:
            return [self.resolve(name, WEIGHT_SETS) for name in self.bundle.weight_sets]
        except ConfigError as error:
            raise ConfigError(f"[bundle] weight_sets: {error}") from None

    def load_normaliser(self, models: Iterable[Path] = ()) -> Normaliser:
        """Load the normaliser of the recipe's texts.

        Args:
            models: models that a run has made so far. Their normaliser is used if the recipe names none.

        Raises:
            ConfigError: the normaliser does not exist, or the models were trained with different ones.
        """
        choice = self.text.normaliser or None
        if choice not in (None, "raw"):
            try:
                choice = str(self.resolve(choice, NORMALISERS))
            except ConfigError as error:
                raise ConfigError(f"[text] normaliser: {error}, or 'raw'") from None
        return choose_normaliser(choice, models)


def list_shipped_recipes() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load_recipe_file(name: str) -> tuple[Path, str]:
    """Return the path and the text of a shipped recipe, by its name, or of a TOML file.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = Path(name) if Path(name).suffix else SHIPPED / f"{name}.toml"
    try:
        return path, path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not valid UTF-8") from None
    except OSError as error:
        shipped = ", ".join(list_shipped_recipes())
        raise ConfigError(f"{path} cannot be read: {error.strerror}; shipped recipes are {shipped}") from None


def read_recipe(name: str) -> Recipe:
    """Read a shipped recipe by its name, or a TOML file.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has an unknown, missing or invalid setting.
    """
    path, text = load_recipe_file(name)
    try:
        values = tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return make_recipe(values, path)


def make_recipe(values: dict[str, Any], path: Path) -> Recipe:
    """Make a recipe from the values read from ``path``; raises ConfigError if any of them is invalid."""
    tables = {
        "text": TextRecipe,
        "vocabulary": VocabularyRecipe,
        "ngram": NGramOptions,
        "past_text": PastTextRecipe,
        "bundle": BundleRecipe,
    }
    others = ("title", "vectors", "networks", "ngrams", "mixtures", "comparisons")
    unknown = sorted(set(values) - {*others, *tables})
    if unknown:
        known = ", ".join([*others, *tables])
        raise ConfigError(f"{path}: unknown {', '.join(unknown)}; a recipe has {known}")
    parts = {
        name: parse_table(kind, values.get(name, {}), f"{path}: [{name}]") for name, kind in tables.items()
    }
    networks = parse_networks(values.get("networks", {}), str(path))
    if parts["bundle"].network not in (networks or [""]):
        raise ConfigError(
            f"{path}: [bundle] network is {parts['bundle'].network!r}; expected one of {', '.join(networks)}"
        )
    ngrams = {
        name: parse_table(NGramOptions, table, f"{path}: [ngrams.{name}]")
        for name, table in values.get("ngrams", {}).items()
    }
    mixtures = {name: tuple(models) for name, models in values.get("mixtures", {}).items()}
    title = str(values.get("title", path.stem))
    recipe = Recipe(
        path, path.stem, title, networks=networks, ngrams=ngrams, mixtures=mixtures,
        comparisons=values.get("comparisons", {}),
        vectors=parse_vectors(values.get("vectors", {}), str(path)), **parts,
    )  # fmt: skip
    _check_names(recipe)
    return recipe


def _check_names(recipe: Recipe) -> None:
    """Check that the names of models are distinct, and that each reference names a model of the recipe."""
    path, bundle = recipe.file, recipe.bundle
    if taken := sorted({"ngram", "ngram-backward", "neural", *recipe.networks}.intersection(recipe.ngrams)):
        raise ConfigError(f"{path}: [ngrams.{taken[0]}] has the name of another model; choose another one")
    backward = {"ngram": recipe.ngram.backward}
    backward |= {name: options.backward for name, options in recipe.ngrams.items()}
    backward |= {name: recipe.is_backward(name) for name in recipe.networks}
    for name, models in recipe.mixtures.items():
        if len(models) < 2 or not set(models) <= set(backward) or len(set(models)) < len(models):
            raise ConfigError(
                f"{path}: [mixtures] {name} is of {', '.join(models)}; expected two or more of "
                f"{', '.join(backward)}"
            )
        if len({backward[model] for model in models}) > 1:
            raise ConfigError(f"{path}: [mixtures] {name} mixes forward and backward models")
    in_pieces = {name for name in recipe.networks if recipe.has_pieces(name)}
    asked_words = {"mixtures": {*chain(*recipe.mixtures.values())}, "past_text": {*recipe.past_text.networks}}
    for table, asked_for in asked_words.items():
        if found := sorted(in_pieces & asked_for):
            raise ConfigError(f"{path}: [{table}] has {found[0]!r}; expected models of words, not of pieces")
    names = [*recipe.networks, *{network.group for network in recipe.networks.values() if network.group}]
    for table, asked in (
        ("comparisons", [*recipe.comparisons, *recipe.comparisons.values()]),
        ("past_text", recipe.past_text.networks),
    ):
        if unknown := [name for name in asked if name not in names]:
            raise ConfigError(f"{path}: [{table}] has {unknown[0]!r}; expected some of {', '.join(names)}")
    if not set(bundle.ngrams) <= set(recipe.ngrams):
        raise ConfigError(
            f"{path}: [bundle] ngrams are {', '.join(bundle.ngrams)}; expected some of "
            f"{', '.join(recipe.ngrams)}"
        )

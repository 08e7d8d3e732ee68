"""Owns recipes: TOML files that say, from raw text to a bundle, what to train; read and checked before any
work begins."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rescorer.errors import ConfigError
from rescorer_training.neural.options import NetworkOptions, TrainingOptions
from rescorer_training.ngram.estimate import NGramOptions

SHIPPED = Path(__file__).parents[1] / "recipes"


@dataclass(frozen=True)
class TextRecipe:
    """Texts, as paths below the data folder; one sentence a line, gzip or plain."""

    train: tuple[str, ...]
    validation: str = ""
    """Decides when to stop and fits λ; instead of it, ``held_out_lines``."""
    held_out_lines: int = 0
    """Take the last so many lines of the first training text out of it, as the validation text."""
    tests: tuple[str, ...] = ()
    """Measured at the end; the report calls each by its file's name."""
    normaliser: str = ""
    """``raw``, or a file of settings beside the recipe; else the default one."""

    def __post_init__(self) -> None:
        if bool(self.validation) == bool(self.held_out_lines):
            raise ConfigError("[text] needs either validation or held_out_lines")


@dataclass(frozen=True)
class VocabularyRecipe:
    """The networks' words: the most frequent ones of the training texts, and all words of some of them."""

    size: int = 50_000
    all_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class NetworkPlace:
    """What a network's table may hold beside its own options and those of its training."""

    note: str = ""
    """For the report."""
    start_from: str = ""
    """Another network of the recipe, whose best model and vocabulary this one starts from."""
    train: tuple[str, ...] = ()
    """Its own training texts, below the data folder; else the recipe's."""
    weights: tuple[float, ...] = ()
    """Of its texts: how often an epoch draws each sentence; else once."""
    longest: int = 200
    """Words after which a training sentence is cut."""


@dataclass(frozen=True)
class NetworkRecipe:
    """One network: what it is, how it trains, where it stands in the recipe."""

    network: NetworkOptions
    training: TrainingOptions
    place: NetworkPlace


@dataclass(frozen=True)
class BundleRecipe:
    """What is published at the end."""

    network: str
    """One of the recipe's networks."""
    version: int = 1
    store: str = "float32"
    """Precision that the network is stored in: float32, float16 or int8."""
    keep_ngrams: int = 0
    """Prune the n-gram to so many n-grams, by relative entropy; 0: all."""
    streams: Mapping[str, float] = field(default_factory=lambda: {"acoustic": 1.0})
    lm_weight: float = 1.0
    word: float = 0.0
    weight_sets: tuple[str, ...] = ()
    """Files beside the recipe: further weights to offer, called as their files are."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """For the manifest: what the text is, its licence."""


@dataclass(frozen=True)
class Recipe:
    """A whole recipe."""

    file: Path
    name: str
    title: str
    text: TextRecipe
    vocabulary: VocabularyRecipe
    ngram: NGramOptions
    networks: Mapping[str, NetworkRecipe]
    bundle: BundleRecipe

    def beside(self, name: str) -> Path:
        """A file that the recipe names, looked for beside it."""
        return self.file.parent / name


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(each.stem for each in SHIPPED.glob("*.toml"))


def read_recipe(name: str) -> Recipe:
    """Reads the recipe of that name among those shipped, or the TOML file.

    Raises:
        ConfigError: it is not there, is no TOML, or a setting is unknown, missing or wrong; names it.
    """
    path = Path(name)
    if not path.suffix:
        path = SHIPPED / f"{name}.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ConfigError(
            f"{path}: cannot be read ({fault.strerror}); shipped recipes are {', '.join(shipped_recipes())}"
        ) from None
    except ValueError as fault:
        raise ConfigError(f"{path}: not TOML: {fault}") from None
    return make_recipe(values, path)


def make_recipe(values: dict[str, Any], path: Path) -> Recipe:
    """Checks what was read; raises ConfigError as ``read_recipe`` does."""
    tables = {
        "text": TextRecipe,
        "vocabulary": VocabularyRecipe,
        "ngram": NGramOptions,
        "bundle": BundleRecipe,
    }
    unknown = sorted(set(values) - {"title", "networks", *tables})
    if unknown:
        raise ConfigError(
            f"{path}: unknown {', '.join(unknown)}; a recipe has title, networks, {', '.join(tables)}"
        )
    parts = {name: _read(kind, values.get(name, {}), f"{path}: [{name}]") for name, kind in tables.items()}
    networks = {
        name: _network(table, f"{path}: [networks.{name}]")
        for name, table in values.get("networks", {}).items()
    }
    for name, network in networks.items():
        before = list(networks)[: list(networks).index(name)]
        if network.place.start_from and network.place.start_from not in before:
            raise ConfigError(f"{path}: [networks.{name}] starts from {network.place.start_from!r}, which is "
                              f"no network before it")  # fmt: skip
    if parts["bundle"].network not in networks:
        raise ConfigError(
            f"{path}: [bundle] network is {parts['bundle'].network!r}; it has {', '.join(networks)}"
        )
    title = str(values.get("title", path.stem))
    return Recipe(path, path.stem, title, networks=networks, **parts)


def _network(table: dict[str, Any], where: str) -> NetworkRecipe:
    """A network's flat table, each setting given to the part that it belongs to."""
    kinds = (NetworkOptions, TrainingOptions, NetworkPlace)
    owner = {each.name: kind for kind in kinds for each in fields(kind)}
    unknown = sorted(set(table) - set(owner))
    if unknown:
        raise ConfigError(f"{where} unknown {', '.join(unknown)}; known are {', '.join(sorted(owner))}")
    return NetworkRecipe(
        *(
            _read(kind, {key: value for key, value in table.items() if owner[key] is kind}, where)
            for kind in kinds
        )
    )


def _read(kind: type, table: dict[str, Any], where: str) -> Any:
    known = [each.name for each in fields(kind)]
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(f"{where} unknown {', '.join(unknown)}; known are {', '.join(known)}")
    try:
        return TypeAdapter(kind).validate_python(table)
    except ValidationError as fault:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in fault.errors())
        raise ConfigError(f"{where} {wrong}") from None
    except ConfigError as fault:
        raise ConfigError(f"{where} {fault}") from None

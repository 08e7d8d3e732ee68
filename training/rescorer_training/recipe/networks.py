"""The networks of a recipe: tables that may extend each other, trained with one seed or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rescorer.errors import ConfigError
from rescorer_training.neural.options import NetworkOptions, TrainingOptions
from rescorer_training.recipe.tables import check_keys, parse_table


@dataclass(frozen=True)
class RunSettings:
    """Settings of one network's training run, other than network options and training options."""

    note: str = ""
    """Description for the report."""
    start_from: str = ""
    """Name of an earlier network of the recipe; training starts from its best model and its vocabulary."""
    train: tuple[str, ...] = ()
    """Training texts of this network, relative to the data folder; empty uses the recipe's training texts."""
    weights: tuple[float, ...] = ()
    """For each text, the mean number of times per epoch that a sentence is drawn; empty: once each."""
    longest: int = 200
    """Maximum number of words per training sentence; longer sentences are truncated."""
    extends: str = ""
    """Name of a network above, whose settings hold here, too, except its note and what is set here."""
    seeds: tuple[int, ...] = ()
    """Train the network once with each seed; network ``x`` with seeds 1 and 2 becomes ``x-1`` and ``x-2``."""

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
    """Name of the network in the recipe, if it is trained with several seeds."""


def parse_networks(tables: Mapping[str, Any], file: str) -> dict[str, NetworkRecipe]:
    """Parse the tables of all networks, by name; those with several seeds become one network per seed.

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
    """A table with the settings of the one that it extends."""
    if not isinstance(table, Mapping) or not table.get("extends"):
        return table
    if table["extends"] not in above:
        raise ConfigError(f"{location} extends {table['extends']!r}, which is not a network above it")
    inherited = {key: value for key, value in above[table["extends"]].items() if key != "note"}
    return {**inherited, **table}


def _parse_network(table: dict[str, Any], location: str) -> NetworkRecipe:
    """Split a network's flat table into its options and settings."""
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
    """The network for one seed; what it starts from has the same seed if that is trained with several."""
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
    """The network of the given seed, if ``name`` is trained with several seeds."""
    member = f"{name}-{seed}"
    return member if member in above and above[member].group == name else name

"""The tables of a recipe's word vectors, and what networks may name as their embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rescorer.errors import ConfigError
from rescorer.lm.files.network_config import NetworkConfig
from rescorer_training.neural.options import NetworkOptions
from rescorer_training.recipe.tables import check_keys, parse_table
from rescorer_training.vectors.word2vec.options import Word2VecOptions

DEFAULT_SIZE = next(item.default for item in fields(NetworkConfig) if item.name == "embedding_size")


@dataclass(frozen=True)
class VectorsRecipe:
    """Texts and options of word vectors, which networks start from by naming them as their ``embeddings``."""

    train: tuple[str, ...]
    """Training texts, relative to the data folder, normalised with the default normaliser."""
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
    """Raise ConfigError if a network names no vectors of the recipe, no file, or vectors of another size."""
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

"""Read vocabulary size, parameters and memory of a bundle's models from their files, without loading them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from rescorer.bundle import Bundle
from rescorer.lm.files.arpa import has_arpa_header, read_arpa_counts
from rescorer.lm.files.kenlm_binary import read_kenlm_header
from rescorer.lm.files.network_files import read_config
from rescorer.lm.files.parameter_shapes import parameter_shapes
from rescorer.lm.files.word_list import read_words
from rescorer.lm.ngrams.table_file import is_table_file, read_table_header
from rescorer.safe_input.files import Folder
from rescorer.vocabulary import SPECIAL_TOKENS

WORD_BYTES = 200
"""Memory per word in Python's vocabularies and tables."""
NGRAM_BYTES = 32
"""Memory per n-gram of an ARPA file while its table is built."""
WEIGHT_BYTES = 4
"""Memory per weight: float32, whatever the type on disk."""


class ModelFacts(NamedTuple):
    """Metadata of one model; each number is 0 if the model's files do not state it."""

    name: str
    kind: str
    vocabulary_size: int
    """Known words, without sentence marks and ``<unk>``."""
    parameters: int
    """Weights of a network, or n-grams of an n-gram model."""
    memory_bytes: int
    """Estimated memory."""
    backward: bool = False
    """Whether it reads sentences from their last words to their first ones."""


def read_model_facts(bundle: Bundle) -> list[ModelFacts]:
    """Read the metadata of every model of a bundle; raises BundleError if a file cannot be read.

    Sizes that do not fit together are found here, before a worker builds anything from them.
    """
    facts = (
        (_read_network_facts if entry["kind"] == "neural" else _read_ngram_facts)(name, bundle.files, entry)
        for name, entry in bundle.manifest["models"].items()
    )
    return [model._replace(backward=model.name in bundle.backward) for model in facts]


def _read_network_facts(name: str, files: Folder, entry: Mapping[str, Any]) -> ModelFacts:
    """Read the network's configuration and derive the number of its parameters."""
    config = read_config(files.subfolder(entry["path"].rstrip("/")))
    shapes = parameter_shapes(config)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    words = config.vocabulary_size - len(SPECIAL_TOKENS)
    return ModelFacts(name, "neural", words, parameters, parameters * WEIGHT_BYTES + words * WORD_BYTES)


def _read_ngram_facts(name: str, files: Folder, entry: Mapping[str, Any]) -> ModelFacts:
    """Read the counts of a table or an ARPA file; of a KenLM binary, which is mapped, the size."""
    with files.open(entry["path"]) as stream:
        if is_table_file(stream):
            header = read_table_header(stream)
            memory_bytes = header.file_bytes + header.n_words * WORD_BYTES
            return ModelFacts(name, "ngram", header.n_words, sum(header.counts), memory_bytes)
        if "words" not in entry or has_arpa_header(stream):
            counts = read_arpa_counts(stream)
            words, n_grams = max(0, counts[0] - len(SPECIAL_TOKENS)), sum(counts)
            return ModelFacts(name, "ngram", words, n_grams, n_grams * NGRAM_BYTES + words * WORD_BYTES)
        read_kenlm_header(stream)
        words = len(read_words(files, entry["words"]))
        size = os.fstat(stream.fileno()).st_size
        return ModelFacts(name, "ngram", words, 0, size + words * WORD_BYTES)

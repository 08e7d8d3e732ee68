"""Train the word vectors of a recipe by skip-gram or CBOW."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.neural.options import NetworkOptions
from rescorer_training.recipe.ngrams import check_unchanged, describe_source
from rescorer_training.recipe.start import RecipeRun
from rescorer_training.vectors.files import write_vectors
from rescorer_training.vectors.files.formats import VectorFormat
from rescorer_training.vectors.word2vec import run as word2vec

VECTORS_FOLDER = "vectors"


def vectors_file(run: RecipeRun, name: str) -> Path:
    """Return the file of word vectors of the recipe."""
    return run.folder / VECTORS_FOLDER / f"{name}.txt.gz"


def train_vectors(run: RecipeRun) -> None:
    """Train the vectors that do not exist yet, or resume their training; one thread unless more are given."""
    for name, recipe in run.recipe.vectors.items():
        output = vectors_file(run, name)
        facts_file = output.with_name(f"{output.name}.json")
        texts = [run.data / text for text in recipe.train]
        made_from = describe_source(texts, recipe.options)
        if output.exists():
            check_unchanged(output, facts_file, made_from)
            run.log(f"{output} exists")
            continue
        run.log(f"training vectors {name}")
        folder = output.parent / name
        if not (folder / word2vec.STATE_FILE).exists():
            word2vec.start_run(texts, choose_normaliser(None), folder, recipe.options)
        vectors, report = word2vec.run(folder, recipe.options, run.threads or 1)
        facts = json.dumps({**report, "made_from": made_from}, indent=2) + "\n"
        facts_file.write_text(facts, encoding="utf-8")
        write_vectors(output, vectors, VectorFormat.WORD2VEC)
        run.log(f"trained {len(vectors):,} vectors in {report['seconds']:.0f} s")


def resolve_embeddings(run: RecipeRun, options: NetworkOptions) -> NetworkOptions:
    """Replace the name of vectors of the recipe by their file."""
    if options.embeddings and options.embeddings in run.recipe.vectors:
        return replace(options, embeddings=str(vectors_file(run, options.embeddings)))
    return options

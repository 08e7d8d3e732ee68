"""Estimate the n-gram models of a recipe, and measure them and mixtures of several models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rescorer.errors import ConfigError
from rescorer.lm.ngrams.table_file import SUFFIX
from rescorer_training.data.corpus import read_sentences
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.model_set import load_models
from rescorer_training.evaluation.perplexity import measure
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.recipe.config import Recipe
from rescorer_training.recipe.report import MeasuredModel
from rescorer_training.recipe.start import RecipeRun
from rescorer_training.state_files import describe_changes
from rescorer_training.vectors.word2vec.options import Word2VecOptions

FIRST, BACKWARD = "ngram", "ngram-backward"
"""Names of the recipe's first n-gram model, of ``[ngram]``, and of the same for backward networks."""
NGRAMS_FOLDER = "ngrams"


def list_ngrams(recipe: Recipe) -> dict[str, NGramOptions]:
    """The options of all n-gram models of a recipe, by name."""
    has_backward = any(map(recipe.is_backward, recipe.networks))
    backward = {BACKWARD: replace(recipe.ngram, backward=True)} if has_backward else {}
    return {FIRST: recipe.ngram, **backward, **recipe.ngrams}


def ngram_file(run: RecipeRun, name: str) -> Path:
    """The file of an n-gram model of the recipe."""
    if name in (FIRST, BACKWARD):
        return run.folder / f"{name}.arpa.gz"
    return run.folder / NGRAMS_FOLDER / f"{name}{SUFFIX}"


def estimate_ngrams(run: RecipeRun) -> None:
    """Estimate the n-gram models that do not exist yet."""
    for name, options in list_ngrams(run.recipe).items():
        output = ngram_file(run, name)
        facts_file = output.with_name(f"{output.name}.json")
        made_from = describe_source(run.train, options)
        if output.exists():
            check_unchanged(output, facts_file, made_from)
            run.log(f"{output} exists")
            continue
        run.log(f"estimating {name}")
        summary = train_ngram(run.train, run.normaliser, output, options)
        facts = json.dumps({**asdict(summary), "made_from": made_from}, indent=2) + "\n"
        facts_file.write_text(facts, encoding="utf-8")
        run.log(f"estimated {name} from {summary.n_words:,} words in {summary.seconds:.0f} s")


def describe_source(texts: Sequence[Path], options: NGramOptions | Word2VecOptions) -> dict[str, Any]:
    """What a model is estimated from, as plain data: options, and the name and bytes of each text."""
    sizes = [[path.name, path.stat().st_size] for path in texts]
    source: dict[str, Any] = json.loads(json.dumps({**asdict(options), "texts": sizes}, default=str))
    return source


def check_unchanged(output: Path, facts_file: Path, made_from: Mapping[str, Any]) -> None:
    """Raise ConfigError if a model was estimated with other options or from other texts."""
    facts = json.loads(facts_file.read_text(encoding="utf-8")) if facts_file.exists() else {}
    if "made_from" in facts and (
        changes := describe_changes(facts["made_from"], made_from, known_to_both=True)
    ):
        raise ConfigError(
            f"{output} was estimated by another recipe or from another text: {changes}; remove the file to "
            "estimate the model again, or choose another --output"
        )


def measure_ngrams(run: RecipeRun) -> list[MeasuredModel]:
    """Measure each n-gram model, alone and, if it reads forward, mixed with the first one."""
    rows = []
    for name, options in list_ngrams(run.recipe).items():
        alone = name == FIRST or options.backward
        measured, shares = measure_together(run, [name] if alone else [FIRST, name])
        facts = ngram_file(run, name).with_name(f"{ngram_file(run, name).name}.json")
        seconds = json.loads(facts.read_text(encoding="utf-8"))["seconds"] if facts.exists() else None
        row = MeasuredModel(
            name="n-gram" if name in (FIRST, BACKWARD) else name,
            perplexity={text: perplexities[name] for text, perplexities in measured.items()},
            with_ngram={
                text: perplexities["mixture"]
                for text, perplexities in measured.items()
                if "mixture" in perplexities
            },
            network_share=shares.get(name),
            minutes=None if seconds is None else seconds / 60,
            note=describe(options),
        )
        rows.append(row)
    return rows


def measure_mixtures(run: RecipeRun) -> list[MeasuredModel]:
    """Measure each mixture, with λ fitted on the validation text."""
    rows = []
    for name, models in run.recipe.mixtures.items():
        measured, shares = measure_together(run, models)
        row = MeasuredModel(
            name=name,
            perplexity={text: perplexities["mixture"] for text, perplexities in measured.items()},
            with_ngram={},
            note=", ".join(f"{model} {share:.2f}" for model, share in shares.items()),
        )
        rows.append(row)
    return rows


def measure_together(
    run: RecipeRun, names: Sequence[str]
) -> tuple[dict[str, dict[str, float]], Mapping[str, float]]:
    """Measure several models of the recipe, and their mixture if there are two or more.

    Returns:
        Perplexities by text, then by model or ``mixture``; and λ, fitted on the validation text.
    """
    ngrams = [name for name in names if name not in run.recipe.networks]
    networks = [name for name in names if name in run.recipe.networks]
    folders = [run.network_folder(name) for name in networks]
    loaded = load_models(None, [ngram_file(run, name) for name in ngrams], folders, device=run.device).models
    models = dict(zip([*ngrams, *networks], loaded.values(), strict=True))
    scores = {
        path.name: score_tokens(
            models, list(read_sentences([path], run.normaliser)), f"scoring {path.name}", in_order=True
        )
        for path in (run.validation, *run.tests)
    }
    shares = fit_mixture(scores[run.validation.name].log_probs) if len(models) > 1 else {}
    measured = {
        text: {name: figures.shared for name, figures in measure(of_text, shares).models.items()}
        for text, of_text in scores.items()
    }
    return measured, shares


def describe(options: NGramOptions) -> str:
    """Describe an n-gram model in a few words, for the report."""
    method = {"kneser-ney": "Kneser-Ney", "katz": "Katz", "witten-bell": "Witten-Bell"}[options.smoothing]
    parts = [method, f"order {options.order}"]
    parts += [f"{options.classes} Brown classes"] * bool(options.classes)
    parts += [f"classes of {options.class_file}"] * bool(options.class_file)
    parts += [f"a gap of {options.skip}"] * bool(options.skip)
    parts += ["backward"] * options.backward
    parts += [f"cut-offs {' '.join(map(str, options.cutoffs))}"] * any(options.cutoffs)
    return ", ".join(parts)

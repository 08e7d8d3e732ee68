"""Measure the models of a recipe: the rows of its report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch

from rescorer.lm.networks import NeuralModel
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.threads import use_threads
from rescorer_training.data.corpus import read_sentences
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.model_set import load_models
from rescorer_training.evaluation.perplexity import Perplexity, measure
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.recipe.ngrams import BACKWARD, FIRST, measure_mixtures, measure_ngrams, ngram_file
from rescorer_training.recipe.past_text import measure_past_text
from rescorer_training.recipe.report import MeasuredModel, Report, describe_machine
from rescorer_training.recipe.seeds import add_means, compare
from rescorer_training.recipe.start import RecipeRun

UNKNOWN_WORDS_NOTE = (
    "The n-gram and each network share the union of their vocabularies: a word that one of them does not "
    "know gets a share of that model's `<unk>` probability."
)


def measure_models(run: RecipeRun) -> Report:
    """Measure the networks, the n-gram of each direction, and the mixture of each network with its n-gram."""
    use_threads(run.threads or 0)
    texts = {path.name: list(read_sentences([path], run.normaliser)) for path in (run.validation, *run.tests)}
    rows = measure_ngrams(run)
    for name in run.recipe.networks:
        first = BACKWARD if run.recipe.is_backward(name) else FIRST
        ngrams, networks = [ngram_file(run, first)], [run.network_folder(name)]
        models = load_models(None, ngrams, networks, device=run.device).models
        scores = {
            text: score_tokens(models, words, f"{name}: {text}", in_order=True)
            for text, words in texts.items()
        }
        shares = fit_mixture(scores[run.validation.name].log_probs)
        measured = {text: measure(token_scores, shares).models for text, token_scores in scores.items()}
        network = cast(NeuralLanguageModel, models["neural"])
        rows.append(describe_network(run, name, network.model, measured, shares["neural"]))
    rows = add_means(rows, {name: network.group for name, network in run.recipe.networks.items()})
    rows += measure_mixtures(run) + measure_past_text(run)
    logs = {name: run.network_folder(name) / "log.jsonl" for name in run.recipe.networks}
    return Report(
        title=run.recipe.title,
        texts=tuple(texts),
        models=tuple(rows),
        comparisons=compare(rows, run.recipe.comparisons),
        curves={name: list(read_log(path)) for name, path in logs.items()},
        machine=describe_machine(torch.get_num_threads()),
        unknown=UNKNOWN_WORDS_NOTE,
    )


def describe_network(
    run: RecipeRun,
    name: str,
    model: NeuralModel,
    measured: Mapping[str, Mapping[str, Perplexity]],
    share: float,
) -> MeasuredModel:
    """Make the row of a network in the report.

    Args:
        measured: perplexities by text, then by model.
        share: interpolation weight λ of the network in its mixture with the n-gram model.
    """
    file = run.network_folder(name) / "best" / "training.json"
    facts = json.loads(file.read_text(encoding="utf-8"))
    return MeasuredModel(
        name=name,
        perplexity={text: perplexities["neural"].shared for text, perplexities in measured.items()},
        with_ngram={text: perplexities["mixture"].shared for text, perplexities in measured.items()},
        network_share=share,
        n_parameters=sum(value.numel() for value in model.parameters()),
        minutes=facts["seconds"] / 60,
        # a very short run takes 0.0 s after rounding
        words_per_s=facts["words"] / facts["seconds"] if facts["seconds"] else None,
        note=run.recipe.networks[name].run.note,
    )


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the validations of a run, keeping the last of several entries for the same step.

    A step has several entries if the run was killed after logging a validation, before saving it.
    """
    entries = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        entries[entry["step"]] = entry
    yield from entries.values()

"""Measure networks of a recipe that learn from the past of the text that they predict."""

from __future__ import annotations

import json
from typing import Any

from rescorer_training.data.corpus import read_sentences
from rescorer_training.evaluation.model_set import load_models
from rescorer_training.evaluation.past_text import score_past_texts
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.ngram.output import atomic_output
from rescorer_training.recipe.ngrams import FIRST, ngram_file
from rescorer_training.recipe.report import MeasuredModel
from rescorer_training.recipe.start import RecipeRun

PAST_TEXT_FILE = "past-text.json"


def measure_past_text(run: RecipeRun) -> list[MeasuredModel]:
    """Measure the networks of ``[past_text]`` with a neural cache and by dynamic evaluation.

    Settings are fitted on the validation text. Dynamic evaluation takes as long as training epochs do, so
    results are kept beside the network.
    """
    recipe, rows = run.recipe.past_text, []
    for name in recipe.networks:
        file = run.network_folder(name) / PAST_TEXT_FILE
        asked = {"cache_words": recipe.cache_words, "dynamic": recipe.dynamic}
        facts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if facts.get("asked") != asked or "ways" not in facts:  # older versions wrote no mixtures
            run.log(f"measuring {name} with the past of the text")
            facts = {"asked": asked, "ways": _measure(run, name)}
            with atomic_output(file) as partial:
                partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        rows += [
            MeasuredModel(
                f"{name}, {way}", found["perplexity"], found["mixture"], note=_describe(found["settings"])
            )
            for way, found in facts["ways"].items()
        ]
    return rows


def _measure(run: RecipeRun, name: str) -> dict[str, dict[str, Any]]:
    """Settings and perplexities of each way to use the past, alone and mixed with the n-gram model."""
    recipe = run.recipe.past_text
    texts = {path.name: list(read_sentences([path], run.normaliser)) for path in (run.validation, *run.tests)}
    models = load_models(None, [ngram_file(run, FIRST)], [run.network_folder(name)], device=run.device).models
    scores = {text: score_tokens(models, words, text, in_order=True) for text, words in texts.items()}
    return {
        past.way: {
            "settings": dict(past.settings),
            "perplexity": past.perplexities(),
            "mixture": past.mix_with(scores, run.validation.name),
        }
        for past in score_past_texts(
            models, texts, run.validation.name, cache_words=recipe.cache_words, dynamic=recipe.dynamic
        )
    }


def _describe(settings: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())

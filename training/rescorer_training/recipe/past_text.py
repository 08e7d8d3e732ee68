"""Measure networks of a recipe that learn from the past of the text that they predict."""

from __future__ import annotations

import json
import math
from typing import Any

from rescorer_training.data.corpus import read_sentences
from rescorer_training.evaluation.model_set import load_models
from rescorer_training.evaluation.past_text import fit_past_text_scorers
from rescorer_training.ngram.output import atomic_output
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
        if facts.get("asked") != asked:
            run.log(f"measuring {name} with the past of the text")
            facts = {"asked": asked, "scorers": _measure(run, name)}
            with atomic_output(file) as partial:
                partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        rows += [
            MeasuredModel(f"{name}, {scorer}", found["perplexity"], {}, note=_describe(found["settings"]))
            for scorer, found in facts["scorers"].items()
        ]
    return rows


def _measure(run: RecipeRun, name: str) -> dict[str, dict[str, Any]]:
    """Settings and perplexity by text of each way to use the past, by its name."""
    recipe = run.recipe.past_text
    texts = {path.name: list(read_sentences([path], run.normaliser)) for path in (run.validation, *run.tests)}
    models = load_models(None, [], [run.network_folder(name)], device=run.device).models
    scorers = fit_past_text_scorers(
        models, texts[run.validation.name], cache_words=recipe.cache_words, dynamic=recipe.dynamic
    )
    return {
        scorer.name.removeprefix("neural, "): {
            "settings": scorer.to_dict(),
            "perplexity": {text: math.exp(-scorer.score(words).mean()) for text, words in texts.items()},
        }
        for scorer in scorers
    }


def _describe(settings: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())

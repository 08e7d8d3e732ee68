"""The command ``rescorer-train sample``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rescorer_training.cli.open_models import open_models
from rescorer_training.cli.options import (
    BundleOption,
    DeviceOption,
    NeuralsOption,
    NGramsOption,
    NormaliserOption,
    SeedOption,
    ShareOption,
)


def sample_command(
    bundle: BundleOption = None,
    ngram: NGramsOption = None,
    neural: NeuralsOption = None,
    share: ShareOption = None,
    number: Annotated[int, typer.Option("-n", "--number", help="Number of sentences.", min=1)] = 5,
    prompt: Annotated[str, typer.Option(help="Words at the beginning of every sentence.")] = "",
    temperature: Annotated[
        float,
        typer.Option(
            help="Sampling temperature: below 1 favours likely words, above 1 unlikely ones; 0 always takes "
            "the likeliest word."
        ),
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option(help="Number of likeliest words to choose from; 0 for all words.")
    ] = 0,
    top_p: Annotated[
        float, typer.Option(help="Total probability of the likeliest words to choose from.")
    ] = 1.0,
    longest: Annotated[int, typer.Option(help="Maximum number of words per sentence.")] = 50,
    unknown: Annotated[bool, typer.Option("--unknown", help="Allow <unk> in sentences.")] = False,
    seed: SeedOption = 1,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per sentence.")] = False,
) -> None:
    """Sample sentences word by word from an n-gram model, a network or a mixture.

    Example: rescorer-train sample --bundle models/starter/1 --prompt "the ship" --top-p 0.9 -n 3
    """
    # deferred, because importing torch takes seconds
    import numpy as np

    from rescorer_training.evaluation.sample import Sampler, SamplingOptions

    options = SamplingOptions(temperature, top_k, top_p, longest, unknown)
    models = open_models(bundle, ngram, neural, normaliser=normaliser, device=device, share=share)
    sampler = Sampler(models.models, models.shares, options)
    prompt_words = models.normaliser.normalise(prompt)
    random = np.random.default_rng(seed)
    for _ in range(number):
        text = " ".join([*prompt_words, *sampler.sample_sentence(random, prompt_words)])
        typer.echo(json.dumps({"text": text}, ensure_ascii=False) if as_json else text)

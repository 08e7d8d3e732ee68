"""Owns the command ``rescorer-train sample``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rescorer_training.cli.options import (
    BundleOption,
    DeviceOption,
    NeuralsOption,
    NGramsOption,
    NormaliserOption,
    ShareOption,
    read_normaliser,
    read_shares,
)
from rescorer_training.evaluation.model_set import load_models


def sample_command(
    bundle: BundleOption = None,
    ngram: NGramsOption = None,
    neural: NeuralsOption = None,
    share: ShareOption = None,
    number: Annotated[int, typer.Option("-n", "--number", help="Sentences.", min=1)] = 5,
    prompt: Annotated[str, typer.Option(help="Words that every sentence begins with.")] = "",
    temperature: Annotated[float, typer.Option(help="Below 1 bolder, above wilder; 0: the likeliest.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest words; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Choose among the words that make up this probability.")] = 1.0,
    longest: Annotated[int, typer.Option(help="Words after which a sentence is cut.")] = 50,
    unknown: Annotated[bool, typer.Option("--unknown", help="<unk> may be said.")] = False,
    seed: Annotated[int, typer.Option(help="The same one gives the same sentences.")] = 1,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a sentence.")] = False,
) -> None:
    """Let models talk: sentences drawn word by word from an n-gram, a network or a mixture.

    Example: rescorer-train sample --bundle models/starter/1 --prompt "the ship" --top-p 0.9 -n 3
    """
    import numpy as np

    from rescorer_training.evaluation.sample import Sampler, SamplingOptions  # torch takes seconds to import

    options = SamplingOptions(temperature, top_k, top_p, longest, unknown)
    normalise = read_normaliser(normaliser) if normaliser else None
    models = load_models(
        bundle, ngram or (), neural or (), normaliser=normalise, shares=read_shares(share), device=device
    )
    sampler = Sampler(models.models, models.shares, options)
    begin = models.normaliser.words(prompt)
    random = np.random.default_rng(seed)
    for _ in range(number):
        text = " ".join([*begin, *sampler.sample_sentence(random, begin)])
        typer.echo(json.dumps({"text": text}, ensure_ascii=False) if as_json else text)

"""The command ``rescorer-train sample``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer_training.cli.open_models import MixtureOptions
from rescorer_training.cli.options import DeviceOption, NormaliserOption, SeedOption

if TYPE_CHECKING:
    from rescorer_training.evaluation.sample import SamplingOptions


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """How many sentences to sample, and how."""

    number: Annotated[int, typer.Option("-n", "--number", help="Number of sentences.", min=1)] = 5
    prompt: Annotated[str, typer.Option(help="Words at the beginning of every sentence.")] = ""
    temperature: Annotated[
        float,
        typer.Option(
            help="Sampling temperature: below 1 favours likely words, above 1 unlikely ones; 0 always takes "
            "the likeliest word."
        ),
    ] = 1.0
    top_k: Annotated[int, typer.Option(help="Number of likeliest words to choose from; 0 for all words.")] = 0
    top_p: Annotated[float, typer.Option(help="Total probability of the likeliest words to choose from.")] = (
        1.0
    )
    longest: Annotated[int, typer.Option(help="Maximum number of words per sentence.")] = 50
    unknown: Annotated[bool, typer.Option("--unknown", help="Allow <unk> in sentences.")] = False
    seed: SeedOption = 1

    def to_sampling(self) -> SamplingOptions:
        """Raises ConfigError if a value is out of range."""
        from rescorer_training.evaluation.sample import SamplingOptions  # deferred: imports torch

        return SamplingOptions(self.temperature, self.top_k, self.top_p, self.longest, self.unknown)


@expand_options
def sample_command(
    *,
    mixture: MixtureOptions,
    sentences: SampleOptions,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per sentence.")] = False,
) -> None:
    """Sample sentences word by word from an n-gram model, a network or a mixture.

    Example: rescorer-train sample --bundle models/starter/1 --prompt "the ship" --top-p 0.9 -n 3
    """
    # deferred, because importing torch takes seconds
    import numpy as np

    from rescorer_training.evaluation.sample import Sampler

    options = sentences.to_sampling()
    models = mixture.open(normaliser, device)
    sampler = Sampler(models.models, models.shares, options)
    prompt_words = models.normaliser.normalise(sentences.prompt)
    random = np.random.default_rng(sentences.seed)
    for _ in range(sentences.number):
        text = " ".join([*prompt_words, *sampler.sample_sentence(random, prompt_words)])
        typer.echo(json.dumps({"text": text}, ensure_ascii=False) if as_json else text)

"""The command ``rescorer-train adapt``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.bundle import Bundle, read_bundle
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.scoring import ReferenceOption, collect_lists, make_list_reader
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.weights import WeightOptions, check_streams
from rescorer.cli.output import Rejections
from rescorer.cli.render.tables import print_out
from rescorer.errors import ConfigError, FormatError
from rescorer.types import NBestList, Weights
from rescorer_training.cli.bundles.render_adaptation import describe_lists, print_report
from rescorer_training.cli.options import DeviceOption, JsonOption, ThreadsOption
from rescorer_training.data.pipes import is_pipe
from rescorer_training.neural.options import TrainingOptions

if TYPE_CHECKING:
    from rescorer_training.adaptation.lists import ListComparison
    from rescorer_training.adaptation.run import AdaptationInputs

BATCH_WORDS, WARMUP_STEPS, PATIENCE = 1024, 20, 2
"""Small batches and a short warm-up, because the text of a domain is small."""


@dataclass(frozen=True, slots=True)
class MeasuringTexts:
    """Texts that models are not trained on."""

    valid: Annotated[
        Path | None,
        typer.Option(
            help="Held-out text of the domain: half of it chooses λ and when training stops, half judges. "
            "Default: a tenth of the text, blocks of consecutive sentences chosen by --seed."
        ),
    ] = None
    general: Annotated[
        Path | None,
        typer.Option(help="Text of another kind, to measure what the models forget of what they knew."),
    ] = None


@dataclass(frozen=True, slots=True)
class FurtherTraining:
    """How the networks are trained further."""

    epochs: Annotated[int, typer.Option(help="Largest number of passes of the network over the text.")] = 12
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of the network.")] = 1e-3
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the held-out part and of the training.")
    ] = 1
    device: DeviceOption = "cpu"
    threads: ThreadsOption = None

    def to_options(self) -> TrainingOptions:
        """Raises ConfigError if a value is out of range."""
        return TrainingOptions(
            self.epochs, batch_words=BATCH_WORDS, learning_rate=self.learning_rate, warmup_steps=WARMUP_STEPS,
            patience=PATIENCE, schedule="plateau", seed=self.seed,
        )  # fmt: skip


@dataclass(frozen=True)
class ListsToRank:
    """Lists to rank by both bundles, and the weights to do it by."""

    lists: Sequence[NBestList]
    weights: Weights
    rejected: Rejections

    def compare(self, inputs: AdaptationInputs) -> ListComparison:
        """Rank the lists by the bundle and by the adapted one; report rejected lists on stderr."""
        from rescorer.pipeline import Rescorer
        from rescorer_training.adaptation.lists import compare_bundles

        before, after = (Rescorer.load(folder, inputs.device) for folder in (inputs.bundle, inputs.output))
        compared = compare_bundles(before, after, self.lists, self.weights)
        for error in compared.rejected:
            self.rejected.add(error)
        self.rejected.report()
        return compared


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingOptions:
    """Lists to rank by both bundles, and the weights to do it by."""

    lists: Annotated[
        str | None,
        typer.Option(help="N-best lists with references, to measure error rates before and after."),
    ] = None
    reference: ReferenceOption = None
    list_options: ListInputOptions
    weight_options: WeightOptions

    def read(self, bundle: Bundle) -> ListsToRank | None:
        """Read the lists; None without any.

        Raises:
            ConfigError: the lists do not have the streams of the weights, or the weights use rerankers.
            FormatError: no list has a reference.
        """
        if not self.lists:
            return None
        weights = self.weight_options.resolve(bundle.weights)
        if weights.rerankers:
            names = ", ".join(weights.rerankers)
            raise ConfigError(
                f"weights {weights.name!r} use the reranker {names}, which an adapted bundle does not have; "
                "choose others with --weights"
            )
        rejected = Rejections()
        lists = collect_lists(make_list_reader(self.reference, self.list_options)(self.lists), rejected)
        if not any(nbest.reference for nbest in lists):
            rejected.report()
            raise FormatError(
                "no list has a reference; give the references with --reference", file=self.lists
            )
        check_streams(lists, weights, self.list_options, self.lists)
        return ListsToRank(lists, weights, rejected)


@expand_options
def adapt(
    bundle: Annotated[
        Path, typer.Argument(help="Bundle to adapt: NAME/VERSION, or NAME for its newest version.")
    ],
    *,
    text: Annotated[Path, typer.Option(help="Text of the domain, one sentence per line; gzip or plain.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Folder of the new bundle, NAME/VERSION. Default: the name of the bundle and of the text, "
            "version 1, in the current folder: starter-domain/1.",
        ),
    ] = None,
    measuring: MeasuringTexts,
    ranking: RankingOptions,
    training: FurtherTraining,
    as_json: JsonOption = False,
) -> None:
    """Adapt a bundle to a domain by text alone, and measure what that changes.

    Example: rescorer-train adapt models/starter/1 --text domain.txt.gz -o models/domain/1

    The n-gram is interpolated with a Kneser-Ney model of the text; each network is trained further on it,
    until held-out text no longer improves; λ are fitted by EM. The other values of the weights sets stay as
    they are, so tune them afterwards if there are lists.
    """
    # deferred, because importing torch takes seconds
    from rescorer_training.adaptation.run import AdaptationInputs, adapt_bundle, check_output

    for path in (text, measuring.valid, measuring.general):
        if path is not None and not path.is_file() and not is_pipe(path):
            raise ConfigError(f"{path}: no such text; expected a file with one sentence per line")
    source = read_bundle(bundle)
    target = output or Path(f"{source.name}-{text.name.split('.')[0]}") / "1"
    check_output(target)
    scorable = ranking.read(source)
    inputs = AdaptationInputs(
        source.folder, text, target, measuring.valid, measuring.general, training.device, training.threads
    )
    report = adapt_bundle(inputs, training.to_options())
    compared = scorable.compare(inputs) if scorable else None
    if as_json:
        facts = {"bundle": str(target), **report.to_dict()}
        facts |= {"error_rates": compared.to_dict()} if compared else {}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    print_report(report, target)
    if compared and scorable:
        print_out("", *describe_lists(compared, scorable.weights.name))

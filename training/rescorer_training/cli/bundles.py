"""Commands that make bundles: from models, or from a bundle and the text of a domain."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from rescorer.errors import ConfigError, FormatError, pluralise
from rescorer.evaluation import list_errors
from rescorer.models.bundle import Bundle, read_bundle
from rescorer.terminal.evaluation_options import ReferenceOption, collect_lists, make_list_reader
from rescorer.terminal.list_options import ListInputOptions
from rescorer.terminal.options import WeightOptions, check_streams, expand_options
from rescorer.terminal.program import Rejections
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer.types import NBestList, Weights
from rescorer_training.cli.options import (
    DeviceOption,
    JsonOption,
    NormaliserOption,
    ThreadsOption,
    parse_number,
    parse_pairs,
    parse_shares,
    train_in,
)
from rescorer_training.corpus import choose_normaliser
from rescorer_training.neural.options import RunOptions, TrainingOptions
from rescorer_training.pipes import is_pipe
from rescorer_training.progress import option

if TYPE_CHECKING:
    from rescorer_training.adaptation import AdaptationInputs, AdaptationReport, Change, ListComparison
    from rescorer_training.finetuning import FinetuningOptions


TEXT_NAMES = {"domain": "held-out text of the domain", "general": "general text"}


def print_report(report: AdaptationReport, target: Path) -> None:
    """Print perplexities and λ before and after, and what was done to each model."""
    for name, text in report.texts.items():
        title = f"perplexity of {TEXT_NAMES[name]}: {text.file}, {text.tokens:,} tokens"
        table = FoldingTable("model", "before", "after", "change", "λ before", "λ after", title=title)
        for model, change in text.perplexity.items():
            shares = report.shares.get(model, (None, None))
            table.add_row(model, *format_change(change), *(format_value(share, 4) for share in shares))
        print_out(table, "")
    if report.per_word:
        table = FoldingTable(
            "model", "text", "before", "after", "change", title="perplexity per word, in pieces of words"
        )
        for name, texts in report.per_word.items():
            for text_name, change in texts.items():
                table.add_row(name, TEXT_NAMES[text_name], *format_change(change))
        print_out(table, "")
    print_out(*describe_models(report), "", f"{target}: adapted from {report.adapted.source}")


def format_change(change: Change) -> tuple[str, str, str]:
    """Format the perplexities before and after, and the change in percent, as three cells."""
    percent = list_errors.UNKNOWN
    if change.before and change.after:
        percent = f"{list_errors.format_signed(100 * (change.after / change.before - 1), 1)} %"
    return format_value(change.before, 2), format_value(change.after, 2), percent


def format_value(value: float | None, decimals: int) -> str:
    return list_errors.UNKNOWN if value is None else list_errors.format_number(value, decimals)


def describe_models(report: AdaptationReport) -> Iterator[str]:
    """Yield lines that say what was done to each model."""
    ngram, text = report.adapted.ngram, report.adapted.text
    yield f"learnt from {text.name}: {text.n_words:,} words in {text.n_sentences:,} sentences"
    if ngram and ngram.shares:
        shares = ", ".join(f"{name} {share:.4f}" for name, share in ngram.shares.items())
        yield f"{ngram.model}: interpolated with a {ngram.order}-gram of the text ({shares})"
    elif ngram:
        yield f"{ngram.model}: a {ngram.order}-gram of the text, a further model because {ngram.reason}"
    for name, network in report.adapted.networks.items():
        if network.is_improved:
            yield f"{name}: {network.epochs} epochs in {network.seconds / 60:.1f} min"
        else:
            yield f"{name}: left as it was, because held-out text did not improve"
        if network.unknown_words:
            share = 100 * network.unknown_uses / text.n_words
            yield (
                f"{name}: does not know {network.unknown_words:,} words of the text ({share:.1f} % of it); "
                "the n-gram shares out their probability"
            )
    for name, model in report.adapted.units.items():
        how = f"LoRA of rank {model.rank}" if model.rank else "all weights"
        yield (
            f"{name}: {how}, {model.trained:,} trained parameters, read {model.n_read:,} words in "
            f"{model.seconds / 60:.1f} min"
            + ("" if model.is_improved else "; left as it was, because held-out text did not improve")
        )
    if report.stale_weights:
        names = ", ".join(report.stale_weights)
        yield (
            f"weights {names}: left out confidences, held-out error rates and rerankers, which belong to the "
            "models of the source; train, tune and calibrate again"
        )


def describe_lists(compared: ListComparison, weights: str) -> Iterator[RenderableType]:
    """Yield a table of error rates, and a sentence on the gain of the adapted bundle."""
    title = f"error rates of {compared.n_lists:,} lists, weights {weights!r}"
    table = FoldingTable("bundle", "WER %", "interval", "gain", "p", "errors", title=title)
    for result in compared.results:
        system, gain = result.row.report.total.system, result.gain
        is_known = gain is not None and gain.interval.is_finite
        table.add_row(
            result.row.name,
            list_errors.format_percent(system.rate),
            list_errors.format_interval(result.interval),
            list_errors.format_gain(gain) if gain else list_errors.UNKNOWN,
            list_errors.format_p(gain.p_value) if gain and is_known else list_errors.UNKNOWN,
            f"{system.errors:,}",
        )
    yield table
    yield f"gains are over the first pass; intervals of 95 % from {compared.n_units:,} {compared.unit}s"
    gain = compared.gain
    if not gain.units_changed:
        yield "after against before: the same errors"
    elif gain.interval.is_finite:
        chance = list_errors.describe_p(gain.p_value)
        yield f"after against before: {list_errors.format_gain(gain)} points, {chance}"
    else:
        yield list_errors.describe_unknown("the weights after", "those before", gain, compared.unit)


BATCH_WORDS, WARMUP_STEPS, PATIENCE = 1024, 20, 2
"""Small batches and a short warm-up, because the text of a domain is small."""


@dataclass(frozen=True, slots=True)
class MeasuringTexts:
    """Texts that models are not trained on."""

    valid: Path | None = option(
        None,
        "Held-out text of the domain: half of it chooses λ and when training stops, half judges. "
        "Default: a tenth of the text, blocks of consecutive sentences chosen by --seed.",
    )
    general: Path | None = option(
        None, "Text of another kind, to measure what the models forget of what they knew."
    )


@dataclass(frozen=True, slots=True)
class FurtherTraining:
    """Further training of the networks."""

    epochs: int = option(12, "Largest number of passes of the network over the text.")
    learning_rate: float = option(1e-3, "Peak learning rate of the network.")
    seed: int = option(1, "Random seed of the held-out part and of the training.", min=0)
    device: DeviceOption = "cpu"
    threads: ThreadsOption = None

    def to_options(self) -> TrainingOptions:
        """Make the training options; raises ConfigError if a value is out of range."""
        return TrainingOptions(
            self.epochs, batch_words=BATCH_WORDS, learning_rate=self.learning_rate, warmup_steps=WARMUP_STEPS,
            patience=PATIENCE, schedule="plateau", seed=self.seed,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnitTraining:
    """Further training of models in pieces of words."""

    rank: int | None = option(
        None,
        "Models in pieces of words: rank of the matrices that LoRA trains; 0: all weights are trained. "
        "Default: 16, or 0 for recurrent networks and decoders of at most 20 million parameters.",
        min=0,
    )
    alpha: float | None = option(
        None, "LoRA: the change is multiplied by this over the rank. Default: twice the rank."
    )
    units_rate: float | None = option(
        None,
        "Peak learning rate of models in pieces of words. Default: 1e-3 with LoRA, 3e-4 for all weights.",
    )
    units_words: int = option(
        200_000, "Largest number of words that a model in pieces of words reads in training.", min=1
    )
    units_before: int = option(
        0,
        "Lines of the text before each sentence that a model in pieces of words reads in training, as its "
        "previous utterances. It needs a model imported with --prompt, and a text whose lines are in order.",
        min=0,
        metavar="LINES",
    )
    replay: Path | None = option(
        None,
        "Text of the kind that models in pieces of words were trained on: every fourth sentence of their "
        "training is drawn from it, so that they forget less.",
    )
    bfloat16: bool = option(
        False, "LoRA: multiply the weights that stay in bfloat16, for processors that are fast at it."
    )
    resume: bool = option(
        False, "Continue the training of models in pieces of words of a command that was stopped."
    )

    def to_options(self, training: FurtherTraining) -> FinetuningOptions:
        """Make the options of a run; raises ConfigError if a value is out of range."""
        from rescorer_training.finetuning import FinetuningOptions  # imports torch

        return FinetuningOptions(
            training.epochs, self.rank, self.alpha, self.units_rate, self.bfloat16, PATIENCE, training.seed,
            self.units_words, self.units_before,
        )  # fmt: skip


@dataclass(frozen=True)
class ListsToRank:
    """Lists that both bundles rank, and the weights for ranking."""

    lists: Sequence[NBestList]
    weights: Weights
    rejected: Rejections

    def compare(self, inputs: AdaptationInputs) -> ListComparison:
        """Rank the lists with both bundles, and compare the errors. Report rejected lists on stderr."""
        from rescorer.pipeline import Rescorer
        from rescorer_training.adaptation import compare_bundles

        before, after = (
            Rescorer.load(folder, inputs.run.device) for folder in (inputs.bundle, inputs.output)
        )
        compared = compare_bundles(before, after, self.lists, self.weights)
        for error in compared.rejected:
            self.rejected.add(error)
        self.rejected.report()
        return compared


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingOptions:
    """Options of the lists that both bundles rank, and of the weights for ranking."""

    lists: str | None = option(None, "N-best lists with references, to measure error rates before and after.")
    reference: ReferenceOption = None
    list_options: ListInputOptions
    weight_options: WeightOptions

    def read(self, bundle: Bundle) -> ListsToRank | None:
        """Read the lists; return None if no lists are given.

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


@contextmanager
def keep_states(folder: Path, is_used: bool, *, resume: bool) -> Iterator[None]:
    """Make the folder of a command's states, and remove it unless a stop has left states there.

    Args:
        is_used: whether there will be states.

    Raises:
        ConfigError: another process writes there, or there are no states to resume.
    """
    if not is_used:
        if resume:
            raise ConfigError("--resume is for bundles with a model in pieces of words; leave it out")
        yield
        return
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        with train_in(folder, "", resume=resume):
            yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


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
    units: UnitTraining,
    as_json: JsonOption = False,
) -> None:
    """Adapt a bundle to a domain by text alone, and measure what that changes.

    Example: rescorer-train adapt models/starter/1 --text domain.txt.gz -o models/domain/1

    The n-gram is interpolated with a Kneser-Ney model of the text; each network is trained further on it,
    and so is each model in pieces of words, with LoRA if it is large, until held-out text no longer improves;
    λ are fitted by EM. The other values of the weights sets stay as they are, so tune them afterwards if
    there are lists.
    """
    # deferred, because importing torch takes seconds
    from rescorer.runtime import use_threads
    from rescorer_training.adaptation import AdaptationInputs, UnitAdaptation, adapt_bundle, check_output

    for path in (text, measuring.valid, measuring.general, units.replay):
        if path is not None and not path.is_file() and not is_pipe(path):
            raise ConfigError(f"{path}: no such text; expected a file with one sentence per line")
    source = read_bundle(bundle)
    target = output or Path(f"{source.name}-{text.name.split('.')[0]}") / "1"
    check_output(target)
    scorable = ranking.read(source)
    inputs = AdaptationInputs(
        source.folder, text, target, measuring.valid, measuring.general,
        RunOptions(training.threads, training.device),
    )  # fmt: skip
    states = target.with_name(f".{target.name}.adapting")  # where a stopped command leaves its states
    unit_options = UnitAdaptation(units.to_options(training), units.replay, states)
    if training.threads:
        use_threads(training.threads)
    with keep_states(states, bool(source.open_vocabulary), resume=units.resume):
        report = adapt_bundle(inputs, training.to_options(), unit_options)
    compared = scorable.compare(inputs) if scorable else None
    if as_json:
        facts = {"bundle": str(target), **report.to_dict()}
        facts |= {"error_rates": compared.to_dict()} if compared else {}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    print_report(report, target)
    if compared and scorable:
        print_out("", *describe_lists(compared, scorable.weights.name))


@dataclass(frozen=True, slots=True)
class BundledModels:
    """Models of the bundle, and how they are interpolated."""

    validation: Annotated[
        Path, typer.Option(help="Held-out text on which to fit the interpolation weights λ.")
    ]
    ngram: list[str] | None = option(
        None,
        "ARPA file, n-gram table or KenLM binary; repeat for more, named ngram, ngram2, … unless a "
        "name is given. Words that the first one does not know are the unknown ones.",
        metavar="[NAME=]FILE",
    )
    neural: list[str] | None = option(
        None,
        "Folder of a trained network or of its run; repeat for more, named neural, neural2, … "
        "unless a name is given.",
        metavar="[NAME=]FOLDER",
    )
    units: list[str] | None = option(
        None,
        "Folder of a model in pieces of words that rescorer-train import wrote; repeat for more, named "
        "units, units2, … unless a name is given. Its weight is 0 beside other models: tune it, or mix it "
        "by --mix-units.",
        metavar="[NAME=]FOLDER",
    )
    mix_units: bool = option(
        False, "Mix the models of --units word by word with the others; their λ are fitted too."
    )
    share: list[str] | None = option(
        None,
        "Interpolation weight λ of a model in the mixture; repeat for each model. 0 alone leaves a "
        "model out, and the λ of the others are fitted. Default: all fitted.",
        metavar="NAME=WEIGHT",
    )


@dataclass(frozen=True, slots=True)
class DefaultWeights:
    """Values of the weights set ``default``."""

    stream: list[str] | None = option(
        None, "Weight of a score stream; repeat for more. Default: acoustic=1.", metavar="NAME=WEIGHT"
    )
    lm_weight: float = option(1.0, "Weight of the mixture's log-probability.")
    word: float = option(0.0, "Word insertion penalty: score added per word.")
    oov: float = option(0.0, "Score added per word that the n-gram model does not know.")

    def to_weights(self, shares: Mapping[str, float]) -> Weights:
        """Make the weights set ``default``; raises ConfigError if the weight of a stream is not a number."""
        streams = {name: parse_number(value) for name, value in parse_pairs(self.stream or ["acoustic=1"])}
        return Weights("default", streams, {"mixture": self.lm_weight}, self.word, self.oov, shares)


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """Contents of the bundle in addition to models and default weights, and how it is stored."""

    weight_set: list[Path] | None = option(
        None, "JSON file of a further weight set to include; repeat for more."
    )
    reranker: list[Path] | None = option(
        None,
        "Folder of a reranker that was trained with these models, to include; repeat for more.",
        metavar="FOLDER",
    )
    tables: bool = option(
        False,
        "Store n-grams as tables instead of ARPA files: larger, but opened at once and shared by "
        "the workers of a server.",
    )
    half: bool = option(False, "Store networks in half precision.")
    note: list[str] | None = option(
        None, "Note for the manifest, such as commands, text or licence; repeat for more.", metavar="KEY=TEXT"
    )


@expand_options
def bundle(
    output: Annotated[
        Path, typer.Argument(help="Folder to write, NAME/VERSION with a numeric version: models/starter/1.")
    ],
    *,
    models: BundledModels,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="Text on which to measure perplexities for the manifest; repeat for more."),
    ] = None,
    normaliser: NormaliserOption = None,
    weights: DefaultWeights,
    content: ContentOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> None:
    """Publish trained models as a bundle that rescorer can serve.

    Example: rescorer-train bundle models/mine/1 --ngram mine.arpa.gz --neural runs/lstm/best --validation
    valid.txt
    """
    # deferred, because importing torch takes seconds
    from rescorer_training.evaluation.perplexity import find_pieces, resolve_model_folder
    from rescorer_training.recipe.bundles import BundleParts, make_bundle, name_models

    if not output.name.isdecimal():
        raise ConfigError(f"{output}: the last part of the path must be a version number, such as {output}/1")
    default = weights.to_weights(parse_shares(models.share))
    ngrams = name_models("ngram", models.ngram or [])
    for path in name_models("neural", models.neural or []).values():
        if pieces := find_pieces(path):
            raise ConfigError(f"{path}: was trained in pieces of words; give --units {pieces} instead")
    networks = {
        name: resolve_model_folder(path) for name, path in name_models("neural", models.neural or []).items()
    }
    units = name_models("units", models.units or [])
    parts = BundleParts(
        name=output.parent.name,
        version=int(output.name),
        ngrams=ngrams,
        networks=networks,
        units=units,
        mix_units=models.mix_units,
        normaliser=choose_normaliser(normaliser, [*ngrams.values(), *networks.values()]),
        weights=default,
        validation=models.validation,
        tests={path.name.split(".")[0]: path for path in test or []},
        weight_sets=content.weight_set or (),
        rerankers=content.reranker or (),
        tables=content.tables,
        half=content.half,
        facts=dict(parse_pairs(content.note or [])),
    )
    manifest = make_bundle(parts, output)
    shares = read_bundle(output).weights["default"].mixture  # also verifies that the bundle loads
    if as_json:
        typer.echo(json.dumps(manifest, indent=2, ensure_ascii=False))
        return
    if shares:
        print_out(make_table(manifest, shares), *explain_unknown_words(manifest))
    for name in units:
        if name not in shares:
            print_out(f"{name}: reads pieces of words, and has no weight until one is tuned")


def make_table(manifest: dict[str, Any], shares: Mapping[str, float]) -> FoldingTable:
    """Make a table of perplexities with one row per text and one column per model."""
    names = list(next(iter(manifest["measured"].values()))["perplexity"])
    weights = ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
    title = f"{manifest['name']}/{manifest['version']}: perplexity (λ: {weights})"
    table = FoldingTable("text", "tokens", "unknown", *names, title=title)
    for facts in manifest["measured"].values():
        values = [list_errors.format_size(facts["perplexity"][name]) for name in names]
        table.add_row(facts["text"], f"{facts['tokens']:,}", f"{facts['unknown_words']:,}", *values)
    return table


def explain_unknown_words(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each model whose perplexity differs from that of its training, because it lacks words
    of the held-out text: both perplexities, why they differ, and what to do."""
    facts = manifest["measured"]["validation"]
    for name, counted in facts.get("unknown_as_one_word", {}).items():
        both = counted["perplexity"], facts["perplexity"][name]
        before, after = map(list_errors.format_size, both)
        unknown = pluralise(counted["unknown_words"], "word of the text is", "words of the text are")
        yield (
            f"{name}: perplexity {before} → {after} on {facts['text']}, because {unknown} unknown to it. "
            "Training counts these as one word, <unk>; here each takes its own share of the probability of "
            "<unk>, so that models can be compared and mixed. A larger --vocabulary-size in training brings "
            "the two together"
        )


def tables(
    bundle: Annotated[
        Path, typer.Argument(help="Bundle to convert: NAME/VERSION, or NAME for its newest version.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the new bundle, NAME/VERSION: models/mine/2.")
    ],
) -> None:
    """Publish a bundle again, with n-gram tables in place of its ARPA files.

    Example: rescorer-train tables models/starter -o tables/starter/1

    Tables are larger, but opened at once and shared by the workers of a server. Scores stay the same to the
    last bit, so that weights and rerankers stay valid.
    """
    # deferred, because importing them takes seconds
    from rescorer_training.adaptation import check_output
    from rescorer_training.recipe.bundles import publish_tables

    check_output(output)
    for name in publish_tables(bundle, output):
        typer.echo(f"{output}: {name} is a table now")


def precision(
    bundle: Annotated[
        Path, typer.Argument(help="Bundle to measure: NAME/VERSION, or NAME for its newest version.")
    ],
    *,
    text: Annotated[
        Path, typer.Option(help="Text of the kind that will be scored, one sentence per line; gzip or plain.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the new bundle, NAME/VERSION: models/mine/2.")
    ],
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest mean difference from float32, in nats per word.")
    ] = 0.02,
    sentences: Annotated[int, typer.Option(min=1, help="Number of sentences to score.")] = 200,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the precision of a bundle's networks, and publish the bundle again with that choice.

    Example: rescorer-train precision models/starter --text valid.txt.gz -o fast/starter/1

    Sentences and variants of them are scored in float32, bfloat16 and int8 on this machine. The fastest
    precision whose scores differ from float32 by no more than the tolerance is written into the manifest.
    `rescorer rescore --dtype auto` and `rescorer serve --dtype auto` use it; without the option, all models
    compute in float32 as before.
    """
    # deferred, because importing them takes seconds
    from rescorer.models.precision import choose_fastest
    from rescorer.runtime import use_threads
    from rescorer_training.adaptation import check_output
    from rescorer_training.corpus import read_sentences
    from rescorer_training.recipe.bundles import publish_precisions

    if not math.isfinite(tolerance):
        raise ConfigError(f"--tolerance is {tolerance}; expected a number of nats per word")
    check_output(output)
    use_threads(threads or 1)
    read = islice(read_sentences([text], read_bundle(bundle).normaliser), sentences)
    found = publish_precisions(bundle, output, list(read), tolerance)
    chosen = {name: choose_fastest(checks, tolerance) for name, checks in found.items()}
    if as_json:
        facts = {
            name: {"chosen": chosen[name], **{dtype: asdict(check) for dtype, check in checks.items()}}
            for name, checks in found.items()
        }
        typer.echo(json.dumps({"bundle": str(output), "models": facts}, indent=2))
        return
    title = f"differences from float32 in nats per word, tolerance {tolerance:g}"
    table = FoldingTable("model", "precision", "mean", "largest", "best changed", "words/CPU-s", title=title)
    for name, checks in found.items():
        for dtype, check in checks.items():
            table.add_row(
                name,
                f"{dtype} (chosen)" if dtype == chosen[name] else dtype,
                f"{check.mean_difference:.4f}",
                f"{check.max_difference:.3f}",
                f"{check.changed:,} of {check.n_sentences:,}",
                f"{check.words_per_s:,.0f}",
            )
    print_out(table, "", f"{output}: use it with `--dtype auto`")

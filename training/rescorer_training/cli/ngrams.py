"""Commands that estimate n-gram models, or change them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer

from rescorer.errors import ConfigError, pluralise, shorten
from rescorer.evaluation.list_errors import format_size
from rescorer.formats.io.text_io import is_stream
from rescorer.models.network_files import END, UNKNOWN
from rescorer.models.ngram_files import contains_words
from rescorer.models.ngrams import NgramModel
from rescorer.terminal.options import expand_options
from rescorer.terminal.program import print_results_apart
from rescorer.terminal.tables import print_out
from rescorer.text import Normaliser
from rescorer_training import corpus, pipes
from rescorer_training.cli.help import TrainingCommand
from rescorer_training.cli.options import (
    DeviceOption,
    JsonOption,
    ModelOptions,
    NormaliserOption,
    TextsArgument,
    check_model_output,
    check_vocabulary,
    describe_next_step,
    make_table,
    score_file,
)
from rescorer_training.evaluation.perplexity import (
    ModelSet,
    TextPerplexity,
    TokenScores,
    fit_mixture,
    measure,
    measure_contributions,
    open_ngram,
    perplexity,
    score_tokens,
)
from rescorer_training.ngram import estimate
from rescorer_training.ngram.backoff_model import BackoffModel, load_backoff_model
from rescorer_training.ngram.prune import (
    HISTORIES,
    compute_count_history,
    compute_model_history,
    compute_stationary_history,
    interpolate_files,
    prune,
)
from rescorer_training.progress import option


@expand_options
def interpolate_command(
    validation: Annotated[
        Path, typer.Argument(help="Held-out text on which to fit the weights, one sentence per line.")
    ],
    *,
    given: ModelOptions,
    test: Annotated[
        Path | None, typer.Option(help="Another text on which to measure the perplexity of the mixture.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            help="ARPA file to write: the --ngram models as one, with weights fitted for these alone."
        ),
    ] = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Fit the interpolation weights λ of a word-level mixture by EM, and show what each model contributes.

    As in a bundle, a word that a model does not know gets a share of the model's <unk>. --write interpolates
    the n-gram models (ARPA files or tables) into a single model, like SRILM's ngram -mix-lm: this model
    equals the mixture for stored n-grams and backs off for the others.

    Example: rescorer-train interpolate valid.txt --ngram news.arpa.gz --ngram talk.arpa.gz --write mix.arpa
    """
    if write:
        check_model_output("--write", write)
    check_write(write, given.ngram or [])
    models = given.open(normaliser, device)
    if len({model.backward for model in models.models.values()}) > 1:
        raise ConfigError(
            "forward and backward models cannot be mixed word by word; give those of one direction"
        )
    scores = score_file(models, validation)
    shares = fit_mixture(scores.log_probs)
    contributions = measure_contributions(scores, shares)
    facts: dict[str, Any] = {
        "perplexity": perplexity(scores.mix(shares)),
        "models": {name: asdict(contribution) for name, contribution in contributions.items()},
    }
    if test:
        facts["test"] = {"text": str(test), "perplexity": perplexity(score_file(models, test).mix(shares))}
    if write:
        with estimate.staged_output(write) as file:
            written = write_mixture(models, given.ngram or [], scores, file, validation)
        facts["written"] = {**written, "file": str(write)}
    with print_results_apart(write or ""):
        if as_json:
            typer.echo(json.dumps(facts))
        else:
            print_results(facts)


def check_write(write: Path | None, ngrams: list[Path]) -> None:
    """Raise ConfigError if ``--write`` is given but the models cannot be interpolated into a single file."""
    if not write:
        return
    if len(ngrams) < 2:
        raise ConfigError("--write interpolates n-gram models; give at least two of them with --ngram")
    for path in ngrams:
        pipes.check_no_pipe(path)
        if not contains_words(path):
            raise ConfigError(
                f"{path}: --write cannot read KenLM binaries; give the model's ARPA file or table"
            )


def write_mixture(
    models: ModelSet, paths: list[Path], scores: TokenScores, write: Path, validation: Path
) -> dict[str, Any]:
    """Interpolate the given n-gram models into one file; return its statistics for the report."""
    ngram_names = [name for name in models.models if name.startswith("ngram")]
    names = ngram_names[-len(paths) :]  # a bundle's n-gram model comes first and has no ARPA file
    ngrams = [model for name in names if isinstance(model := models.models[name], NgramModel)]
    shares = fit_mixture({name: scores.log_probs[name] for name in names})
    mixture = interpolate_files(paths, ngrams, list(shares.values()))
    with estimate.atomic_output(write) as partial:
        mixture.save(partial)
    estimate.write_records(write, mixture.trie.words, models.normaliser, backward=ngrams[0].backward)
    text = list(corpus.read_sentences([validation], models.normaliser))
    measured = score_tokens({"written": open_ngram(write)}, text).log_probs["written"]
    return {
        "file": str(write),
        "bytes": write.stat().st_size,
        "shares": shares,
        "perplexity": perplexity(measured),
    }


def print_results(facts: dict[str, Any]) -> None:
    """Print the contributions of the models, and the perplexities of the mixture."""
    title = f"perplexity of the mixture: {format_size(facts['perplexity'])}"
    rows = [
        (
            name,
            f"{model['share']:.4f}",
            format_size(model["alone"]),
            "–" if model["without"] is None else format_size(model["without"]),
        )
        for name, model in facts["models"].items()
    ]
    print_out(make_table(("model", "λ", "alone", "mixture without it"), rows, title))
    if "test" in facts:
        typer.echo(f"{facts['test']['text']}: perplexity {format_size(facts['test']['perplexity'])}")
    if "written" in facts:
        written = facts["written"]
        megabytes = written["bytes"] / 1e6
        typer.echo(
            f"{written['file']}: {megabytes:.1f} MB, "
            f"perplexity {format_size(written['perplexity'])} on the held-out text"
        )


MAX_MARK_CHARS = 20
"""Longest mark of the text that a message shows."""


class NGramCommand(TrainingCommand):
    """A command whose option ``--prune`` takes several numbers, ``--prune 0 0 1 1``, as lmplz's does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined: list[str] = []
        for arg in args:
            if len(joined) > 1 and joined[-2] == "--prune" and arg.isdecimal():
                joined[-1] += f" {arg}"
            else:
                joined.append(arg)
        return super().parse_args(ctx, joined)


OutputOption = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        help="ARPA file to write, gzip if the name ends in .gz; an n-gram table if it ends in .ngram; "
        "or a KenLM binary if it ends in .bin.",
    ),
]


@dataclass(frozen=True, slots=True)
class EstimatedModel:
    """The model to estimate: its n-grams, its vocabulary and its smoothing."""

    order: int = option(4, "Length of the longest n-grams, 2 to 6 words.")
    smoothing: str = option(
        "kneser-ney",
        "kneser-ney: interpolated, with modified discounts, the best for most texts. katz: "
        "back-off with Good-Turing discounts. witten-bell: interpolated, by counts of distinct words. none: "
        "relative frequencies, for teaching; words that never followed a context have probability 0.",
        metavar="kneser-ney|katz|witten-bell|none",
    )
    classes: int = option(
        0,
        "Learn so many classes of words (Brown clusters) from the text, and estimate n-grams of "
        "classes: P(class | classes before) · P(word | class). For mixtures with an n-gram of words. "
        "Writes an n-gram table.",
        metavar="N",
    )
    class_file: Path | None = option(
        None, "Take classes from a file instead, one 'WORD CLASS' per line, as mkcls writes."
    )
    skip: int = option(
        0,
        "Leave out the N words right before each word: with 1, P(word | the words before the last "
        "one). For mixtures. Writes an n-gram table.",
        metavar="N",
    )
    prune: str = option(
        "0",
        "Count cut-offs: prune n-grams of order 1, 2, … that occur at most K times, such as "
        "0 0 1 1. The first must be 0; the last one repeats for higher orders.",
        metavar="K K …",
    )
    vocabulary: Path | None = option(None, "File of the words to predict, one per line. Default: all words.")
    vocabulary_size: int | None = option(
        None, "Number of words to predict, the most frequent ones. Default: all words."
    )
    count_unk: bool = option(
        False,
        "Count <unk>, in the text or for out-of-vocabulary words, like any other word. Otherwise "
        "n-grams with out-of-vocabulary words are pruned, and <unk> in the text is an error.",
        "--count-unk",
    )
    backward: bool = option(
        False,
        "Count the n-grams of reversed sentences, to predict each word from the words after it.",
        "--backward/--forward",
    )

    def to_options(self) -> estimate.NGramOptions:
        """Convert to the options of the estimator; raises ConfigError if a value is out of range."""
        return estimate.NGramOptions(
            order=self.order,
            cutoffs=parse_cutoffs(self.prune),
            vocabulary=self.vocabulary,
            vocabulary_size=self.vocabulary_size,
            count_unknown=self.count_unk,
            smoothing=cast(Any, self.smoothing),
            classes=self.classes,
            class_file=self.class_file,
            skip=self.skip,
            backward=self.backward,
        )


@dataclass(frozen=True, slots=True)
class EstimatorOptions:
    """The program that estimates the model."""

    engine: str = option(
        "ours", "Estimator: 'ours', in memory; or KenLM's 'lmplz', on disk.", metavar="ours|lmplz"
    )
    memory: str = option("80%", "Memory that lmplz may use for sorting (its option -S), such as 80% or 4G.")


@expand_options
def ngram(
    texts: TextsArgument,
    output: OutputOption,
    *,
    model: EstimatedModel,
    normaliser: NormaliserOption = None,
    validation: Annotated[Path | None, typer.Option(help="Text on which to measure the perplexity.")] = None,
    estimator: EstimatorOptions,
    as_json: JsonOption = False,
) -> None:
    """Estimate an n-gram model of words or of classes of words, by default with Kneser-Ney smoothing.

    Example: rescorer-train ngram train.txt.gz -o model.arpa.gz --order 4 --prune 0 0 1 1
    """
    check_model_output("-o", output)
    check_vocabulary(model.vocabulary)
    chosen = corpus.choose_normaliser(normaliser)
    options = model.to_options()
    with estimate.staged_output(output) as file:
        summary = estimate.train_ngram(
            texts, chosen, file, options, engine=estimator.engine, memory=estimator.memory
        )
        summary, measured = replace(summary, output=str(output)), None
        if validation:
            words = list(corpus.read_sentences([validation], chosen))
            measured = measure(score_tokens({"ngram": open_ngram(file)}, words, "measuring"))
    with print_results_apart(output):
        if as_json:
            facts = None
            if measured:
                figures = measured.models["ngram"]
                facts = {
                    "n_tokens": measured.n_tokens,
                    "n_unknown": figures.n_unknown,
                    "perplexity": figures.counted,
                    "perplexity_excluding_unknown": figures.excluded,
                }
            typer.echo(json.dumps(asdict(summary) | {"validation": facts}))
        else:
            print_summary(summary, measured)
            if not is_stream(output):
                name = output.name.partition(".")[0]
                typer.echo(describe_next_step(name, "--ngram", output, validation), err=True)


def parse_cutoffs(text: str) -> tuple[int, ...]:
    """Parse ``0 0 1 1`` or ``0,0,1,1``."""
    try:
        return tuple(int(number) for number in text.replace(",", " ").split())
    except ValueError:
        raise ConfigError(f"--prune expects whole numbers such as 0 0 1 1, got {text!r}") from None


def print_summary(summary: estimate.NGramSummary, measured: TextPerplexity | None) -> None:
    """Print the sizes, discounts and perplexity of an estimated model."""
    n_discounts = max(len(order.discounts) for order in summary.orders)
    names = ("D1", "D2", "D3+") if n_discounts == 3 else (f"d{r}" for r in range(1, n_discounts + 1))
    rows = [
        (
            str(n),
            f"{order.n_kept:,}",
            f"{order.n_counted:,}",
            *(f"{discount:.4f}" for discount in order.discounts),
            *["–"] * (n_discounts - len(order.discounts)),
        )
        for n, order in enumerate(summary.orders, start=1)
    ]
    print_out(make_table(("order", "n-grams", "counted", *names), rows))
    unknown = f", {summary.n_unknown:,} of them unknown" if summary.n_unknown else ""
    print_out(
        f"{summary.n_words:,} words{unknown}, {summary.n_sentences:,} sentences, {summary.seconds:.1f} s, "
        f"{summary.output_bytes / 1e6:.1f} MB: {summary.output}"
    )
    if summary.n_dropped:
        shown = " ".join(shorten(mark, MAX_MARK_CHARS) for mark in summary.dropped)
        print_out(
            f"the normaliser dropped {pluralise(summary.n_dropped, 'mark')} of the text, such as {shown}; "
            "--normaliser raw keeps every token"
        )
    if measured:
        ngram = measured.models["ngram"]
        without = f"; {format_size(ngram.excluded)} without unknown words" if ngram.excluded else ""
        print_out(
            f"perplexity {format_size(ngram.counted or ngram.shared)}, "
            f"{ngram.n_unknown:,} unknown of {measured.n_tokens:,} tokens"
            f"{without}"
        )


@dataclass(frozen=True, slots=True)
class CriterionOptions:
    """How many n-grams to prune, and from where the probabilities of histories come.

    Raises:
        ConfigError: options contradict one another.
    """

    threshold: float | None = option(
        None, "Relative rise of the perplexity below which an n-gram is pruned: 1e-8, 1e-7, …"
    )
    keep: int | None = option(None, "Maximum number of n-grams to keep; use instead of --threshold.")
    history: str | None = option(
        None,
        "Source of the probability of a history: 'counts' of --text; 'stationary', an endless text "
        "that the model generates; or 'model', the product of the model's probabilities, which is wrong "
        "for Kneser-Ney models. Default: counts with --text, otherwise stationary.",
        metavar="|".join(HISTORIES),
    )
    text: list[Path] | None = option(None, "Training text for --history counts; repeat for more.")

    @property
    def source(self) -> str:
        """The source of the probability of a history."""
        return self.history or ("counts" if self.text else "stationary")

    def __post_init__(self) -> None:
        source, threshold = self.source, self.threshold
        if source not in HISTORIES:
            raise ConfigError(f"history is {source!r}; expected one of {', '.join(HISTORIES)}")
        if source == "counts" and not self.text:
            raise ConfigError("--history counts needs the training text; give it with --text")
        if source != "counts" and self.text:
            raise ConfigError(f"--text can only be used with --history counts, got --history {source}")
        if (threshold is None) == (self.keep is None):
            raise ConfigError("give either --threshold or --keep")
        if threshold is not None and not threshold > 0:
            raise ConfigError(f"threshold is {threshold}; expected a positive number, such as 1e-8")


@expand_options
def prune_command(
    model: Annotated[Path, typer.Argument(help="ARPA file to prune, or n-gram table.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="ARPA file to write, gzip if the name ends in .gz; or a KenLM binary if it ends in .bin.",
        ),
    ],
    *,
    criterion: CriterionOptions,
    test: Annotated[
        Path | None, typer.Option(help="Text on which to measure the perplexity before and after.")
    ] = None,
    normaliser: NormaliserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove those n-grams from a model whose removal raises its perplexity least.

    This is relative-entropy pruning (Stolcke 1998), with history probabilities that are right for Kneser-Ney
    models too (Chelba et al. 2010).

    Example: rescorer-train prune books4.arpa.gz -o small.arpa.gz --keep 1000000 --test test.txt
    """
    check_model_output("-o", output)
    pipes.check_no_pipe(model)
    if not contains_words(model):
        raise ConfigError(f"{model}: is a KenLM binary; give the ARPA file that it was made from")
    chosen = corpus.choose_normaliser(normaliser, [model])
    whole = load_backoff_model(model, "reading")
    backward = corpus.is_backward(model)
    probs = compute_history(whole, criterion, chosen, backward=backward)
    small, result = prune(whole, probs, threshold=criterion.threshold, keep=criterion.keep)
    with estimate.staged_output(output) as file:
        with estimate.atomic_output(file) as partial:
            small.save(partial)
        estimate.write_records(file, small.trie.words, chosen, backward=backward)
        facts: dict[str, Any] = {
            "history": criterion.source,
            **asdict(result),
            "before": [int(n) for n in np.diff(whole.trie.bounds)],
            "bytes_before": model.stat().st_size,
            "bytes": file.stat().st_size,
        }
        if test:
            facts["perplexity_before"], facts["perplexity"] = compare_perplexities(model, file, test, chosen)
    with print_results_apart(output):
        typer.echo(json.dumps(facts) if as_json else format_summary(facts))


def compute_history(
    model: BackoffModel, criterion: CriterionOptions, normaliser: Normaliser, *, backward: bool = False
) -> np.ndarray:
    """Compute the probability of every history by the chosen method, (R,)."""
    if criterion.source == "stationary":
        return compute_stationary_history(model, "history")
    if criterion.source == "model":
        return compute_model_history(model)
    ids = {word: i for i, word in enumerate(model.trie.words)}
    encoded = corpus.encode_text(
        criterion.text or [], normaliser, ids,
        unknown_id=ids[UNKNOWN], end_id=ids[END], backward=backward,
    )  # fmt: skip
    return compute_count_history(model, encoded)


def compare_perplexities(before: Path, after: Path, text: Path, normaliser: Normaliser) -> list[float]:
    """Measure the perplexities of two models with the same vocabulary."""
    words = list(corpus.read_sentences([text], normaliser))
    paths = {"before": before, "after": after}
    scores = (score_tokens({name: open_ngram(path, name)}, words, name) for name, path in paths.items())
    return [next(iter(measure(model_scores).models.values())).shared for model_scores in scores]


def format_summary(facts: dict[str, Any]) -> str:
    """Format the sizes and perplexities before and after pruning."""
    sizes = ", ".join(
        f"{n}-grams {kept:,} of {before:,}"
        for n, (before, kept) in enumerate(zip(facts["before"], facts["kept"], strict=True), start=1)
    )
    megabytes = f"{facts['bytes_before'] / 1e6:.1f} → {facts['bytes'] / 1e6:.1f} MB"
    lines = [f"{sizes}; {megabytes}, threshold {facts['threshold']:.3g}"]
    if "perplexity" in facts:
        before, after = (format_size(facts[key]) for key in ("perplexity_before", "perplexity"))
        lines.append(f"perplexity {before} → {after}")
    return "\n".join(lines)

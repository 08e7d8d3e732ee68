"""The command ``rescorer-train ngram``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.output import print_results_apart
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import ConfigError, pluralise, shorten
from rescorer.evaluation.figures import format_size
from rescorer_training.cli.options import JsonOption, NormaliserOption, TextsArgument
from rescorer_training.cli.outputs import check_model_output
from rescorer_training.data.corpus import read_sentences
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.evaluation.model_set import open_ngram
from rescorer_training.evaluation.perplexity import TextPerplexity, measure
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.ngram.estimate import NGramOptions, NGramSummary, train_ngram
from rescorer_training.ngram.output import staged_output

MAX_MARK_CHARS = 20
"""Longest mark of the text that a message shows."""


class NGramCommand(TyperCommand):
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
    """The model to estimate: its n-grams, their units and their smoothing."""

    order: Annotated[int, typer.Option(help="Length of the longest n-grams, 2 to 6 words.")] = 4
    smoothing: Annotated[
        str,
        typer.Option(
            metavar="kneser-ney|katz|witten-bell",
            help="kneser-ney: interpolated, with modified discounts, the best for most texts. katz: "
            "back-off with Good-Turing discounts. witten-bell: interpolated, by counts of distinct words.",
        ),
    ] = "kneser-ney"
    classes: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Learn so many classes of words (Brown clusters) from the text, and estimate n-grams of "
            "classes: P(class | classes before) · P(word | class). For mixtures with an n-gram of words. "
            "Writes an n-gram table.",
        ),
    ] = 0
    class_file: Annotated[
        Path | None,
        typer.Option(help="Take classes from a file instead, one 'WORD CLASS' per line, as mkcls writes."),
    ] = None
    skip: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Leave out the N words right before each word: with 1, P(word | the words before the last "
            "one). For mixtures. Writes an n-gram table.",
        ),
    ] = 0
    prune: Annotated[
        str,
        typer.Option(
            metavar="K K …",
            help="Count cut-offs: prune n-grams of order 1, 2, … that occur at most K times, such as "
            "0 0 1 1. The first must be 0; the last one repeats for higher orders.",
        ),
    ] = "0"
    vocabulary: Annotated[
        Path | None, typer.Option(help="File of the words to predict, one per line. Default: all words.")
    ] = None
    vocabulary_size: Annotated[
        int | None,
        typer.Option(help="Number of words to predict, the most frequent ones. Default: all words."),
    ] = None
    count_unk: Annotated[
        bool,
        typer.Option(
            "--count-unk",
            help="Count <unk>, in the text or for out-of-vocabulary words, like any other word. Otherwise "
            "n-grams with out-of-vocabulary words are pruned, and <unk> in the text is an error.",
        ),
    ] = False
    backward: Annotated[
        bool,
        typer.Option(
            "--backward/--forward",
            help="Count the n-grams of reversed sentences, to predict each word from the words after it.",
        ),
    ] = False

    def to_options(self) -> NGramOptions:
        """Raises ConfigError if a value is out of range, or options contradict one another."""
        return NGramOptions(
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
    """What estimates the model."""

    engine: Annotated[
        str,
        typer.Option(metavar="ours|lmplz", help="Estimator: 'ours', in memory; or KenLM's 'lmplz', on disk."),
    ] = "ours"
    memory: Annotated[
        str, typer.Option(help="Memory that lmplz may use for sorting (its option -S), such as 80% or 4G.")
    ] = "80%"


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
    chosen = choose_normaliser(normaliser)
    options = model.to_options()
    with staged_output(output) as file:
        summary = train_ngram(texts, chosen, file, options, engine=estimator.engine, memory=estimator.memory)
        summary, measured = replace(summary, output=str(output)), None
        if validation:
            words = list(read_sentences([validation], chosen))
            measured = measure(score_tokens({"ngram": open_ngram(file)}, words, "measuring"))
    with print_results_apart(output):
        if as_json:
            facts = measured and perplexity_facts(measured)
            typer.echo(json.dumps(asdict(summary) | {"validation": facts}))
        else:
            print_summary(summary, measured)


def parse_cutoffs(text: str) -> tuple[int, ...]:
    """Parse ``0 0 1 1`` or ``0,0,1,1``."""
    try:
        return tuple(int(number) for number in text.replace(",", " ").split())
    except ValueError:
        raise ConfigError(f"--prune expects whole numbers such as 0 0 1 1, got {text!r}") from None


def perplexity_facts(measured: TextPerplexity) -> dict[str, Any]:
    """Return the statistics of the validation text that ``--json`` reports."""
    ngram = measured.models["ngram"]
    return {
        "n_tokens": measured.n_tokens,
        "n_unknown": ngram.n_unknown,
        "perplexity": ngram.counted,
        "perplexity_excluding_unknown": ngram.excluded,
    }


def print_summary(summary: NGramSummary, measured: TextPerplexity | None) -> None:
    """Print the sizes, discounts and perplexity of an estimated model."""
    n_discounts = max(len(order.discounts) for order in summary.orders)
    names = ("D1", "D2", "D3+") if n_discounts == 3 else (f"d{r}" for r in range(1, n_discounts + 1))
    table = FoldingTable("order", "n-grams", "counted", *names)
    for n, order in enumerate(summary.orders, start=1):
        discounts = [f"{discount:.4f}" for discount in order.discounts]
        discounts += ["–"] * (n_discounts - len(discounts))
        table.add_row(str(n), f"{order.n_kept:,}", f"{order.n_counted:,}", *discounts)
    print_out(table)
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

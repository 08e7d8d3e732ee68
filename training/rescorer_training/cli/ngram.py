"""Owns the command ``rescorer-train ngram``: from text to an n-gram model file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from rescorer.errors import ConfigError
from rescorer_training.cli.options import NormaliserOption, read_normaliser
from rescorer_training.data.corpus import sentences
from rescorer_training.evaluation.model_set import open_ngram
from rescorer_training.evaluation.perplexity import TextPerplexity, measure
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.ngram.estimate import NGramOptions, NGramSummary, train_ngram


class NGramCommand(TyperCommand):
    """Takes ``--prune 0 0 1 1`` as lmplz does: one option, several numbers."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined: list[str] = []
        for arg in args:
            if len(joined) > 1 and joined[-2] == "--prune" and arg.isdecimal():
                joined[-1] += f" {arg}"
            else:
                joined.append(arg)
        return super().parse_args(ctx, joined)


def ngram(
    texts: Annotated[list[Path], typer.Argument(help="Training text, one sentence a line; gzip or plain.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="ARPA file to write; gzip where it ends in .gz, a KenLM binary where it ends in .bin.",
        ),
    ],
    order: Annotated[int, typer.Option(help="Longest n-gram, 2 to 6 words.")] = 4,
    prune: Annotated[
        str,
        typer.Option(
            metavar="K K …",
            help="Drop n-grams of order 1, 2, … that occur no more than so often, such as 0 0 1 1; the last "
            "number holds for the orders above, the first is 0.",
        ),
    ] = "0",
    vocabulary: Annotated[
        Path | None, typer.Option(help="File of words, one a line: predict no others.")
    ] = None,
    vocabulary_size: Annotated[
        int | None, typer.Option(help="Predict the so many most frequent words only.")
    ] = None,
    count_unk: Annotated[
        bool,
        typer.Option(
            "--count-unk",
            help="<unk>, in the text or for words outside the vocabulary, counts like a word. Else n-grams "
            "with it are dropped, and in the text it is an error.",
        ),
    ] = False,
    normaliser: NormaliserOption = None,
    validation: Annotated[Path | None, typer.Option(help="Text to measure the perplexity on.")] = None,
    engine: Annotated[
        str, typer.Option(help="ours, in memory; or lmplz, KenLM's own tool, on disk.")
    ] = "ours",
    memory: Annotated[str, typer.Option(help="What lmplz may sort in: its -S.")] = "80%",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Estimate an n-gram model: interpolated modified Kneser-Ney.

    Example: rescorer-train ngram train.txt.gz -o model.arpa.gz --order 4 --prune 0 0 1 1
    """
    normalise = read_normaliser(normaliser)
    options = NGramOptions(order, read_cutoffs(prune), vocabulary, vocabulary_size, count_unk)
    summary = train_ngram(texts, normalise, output, options, engine=engine, memory=memory)
    measured = None
    if validation:
        words = list(sentences([validation], normalise))
        measured = measure(score_tokens({"ngram": open_ngram(output)}, words, "measuring"))
    if as_json:
        typer.echo(json.dumps(asdict(summary) | {"validation": measured and facts(measured)}))
    else:
        show(summary, measured)


def read_cutoffs(text: str) -> tuple[int, ...]:
    """The numbers of ``0 0 1 1`` or ``0,0,1,1``."""
    try:
        return tuple(int(number) for number in text.replace(",", " ").split())
    except ValueError:
        raise ConfigError(f"--prune {text!r}; expected whole numbers such as 0 0 1 1") from None


def facts(measured: TextPerplexity) -> dict[str, Any]:
    ngram = measured.models["ngram"]
    return {
        "n_tokens": measured.n_tokens,
        "n_unknown": ngram.n_unknown,
        "perplexity": ngram.counted,
        "perplexity_excluding_unknown": ngram.excluded,
    }


def show(summary: NGramSummary, measured: TextPerplexity | None) -> None:
    """Prints what was made, for people."""
    table = Table(box=None, pad_edge=False)
    for name in ("order", "n-grams", "counted", "D1", "D2", "D3+"):
        table.add_column(name, justify="right")
    for n, order in enumerate(summary.orders, start=1):
        discounts = (f"{discount:.4f}" for discount in order.discounts)
        table.add_row(str(n), f"{order.n_kept:,}", f"{order.n_counted:,}", *discounts)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    unknown = f", {summary.n_unknown:,} of them unknown" if summary.n_unknown else ""
    console.print(
        f"{summary.n_words:,} words{unknown}, {summary.n_sentences:,} sentences, {summary.seconds:.1f} s, "
        f"{summary.output_bytes / 1e6:.1f} MB: {summary.output}",
        markup=False,
    )
    if measured:
        ngram = measured.models["ngram"]
        without = f"; {ngram.excluded:.2f} without them" if ngram.excluded else ""
        console.print(
            f"perplexity {ngram.counted:.2f}, {ngram.n_unknown:,} unknown of {measured.n_tokens:,} tokens"
            f"{without}"
        )

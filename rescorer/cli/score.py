"""Owns the command ``rescorer score``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rescorer.cli.options import BundleOption
from rescorer.errors import FormatError
from rescorer.evaluation.perplexity import TextTotals, total
from rescorer.formats.io.text_io import read_lines_strict
from rescorer.pipeline import Rescorer
from rescorer.types import TextScore

LINES_A_CALL = 1_000


def score(
    source: Annotated[
        str, typer.Argument(metavar="TEXT", help="One sentence a line, gzip or plain; - for a pipe.")
    ],
    bundle: BundleOption,
    context: Annotated[str, typer.Option(help="Words before each sentence.")] = "",
    words: Annotated[bool, typer.Option("--words", help="Every word's log-probability.")] = False,
    sentences: Annotated[bool, typer.Option("--sentences", help="Every sentence's log-probability.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines; the last one holds the totals.")
    ] = False,
) -> None:
    """Log-probability (natural log) and perplexity of text under every model of a bundle.

    Example: echo "the ship lay at anchor" | rescorer score - --bundle models/starter/1 --words
    """
    rescorer = Rescorer.load(bundle, device)
    totals = TextTotals()
    console = Console()
    lines = texts(source)
    while batch := list(islice(lines, LINES_A_CALL)):
        scores = [s for s in rescorer.score_text(batch, context) if s.words]
        totals += total(scores)
        for each in scores if words or sentences else ():
            if as_json:
                typer.echo(json.dumps(record(each, words), ensure_ascii=False))
            else:
                console.print(table(each, words))
    if not totals.n_tokens:
        raise FormatError("no words in it", file=source)
    if as_json:
        typer.echo(json.dumps(totals.to_dict()))
    else:
        parts = {"sentence": totals.n_sentences, "token": totals.n_tokens, "unknown word": totals.n_unknown}
        sizes = [f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in parts.items()]
        typer.echo(", ".join(sizes) + " (the ends of sentences are tokens, too)")
        console.print(summary(totals))


def texts(source: str) -> Iterator[str]:
    """Lines of a text; raises FormatError at the first that is no text."""
    return (line for _, line in read_lines_strict(source))


def record(each: TextScore, with_words: bool) -> dict[str, object]:
    """One sentence for machines."""
    out: dict[str, object] = {
        "text": each.text,
        "log_prob": {name: round(math.fsum(values), 6) for name, values in each.log_probs.items()},
    }
    if with_words:
        out["words"] = [*each.words, "</s>"]
        out["word_log_probs"] = {n: [round(v, 6) for v in values] for n, values in each.log_probs.items()}
        out["unknown"] = [*each.unknown, False]
    return out


def table(each: TextScore, with_words: bool) -> Table:
    """One sentence for people: a row a word, or the sums alone."""
    out = Table(title=each.text.strip(), title_justify="left")
    out.add_column("ln P")
    for name in each.log_probs:
        out.add_column(name, justify="right")
    if with_words:
        for i, word in enumerate((*each.words, "</s>")):
            mark = " (unknown)" if i < len(each.unknown) and each.unknown[i] else ""
            out.add_row(word + mark, *(f"{values[i]:.4f}" for values in each.log_probs.values()))
        out.add_section()
    out.add_row("sum", *(f"{math.fsum(values):.4f}" for values in each.log_probs.values()))
    return out


def summary(totals: TextTotals) -> Table:
    """All sentences together."""
    out = Table()
    for column in ("model", "ln P", "perplexity"):
        out.add_column(column, justify="left" if column == "model" else "right")
    for name, value in totals.log_probs.items():
        out.add_row(name, f"{value:,.2f}", f"{totals.perplexity(name):,.2f}")
    return out

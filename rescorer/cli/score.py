"""The command ``rescorer score``."""

from __future__ import annotations

import json
import math
from itertools import islice
from typing import Annotated

import typer

from rescorer.cli.options.models import BundleOption, DeviceOption
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import FormatError
from rescorer.evaluation.perplexity import TextTotals, sum_scores
from rescorer.formats.io.text_io import read_lines_strict
from rescorer.pipeline import Rescorer
from rescorer.types import TextScore

LINES_PER_BATCH = 1_000


def score(
    source: Annotated[
        str, typer.Argument(metavar="TEXT", help="One sentence per line, gzip or plain; - for a pipe.")
    ],
    bundle: BundleOption,
    *,
    context: Annotated[str, typer.Option(help="Words before each sentence.")] = "",
    words: Annotated[bool, typer.Option("--words", help="Print the log-probability of every word.")] = False,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="Print the log-probability of every sentence.")
    ] = False,
    device: DeviceOption = "cpu",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines; the last one holds the totals.")
    ] = False,
) -> None:
    """Compute the log-probability (natural log) and perplexity of text under every model of a bundle.

    Example: echo "the ship lay at anchor" | rescorer score - --bundle models/starter/1 --words
    """
    rescorer = Rescorer.load(bundle, device)
    totals = TextTotals()
    lines = (line for _, line in read_lines_strict(source))
    while batch := list(islice(lines, LINES_PER_BATCH)):
        scores = [text_score for text_score in rescorer.score_text(batch, context) if text_score.words]
        totals += sum_scores(scores)
        for text_score in scores if words or sentences else ():
            if as_json:
                typer.echo(json.dumps(score_to_dict(text_score, words), ensure_ascii=False))
            else:
                print_out(render_score(text_score, words))
    if not totals.n_tokens:
        raise FormatError("no words in it", file=source)
    if as_json:
        typer.echo(json.dumps(totals.to_dict()))
    else:
        counts = {"sentence": totals.n_sentences, "token": totals.n_tokens, "unknown word": totals.n_unknown}
        parts = [f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in counts.items()]
        print_out(", ".join(parts) + " (sentence ends count as tokens)")
        print_out(render_totals(totals))


def score_to_dict(score: TextScore, with_words: bool) -> dict[str, object]:
    """Convert the scores of one sentence to JSON data."""
    record: dict[str, object] = {
        "text": score.text,
        "log_prob": {name: round(math.fsum(values), 6) for name, values in score.log_probs.items()},
    }
    if with_words:
        record["words"] = [*score.words, "</s>"]
        record["word_log_probs"] = {
            name: [round(value, 6) for value in values] for name, values in score.log_probs.items()
        }
        record["unknown"] = [*score.unknown, False]
    return record


def render_score(score: TextScore, with_words: bool) -> FoldingTable:
    """Render the scores of one sentence: the sums and, with ``with_words``, one row per word."""
    table = FoldingTable("ln P", *score.log_probs, title=score.text.strip())
    if with_words:
        for i, word in enumerate((*score.words, "</s>")):
            mark = " (unknown)" if i < len(score.unknown) and score.unknown[i] else ""
            table.add_row(word + mark, *(f"{values[i]:.4f}" for values in score.log_probs.values()))
    table.add_row("sum", *(f"{math.fsum(values):.4f}" for values in score.log_probs.values()))
    return table


def render_totals(totals: TextTotals) -> FoldingTable:
    """Render the totals with one row per model."""
    table = FoldingTable("model", "ln P", "perplexity")
    for name, value in totals.log_probs.items():
        table.add_row(name, f"{value:,.2f}", f"{totals.perplexity(name):,.2f}")
    return table

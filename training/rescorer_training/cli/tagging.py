"""The commands ``rescorer-train tag train``, ``evaluate`` and ``predict``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.errors import ConfigError
from rescorer.evaluation.statistics import PairedTest, mcnemar
from rescorer.formats.io import text_io
from rescorer.models.bundle import TEXT
from rescorer.terminal.options import expand_options
from rescorer.terminal.program import PLAIN_HELP
from rescorer.terminal.tables import print_out
from rescorer_training import tagging
from rescorer_training.classification import LINES_PER_BATCH, ClassifierTraining
from rescorer_training.cli.options import (
    JsonOption,
    NormaliserOption,
    check_run_output,
    format_test,
    make_table,
    train_in,
)
from rescorer_training.corpus import choose_normaliser
from rescorer_training.evaluation.perplexity import resolve_model_folder
from rescorer_training.neural.checkpoint import STATE_FILE, start_folder
from rescorer_training.neural.options import RunOptions
from rescorer_training.progress import option
from rescorer_training.tagged_text import LAYOUTS, format_tagged, read_tagged
from rescorer_training.tagging import TAGGER, TagAccuracy, TaggerOptions, TagInputs

LAYOUT_HELP = (
    "Layout of tagged text: word/TAG … with a sentence per line, or columns with a word and its tag per "
    "line and an empty line after each sentence."
)
LayoutOption = Annotated[
    str | None,
    typer.Option(metavar="words|columns", help=f"{LAYOUT_HELP} Default: as the first line has it."),
]


@dataclass(frozen=True, slots=True)
class TaggedTextOptions:
    """Preparation of tagged texts: what is held out, which words are known, and the normaliser."""

    validation: list[Path] | None = option(
        None,
        "Tagged text for early stopping; may be repeated. Default: the last sentences of each text, which "
        "are then not trained on.",
    )
    validation_share: float = option(0.1, "Share of each text that is held out if there is no --validation.")
    vocabulary_size: int = option(
        50_000, "Number of words to know, the most frequent ones; words that occur only once are unknown."
    )
    layout: LayoutOption = None
    normaliser: NormaliserOption = None


@expand_options
def train_command(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT...", help="Tagged texts; gzip or plain.")],
    output_folder: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the run: model, log and state.")
    ],
    *,
    preparation: TaggedTextOptions,
    run: RunOptions,
    as_json: JsonOption = False,
    network: TaggerOptions,
    options: ClassifierTraining,
) -> None:
    """Train a tagger on text in which every word has a tag.

    Example: rescorer-train tag train tagged.txt -o runs/tagger --network gru --embedding 64 --hidden 64
    """
    chosen = choose_normaliser(preparation.normaliser, [output_folder] if run.resume else [])
    inputs = TagInputs(
        output_folder, texts, preparation.validation or [], chosen, preparation.layout,
        preparation.vocabulary_size, preparation.validation_share,
    )  # fmt: skip
    if not run.resume:
        check_run_output("-o", output_folder, (TEXT, tagging.LEXICON_FILE))
    with train_in(output_folder, STATE_FILE, resume=run.resume):
        text = tagging.prepare_text(inputs)
        if not run.resume:
            start_folder(output_folder, chosen)
        facts = tagging.train(inputs, text, network, options, run)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        typer.echo(
            f"validation accuracy {100 * facts['validation_accuracy']:.2f} %, most frequent tag "
            f"{100 * facts['most_frequent_tag_validation_accuracy']:.2f} % "
            f"({facts['validation_words']:,} words)"
        )


def evaluate_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run of tag train.")],
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT...", help="Held-out tagged texts.")],
    against: Annotated[
        list[Path] | None, typer.Option(help="Folder of another run to compare with; may be repeated.")
    ] = None,
    layout: LayoutOption = None,
    normaliser: NormaliserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a tagger on held-out text: accuracy, also on unknown words, and recall, precision and F1 of
    each tag.

    It is compared with the most frequent tag of each word, and with other taggers. Intervals are of 95 %.
    They and the tests (McNemar's, exact, two-sided) take words as independent, so that true intervals are
    wider.

    Example: rescorer-train tag evaluate runs/tagger held-out.txt --against runs/forward
    """
    sentences = [sentence for path in texts for sentence in read_tagged(path, layout)]
    runs = [run, *(against or [])]
    if len({folder.resolve() for folder in runs}) < len(runs):
        raise ConfigError("--against names a run twice, or the run that is measured; expected other runs")
    common = choose_normaliser(normaliser, map(resolve_model_folder, runs))  # for the same words
    systems: dict[str, TagAccuracy] = {}
    for folder in runs:
        tagger = tagging.load_tagger(resolve_model_folder(folder), common)
        measured = tagging.measure(tagger, sentences, tagging.load_lexicon(folder) if folder == run else None)
        systems[str(folder)] = measured.pop(TAGGER)
        systems |= measured
    first, *others = systems
    tests = {name: mcnemar(systems[name].all.is_correct, systems[first].all.is_correct) for name in others}
    if as_json:
        typer.echo(json.dumps({name: _describe(row, tests.get(name)) for name, row in systems.items()}))
        return
    headings = ("tagger", "accuracy %", "interval", "unknown words %", "mean F1 %")
    rows = (
        (
            name,
            _percent(row.all.share),
            " … ".join(map(_percent, row.all.interval)),
            _percent(row.unknown.share if len(row.unknown.truth) else None),
            _percent(row.macro_f1),
            *format_test(tests.get(name)),
        )
        for name, row in systems.items()
    )
    tested = ("only it is right", "only the first is right", "p")
    print_out(make_table((*headings, *tested), rows), "")
    by_tag = systems[first].by_tag().items()
    table = (
        (name, f"{row['words']:,.0f}", *(_percent(row[figure]) for figure in ("recall", "precision", "f1")))
        for name, row in sorted(by_tag, key=lambda item: -(item[1]["words"] or 0))
    )
    print_out(make_table(("tag", "words", "recall %", "precision %", "F1 %"), table))


def _describe(row: TagAccuracy, test: PairedTest | None) -> dict[str, Any]:
    """The figures of one tagger as plain data."""
    return {
        "words": len(row.all.truth),
        "accuracy": row.all.share,
        "interval": list(row.all.interval),
        "unknown_words": len(row.unknown.truth),
        "unknown_accuracy": row.unknown.share if len(row.unknown.truth) else None,
        "mean_f1": row.macro_f1,
        "tags": row.by_tag(),
        "paired_test": asdict(test) if test else None,
    }


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}"


def predict_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run of tag train.")],
    text: Annotated[
        str, typer.Argument(help="Text with one sentence per line, gzip or plain; - reads standard input.")
    ] = "-",
    layout: Annotated[str, typer.Option(metavar="words|columns", help=LAYOUT_HELP)] = "words",
    as_json: JsonOption = False,
) -> None:
    """Tag the words of a text, which stay as they are written. What is printed can be trained on.

    Example: echo "the sea was calm" | rescorer-train tag predict runs/tagger
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"layout is {layout!r:.100}; expected one of {', '.join(LAYOUTS)}")
    tagger = tagging.load_tagger(resolve_model_folder(run))
    lines: Iterator[list[str]] = (line.split() for _, line in text_io.read_lines_strict(text))
    while chunk := list(islice(lines, LINES_PER_BATCH)):
        for words, tags in zip(chunk, tagger.predict(chunk), strict=True):
            if as_json:
                typer.echo(json.dumps({"words": words, "tags": tags}, ensure_ascii=False))
            else:
                typer.echo(format_tagged(words, tags, layout), nl=False)


tag_app = typer.Typer(
    **PLAIN_HELP,
    help="Tag every word of a text, for instance with its part of speech, by networks in one or two "
    "directions.\n\n"
    "Example: rescorer-train tag train tagged.txt -o runs/tagger",
    no_args_is_help=True,
)
tag_app.command("train")(train_command)
tag_app.command("evaluate")(evaluate_command)
tag_app.command("predict")(predict_command)

"""The commands ``rescorer-train classify train``, ``evaluate`` and ``predict``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.errors import BundleError, ConfigError
from rescorer.evaluation.statistics import PairedTest, mcnemar
from rescorer.formats.io import text_io
from rescorer.models.bundle import TEXT
from rescorer.models.network_files import Vocabulary
from rescorer.terminal.options import expand_options
from rescorer.terminal.program import PLAIN_HELP
from rescorer.terminal.tables import print_out
from rescorer.text import Normaliser
from rescorer_training import classification
from rescorer_training.classification import Accuracy, Classifier, ClassifierOptions, ClassifierTraining
from rescorer_training.cli.options import (
    JsonOption,
    NormaliserOption,
    check_run_output,
    format_test,
    make_table,
    parse_pairs,
    train_in,
)
from rescorer_training.corpus import choose_normaliser, join_paragraphs
from rescorer_training.evaluation.perplexity import resolve_model_folder
from rescorer_training.neural.checkpoint import STATE_FILE, start_folder
from rescorer_training.neural.options import RunOptions
from rescorer_training.progress import option


def parse_texts(values: list[str]) -> dict[str, Path]:
    """Parse NAME=FILE arguments into the text of each class.

    Raises:
        ConfigError: an argument has no name or no file, or a name occurs twice.
    """
    texts: dict[str, Path] = {}
    for name, file in parse_pairs(values):
        if not name or not file:
            raise ConfigError(f"expected NAME=FILE, got {name + '=' + file!r}")
        if name in texts:
            raise ConfigError(f"class {name!r} is given twice; expected one text per class")
        texts[name] = Path(file)
    return texts


NAIVE_BAYES = "naive Bayes"
ParagraphsOption = Annotated[
    bool,
    typer.Option(
        "--paragraphs/--lines",
        help="Texts are paragraphs, with line ends inside and empty lines between them; or lines (default).",
    ),
]


def evaluate_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run of classify train.")],
    texts: Annotated[
        list[str],
        typer.Argument(metavar="NAME=FILE...", help="Held-out text of each class, one sentence per line."),
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of another run with the same classes to compare with; may be repeated."),
    ] = None,
    paragraphs: ParagraphsOption = False,
    normaliser: NormaliserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a classifier on held-out texts, beside naive Bayes and other classifiers.

    Naive Bayes is estimated from the training text in the folder of the run, and left out without that text.
    Intervals are of 95 %. They and the tests (McNemar's, exact, two-sided) take sentences as independent.

    Example: rescorer-train classify evaluate runs/kinds novels=test.txt.gz telephone=calls-test.txt.gz
    """
    by_class = parse_texts(texts)
    systems: dict[str, Accuracy] = {}
    runs = [run, *(against or [])]
    common = choose_normaliser(normaliser, map(resolve_model_folder, runs))  # for the same sentences
    for folder in runs:
        systems |= _measure(folder, by_class, common, with_baseline=folder == run, paragraphs=paragraphs)
    measured, *others = systems
    tests = {name: mcnemar(systems[name].is_correct, systems[measured].is_correct) for name in others}
    if as_json:
        typer.echo(json.dumps({name: _describe(systems[name], tests.get(name)) for name in systems}))
        return
    print_systems(systems, tests)
    print_classes(systems[measured])
    groups = [accuracy.by_length() for accuracy in systems.values()]
    lengths = (
        (words, f"{n:,}", *(_percent(group[words][1]) for group in groups))
        for words, (n, _) in groups[0].items()
    )
    print_out(make_table(("words", "sentences", *(f"accuracy %, {name}" for name in systems)), lengths))


def _measure(
    run: Path,
    by_class: dict[str, Path],
    normaliser: Normaliser,
    *,
    with_baseline: bool,
    paragraphs: bool,
) -> dict[str, Accuracy]:
    """Measure the classifier of a run; with ``with_baseline``, also naive Bayes of its training text."""
    model, vocabulary = _load(run)
    labels = model.config.labels
    text = classification.read_labelled(by_class, model.config, normaliser, vocabulary, paragraphs=paragraphs)
    measured = {str(run): classification.measure(text, labels, classification.predict(model, text))}
    if with_baseline and (run / classification.SPLIT_FILE).exists():
        trained = classification.load_prepared(run)
        baseline = classification.fit_baseline(trained).predict(text)
        measured[NAIVE_BAYES] = classification.measure(text, labels, baseline)
    return measured


def _load(run: Path) -> tuple[Classifier, Vocabulary]:
    """Load the classifier of a run; raise BundleError for a tagger, which predicts no class of a sentence."""
    folder = resolve_model_folder(run)
    model, vocabulary = classification.load_classifier(folder)
    if model.config.pooling == "none":
        raise BundleError(f"{folder} tags words; give it to rescorer-train tag")
    return model, vocabulary


def _describe(accuracy: Accuracy, test: Any) -> dict[str, Any]:
    """The figures of one classifier as plain data."""
    return {
        "sentences": len(accuracy.truth),
        "accuracy": accuracy.share,
        "interval": list(accuracy.interval),
        "recall": dict(zip(accuracy.labels, accuracy.recall(), strict=True)),
        "precision": dict(zip(accuracy.labels, accuracy.precision(), strict=True)),
        "labels": list(accuracy.labels),
        "confusions": accuracy.confusions.tolist(),
        "by_length": {
            words: {"sentences": n, "accuracy": share} for words, (n, share) in accuracy.by_length().items()
        },
        "paired_test": asdict(test) if test else None,
    }


def print_systems(systems: dict[str, Accuracy], tests: dict[str, PairedTest]) -> None:
    """Print the accuracy of each classifier, and its comparison with the first one."""
    headings = ("classifier", "accuracy %", "interval", "only it is right", "only the first is right", "p")
    rows = (
        (name, _percent(row.share), " … ".join(map(_percent, row.interval)), *format_test(tests.get(name)))
        for name, row in systems.items()
    )
    print_out(make_table(headings, rows), "")


def print_classes(accuracy: Accuracy) -> None:
    """Print recall and precision of each class, and how often it was taken for each other class."""
    rows = zip(
        accuracy.labels,
        (f"{n:,}" for n in accuracy.confusions.sum(axis=1)),
        map(_percent, accuracy.recall()),
        map(_percent, accuracy.precision()),
        strict=True,
    )
    confusions = (
        (name, *(f"{n:,}" for n in row))
        for name, row in zip(accuracy.labels, accuracy.confusions, strict=True)
    )
    print_out(make_table(("class", "sentences", "recall %", "precision %"), rows), "")
    print_out(make_table(("class \\ predicted", *accuracy.labels), confusions), "")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}"


def predict_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run of classify train.")],
    text: Annotated[
        str, typer.Argument(help="Text with one sentence per line, gzip or plain; - reads standard input.")
    ] = "-",
    paragraphs: ParagraphsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the class of each sentence, and the probability of every class, one line per line of text.

    Columns are separated by tabs; the first line names them. With --json, every line is an object, which also
    counts the words and those unknown to the classifier. Lines without words have predictions too.

    Example: echo "call me ishmael" | rescorer-train classify predict runs/kinds
    """
    folder = resolve_model_folder(run)
    model, vocabulary = _load(run)
    read = (line for _, line in text_io.read_lines_strict(text))
    lines = join_paragraphs(read) if paragraphs else read
    if not as_json:
        typer.echo("\t".join(["class", *model.config.labels]))
    normaliser = choose_normaliser(None, [folder])
    for prediction in classification.predict_lines(model, vocabulary, normaliser, lines):
        if as_json:
            facts = {
                "class": prediction.label,
                "probabilities": prediction.probabilities,
                "words": prediction.n_words,
                "unknown_words": prediction.n_unknown,
            }
            typer.echo(json.dumps(facts))
        else:
            values = (f"{value:.6f}" for value in prediction.probabilities.values())
            typer.echo("\t".join([prediction.label, *values]))


@dataclass(frozen=True, slots=True)
class LabelledTextOptions:
    """Preparation of texts: what is held out, which words are known, and the normaliser."""

    validation: list[str] | None = option(
        None,
        "Held-out text of a class for early stopping; repeat for each class. Default: the last "
        "sentences of each text, which are then not trained on.",
        metavar="NAME=FILE",
    )
    validation_share: float = option(0.1, "Share of each text that is held out if there is no --validation.")
    vocabulary_size: int = option(
        50_000, "Number of words to know, the most frequent ones; words that occur only once are unknown."
    )
    paragraphs: ParagraphsOption = False
    normaliser: NormaliserOption = None


@expand_options
def train_command(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=FILE...", help="Text of each class, one sentence per line; gzip or plain."
        ),
    ],
    output_folder: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the run: model, log and state.")
    ],
    *,
    preparation: LabelledTextOptions,
    run: RunOptions,
    as_json: JsonOption = False,
    network: ClassifierOptions,
    options: ClassifierTraining,
) -> None:
    """Train a classifier of sentences from one text per class.

    Example: rescorer-train classify train novels=books.txt.gz telephone=calls.txt.gz -o runs/kinds
    """
    by_class = parse_texts(texts)
    if len(by_class) < 2:
        raise ConfigError("there is one class; expected two or more texts, each as NAME=FILE")
    validation = parse_texts(preparation.validation or [])
    chosen = choose_normaliser(preparation.normaliser, [output_folder] if run.resume else [])
    inputs = classification.RunInputs(output_folder, by_class, validation, chosen)
    if not run.resume:
        files = (TEXT, classification.VOCABULARY_FILE, classification.TEXT_FILE, classification.SPLIT_FILE)
        check_run_output("-o", output_folder, files)
    with train_in(output_folder, STATE_FILE, resume=run.resume):
        if run.resume:
            text = classification.load_prepared(output_folder)
        else:
            start_folder(output_folder, chosen)
            text = classification.prepare_text(
                output_folder, by_class, validation, inputs.normaliser,
                vocabulary_size=preparation.vocabulary_size, validation_share=preparation.validation_share,
                longest=classification.LONGEST if network.longest is None else network.longest,
                paragraphs=preparation.paragraphs,
            )  # fmt: skip
        facts = classification.train(inputs, text, network, options, run)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        typer.echo(
            f"validation accuracy {100 * facts['validation_accuracy']:.2f} %, naive Bayes "
            f"{100 * facts['naive_bayes_validation_accuracy']:.2f} % ({facts['validation_sentences']:,} "
            f"sentences: {facts['validation']})"
        )


classify_app = typer.Typer(
    **PLAIN_HELP,
    help="Classify sentences by the kind of text that they come from, with recurrent and other networks.\n\n"
    "Example: rescorer-train classify train novels=books.txt.gz telephone=calls.txt.gz -o runs/kinds",
    no_args_is_help=True,
)
classify_app.command("train")(train_command)
classify_app.command("evaluate")(evaluate_command)
classify_app.command("predict")(predict_command)

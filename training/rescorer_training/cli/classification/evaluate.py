"""The command ``rescorer-train classify evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.evaluation.statistics.proportions import mcnemar
from rescorer_training.cli.classification.texts import find_model, parse_texts
from rescorer_training.cli.options import JsonOption, NormaliserOption
from rescorer_training.data.normalisation import choose_normaliser

if TYPE_CHECKING:
    from rescorer.text import Normaliser
    from rescorer_training.classification.accuracy import Accuracy

NAIVE_BAYES = "naive Bayes"


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
    common = choose_normaliser(normaliser, map(find_model, runs))  # for the same sentences
    for folder in runs:
        systems |= _measure(folder, by_class, common, with_baseline=folder == run)
    measured, *others = systems
    tests = {name: mcnemar(systems[name].is_correct, systems[measured].is_correct) for name in others}
    if as_json:
        typer.echo(json.dumps({name: _describe(systems[name], tests.get(name)) for name in systems}))
        return
    first = systems[measured]
    print_out(
        _make_systems_table(systems, tests), "", _make_classes_table(first), "",
        _make_confusions_table(first), "", _make_lengths_table(systems),
    )  # fmt: skip


def _measure(
    run: Path, by_class: dict[str, Path], normaliser: Normaliser, *, with_baseline: bool
) -> dict[str, Accuracy]:
    """Measure the classifier of a run, and the naive Bayes classifier of its training text if asked for."""
    from rescorer_training.classification import prepare, train
    from rescorer_training.classification.model import load_classifier
    from rescorer_training.classification.predict import predict

    model, vocabulary = load_classifier(find_model(run))
    labels = model.config.labels
    text = prepare.read_labelled(by_class, labels, normaliser, vocabulary)
    measured = {str(run): train.measure(text, labels, predict(model, text))}
    if with_baseline and (run / prepare.SPLIT_FILE).exists():
        trained = prepare.load_prepared(run)
        measured[NAIVE_BAYES] = train.measure(text, labels, train.fit_baseline(trained).predict(text))
    return measured


def _describe(accuracy: Accuracy, test: Any) -> dict[str, Any]:
    """The figures of one classifier as plain data."""
    from dataclasses import asdict

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


def _make_systems_table(systems: dict[str, Accuracy], tests: dict[str, Any]) -> FoldingTable:
    table = FoldingTable(
        "classifier", "accuracy %", "interval", "only it is right", "only the first is right", "p"
    )
    for name, accuracy in systems.items():
        low, high = accuracy.interval
        test = tests.get(name)
        paired = (
            (f"{test.only_first:,}", f"{test.only_second:,}", f"{test.p_value:.2g}") if test else ("", "", "")
        )
        table.add_row(name, _percent(accuracy.share), f"{_percent(low)} … {_percent(high)}", *paired)
    return table


def _make_classes_table(accuracy: Accuracy) -> FoldingTable:
    table = FoldingTable("class", "sentences", "recall %", "precision %")
    rows = zip(
        accuracy.labels, accuracy.confusions.sum(axis=1), accuracy.recall(), accuracy.precision(), strict=True
    )
    for name, n, recall, precision in rows:
        table.add_row(name, f"{n:,}", _percent(recall), _percent(precision))
    return table


def _make_confusions_table(accuracy: Accuracy) -> FoldingTable:
    table = FoldingTable("class \\ predicted", *accuracy.labels)
    for name, row in zip(accuracy.labels, accuracy.confusions, strict=True):
        table.add_row(name, *(f"{n:,}" for n in row))
    return table


def _make_lengths_table(systems: dict[str, Accuracy]) -> FoldingTable:
    table = FoldingTable("words", "sentences", *(f"accuracy %, {name}" for name in systems))
    groups = [accuracy.by_length() for accuracy in systems.values()]
    for words, (n, _) in groups[0].items():
        table.add_row(words, f"{n:,}", *(_percent(group[words][1]) for group in groups))
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}"

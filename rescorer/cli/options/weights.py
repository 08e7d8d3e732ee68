"""Options for choosing and changing weights, and checks of the weights against the lists."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.lists import ListInputOptions, Lists
from rescorer.cli.options.stream_advice import (
    Input,
    advise_field,
    advise_own_score,
    advise_start,
    advise_tuning,
    describe_scores,
    describe_unread,
)
from rescorer.errors import ConfigError, did_you_mean
from rescorer.extensions import COMPONENTS
from rescorer.formats.field_map import parse_field_map
from rescorer.formats.rescored import RESCORED_LISTS_MESSAGE, check_writable, is_rescored
from rescorer.options import load_weights
from rescorer.score_combination import parse_weights
from rescorer.scoring.components import weighted_columns
from rescorer.types import NBestList, Weights

N_CHECKED_LISTS = 10
"""Number of lists that are checked for the streams named by options before anything is scored."""
TABLES = {"lm": "lm", "mix": "mixture", "reranker": "rerankers"}
"""Field of ``Weights`` by the prefix of a name in ``--weight``; names without one are streams."""
WEIGHTS_BY_PREFIX = {
    "lm": ("lm:mixture", "the language models"),
    "mix": ("mix:NAME", "the share of a model in the mixture"),
    "reranker": ("reranker:NAME", "a reranker"),
}
"""What somebody wants who gives a prefix of ``TABLES`` without a name, and how it is written."""
OWN_WEIGHTS = (
    "word",
    "oov",
    "empty",
    "phrases",
    "cache",
    "neural_cache",
    "flatness",
    "generated",
    "sound_match",
)
"""Names in ``--weight`` that are fields of ``Weights`` themselves."""
FIRST_PASS = "--first-pass"
"""Option of the recogniser's own weights, and the name of that weights set in messages."""

WeightsOption = Annotated[
    str,
    typer.Option("--weights", help="Name of a weights set of the bundle, or a JSON file of weights."),
]
WeightOption = Annotated[
    list[str] | None,
    typer.Option(
        "--weight",
        "-w",
        metavar="NAME=VALUE",
        help="Change one weight: acoustic=1 (a stream), lm:mixture=9.5, mix:neural=0.5, word=-0.6, oov=-3, "
        "empty=-5, phrases=2, cache=0.1, neural_cache=0.1, flatness=0.3, generated=-20, sound_match=10, "
        "reranker:NAME=1. May be repeated.",
    ),
]
FirstPassOption = Annotated[
    str | None,
    typer.Option(
        FIRST_PASS,
        metavar="STREAM=WEIGHT,…",
        help="Weights that the recogniser ranked by, also that of a word: acoustic=1,lm=9.5,word=-0.6. "
        "Default: the order of the lists.",
    ),
]


@dataclass(frozen=True, slots=True)
class WeightOptions:
    """Which weights to use."""

    weights: WeightsOption = "default"
    weight: WeightOption = None

    def resolve(self, known: Mapping[str, Weights]) -> Weights:
        """Find the weights by name or in a file, and apply the changes.

        Args:
            known: the weights sets of the bundle.

        Raises:
            ConfigError: there are no such weights, or an option is malformed.
        """
        weights = _find_weights(self.weights, known)
        if self.weight and weights.calibration is not None:
            typer.echo(
                f"warning: --weight changes weights {weights.name!r}: their calibration does not apply any "
                "more, and there are no confidences",
                err=True,
            )
            weights = replace(weights, calibration=None)
        for change in self.weight or ():
            weights = change_weight(weights, change)
        return weights


def _find_weights(name: str, known: Mapping[str, Weights]) -> Weights:
    if name in known:
        return known[name]
    if Path(name).is_file():
        return load_weights(name)
    available = ", ".join(sorted(known))
    raise ConfigError(
        f"--weights {name}: no such file, and the bundle has {available}{did_you_mean(name, known)}"
    )


def change_weight(weights: Weights, change: str) -> Weights:
    """Apply one ``NAME=VALUE``, and add a ``*`` to the name of the weights, which have changed."""
    name, equals, text = change.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = None
    if not equals or not name or value is None:
        raise ConfigError(f"--weight {change!r}: expected NAME=NUMBER")
    label = weights.name if weights.name.endswith("*") else f"{weights.name}*"
    if name in OWN_WEIGHTS:
        return _replace_checked(weights, label, **{name: value})
    if name in weighted_columns(COMPONENTS):
        return _replace_checked(weights, label, components={**weights.components, name: value})
    table = TABLES.get(name.split(":")[0], "streams") if ":" in name else "streams"
    key = name.split(":", 1)[1] if table != "streams" else name
    if table == "mixture":
        return _replace_checked(weights, label, mixture=rescale_mixture(weights.mixture, key, value))
    return _replace_checked(weights, label, **{table: {**getattr(weights, table), key: value}})


def rescale_mixture(mixture: Mapping[str, float], name: str, value: float) -> dict[str, float]:
    """Set one interpolation weight and scale the others so that the sum stays 1."""
    others = {key: weight for key, weight in mixture.items() if key != name}
    remaining, sum_of_others = 1.0 - value, sum(others.values())
    scaled = {
        key: weight * remaining / sum_of_others if sum_of_others else 0.0 for key, weight in others.items()
    }
    return {**scaled, name: value}


def _replace_checked(weights: Weights, label: str, **fields: object) -> Weights:
    """Replace fields, checked like those of a weights file."""
    checked = parse_weights(fields)
    return replace(weights, name=label, **{name: getattr(checked, name) for name in fields})


def check_first_lists(
    lists: Lists,
    weights: Weights,
    options: ListInputOptions,
    source: str,
    to: str,
    warnings: list[str] | None = None,
) -> Lists:
    """Check the first lists against the weights and the output format, then yield all lists.

    Warns on stderr if the weights use no stream of the lists, or were never tuned for such scores.

    Args:
        warnings: gets what was warned about untuned weights.

    Raises:
        ConfigError: as in ``check_streams`` and ``check_writable``.
    """
    first = list(itertools.islice(lists, N_CHECKED_LISTS))
    good = [item for item in first if isinstance(item, NBestList)]
    check_streams(good, weights, options, source)
    check_writable(to, good)
    given = Input(good, options, source)
    if (names := given.streams) and not any((*weights.streams.values(), *weights.rerankers.values())):
        message = f"use no score of the lists ({', '.join(names)}): language models alone decide the ranking"
        advice = advise_own_score(given, weights)
        typer.echo(f"warning: weights {weights.name!r} {message}; {advice}", err=True)
    line = warn_if_untuned(good, weights)
    if line and warnings is not None:
        warnings.append(line)
    return itertools.chain(first, lists)


def warn_if_untuned(lists: Sequence[NBestList], weights: Weights) -> str:
    """Warn on stderr if weights were never tuned for scores like those of the lists; return the text."""
    if line := advise_tuning(lists[:N_CHECKED_LISTS], weights):
        typer.echo(f"warning: {line}", err=True)
    return line


def check_streams(
    lists: Sequence[NBestList],
    weights: Weights | None,
    options: ListInputOptions,
    source: str,
    printed: Collection[str] = (),
) -> str:
    """Check that lists have the streams that are named; name fields that nothing reads on stderr.

    Args:
        weights: weights that rank the lists; None if nothing does.
        options: how the lists were read from the source.
        printed: lines about other files, which are not printed again.

    Returns:
        The line that names fields; empty if there is none.

    Raises:
        ConfigError: weights or ``--stream`` name a stream that none of the first lists has.
    """
    first = lists[:N_CHECKED_LISTS]
    if not first:
        return ""
    given = Input(first, options, source)
    known = given.streams
    none = f"none of the first {len(first)} lists has" if len(first) > 1 else "the only list does not have"
    fields = sorted(
        {name for nbest in first for hypothesis in nbest.hypotheses for name in hypothesis.fields}
    )
    for name, stream in parse_field_map((), options.streams or ()).streams.items():
        if name not in known:
            hint = did_you_mean(stream.field, [*fields, *known])
            raise ConfigError(f"--stream {name}={stream.field}: {none} a score in that field{hint}")
    if weights is None:
        return ""
    rescored = all(map(is_rescored, first))
    for name, weight in weights.streams.items():
        if weight == 0 or name in known:
            continue
        need = f"weights {weights.name!r} need the stream {name!r}"
        if rescored:
            raise ConfigError(
                f"{need}, but {RESCORED_LISTS_MESSAGE}: give the lists that it read, or `-w {name}=0` to "
                "rank by language models alone"
            )
        hint = _suggest_weight(name, weights, given)
        raise ConfigError(f"{need}, but {none} it ({describe_scores(given)}){hint}")
    line = "" if weights.name == FIRST_PASS or rescored else describe_unread(given, weights)
    if line and line not in printed:
        typer.echo(line, err=True)
    return line


def warn_of_unread_lists(lists: Sequence[NBestList], options: ListInputOptions, source: str) -> None:
    """Name on stderr what looks like hypotheses in the first lists, and is not read as such."""
    if line := describe_unread(Input(lists[:N_CHECKED_LISTS], options, source), None):
        typer.echo(line, err=True)


def _suggest_weight(name: str, weights: Weights, given: Input) -> str:
    """Say what to write instead of a weight of a stream that the lists do not have."""
    weight, known = weights.streams[name], given.streams
    if name in {"mixture", *weights.lm, *weights.mixture}:
        return f"; did you mean `-w lm:{name}={weight:g}`?"
    components = weighted_columns(COMPONENTS)
    if name in components:
        return f'; it is a component: write `-w {name}={weight:g}`, or put it under "components" in the file'
    similar = did_you_mean(name, [*known, *OWN_WEIGHTS, *components])
    if weights.name == FIRST_PASS:
        return similar or f"; leave it out{advise_field(given, name)}"
    if name in TABLES:
        whole, meant = WEIGHTS_BY_PREFIX[name]
        return f"; for {meant} write `-w {whole}={weight:g}`; `-w {name}=0` leaves it out"
    if similar and did_you_mean(name, components):
        return similar
    if not any(weights.streams.get(stream) for stream in known):
        return f"; {advise_start(given, weights, name)}"
    return similar or f"; `-w {name}=0` leaves it out{advise_field(given, name)}"


def parse_first_pass(text: str | None) -> Weights | None:
    """Parse the value of ``--first-pass``, ``a=1,b=2,word=-0.5``; raises ConfigError if it is malformed."""
    if not text:
        return None
    values: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        try:
            values[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not math.isfinite(values.get(name.strip(), math.nan)):
            raise ConfigError(f"{FIRST_PASS} {part!r}: expected STREAM=NUMBER or word=NUMBER")
    word = values.pop("word", 0.0)
    return parse_weights({"name": FIRST_PASS, "streams": values, "lm": {}, "word": word})

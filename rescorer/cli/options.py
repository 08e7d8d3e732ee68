"""Owns the options that several commands share: how lists are read, and which weights count."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rescorer.errors import ConfigError, InputError, did_you_mean
from rescorer.evaluation.error_rate.report import Report, render
from rescorer.formats.field_map import parse_field_map
from rescorer.formats.io.text_io import source_name
from rescorer.formats.nbest.jsonlines import compile_group_pattern, read_lists
from rescorer.formats.nist.references import read_groups
from rescorer.formats.registry import assign_groups, choose, detect
from rescorer.formats.rescored import RESCORED_LISTS_MESSAGE, check_writable, is_rescored
from rescorer.score_combination import parse_weights
from rescorer.types import NBestList, Weights

FIRST_LISTS = 10
"""Looked at before anything is scored, for streams that options name and no list has."""
SOME_REJECTED = 1
"""Exit code where some lists could not be read, scored or written, and the others were."""

BundleOption = Annotated[
    Path,
    typer.Option(
        "--bundle",
        "-b",
        help="Folder of a model bundle: of one version, such as models/starter/1, or of all of them, "
        "models/starter, for the newest.",
    ),
]
MapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="NAME=FIELD,…",
        help="What the file calls things: hypotheses=hyps,text=text_norm,reference=ref. NAME is one of id, "
        "hypotheses, text, scores, reference, context, group.",
    ),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        help="Of the networks' products: float32; bfloat16 or int8, which are faster on processors that have "
        "them, and a little less exact."
    ),
]
StreamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        metavar="NAME=FIELD[:BASE[:SIGN]]",
        help="A score stream kept in a field of its own: acoustic=am, acoustic=am_log2:2, graph=lmwt:e:cost.",
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME[:OPTION=VALUE,…]",
        help="Format of the lists; default: what they look like. `rescorer convert --formats` lists them.",
    ),
]
GroupsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|PATTERN",
        help="Speaker of each list: a JSON file with id and speaker, or a regular expression whose one group "
        r"finds it in the id: '^(\d+)-'.",
    ),
]
WeightOption = Annotated[
    list[str] | None,
    typer.Option(
        "--weight",
        "-w",
        metavar="NAME=VALUE",
        help="Change one weight: acoustic=1 (a stream), lm:mixture=9.5, mix:neural=0.5, word=-0.6, oov=-3. "
        "May be given again.",
    ),
]
WeightsOption = Annotated[
    str, typer.Option("--weights", help="A weight set of the bundle, by name, or a JSON file of weights.")
]


FirstPassOption = Annotated[
    str | None,
    typer.Option(
        "--first-pass",
        metavar="STREAM=WEIGHT,…",
        help="What made the first pass; default: the lists' order.",
    ),
]


def lists_from(
    source: str,
    maps: list[str] | None,
    streams: list[str] | None,
    groups: str | None,
    format_: str | None = None,
) -> Iterator[NBestList | InputError]:
    """The lists of a file under the shared options; field names of a file's own mean JSON lines."""
    named = bool(maps or streams)
    choice = choose(format_ or ("jsonl" if named else detect(source)[0]))
    group_of = group_finder(groups)
    if choice.format.name == "jsonl" and not choice.options:
        fields = parse_field_map(maps or (), streams or ())
        return with_empty_told(read_lists(source, fields, group_of), source)
    if named:
        raise ConfigError(f"--map and --stream are for JSON lines, not for {choice.format.name}")
    lists = choice.read(source)
    return with_empty_told(assign_groups(lists, group_of) if group_of else lists, source)


def with_empty_told(lists: Iterator[NBestList | InputError], source: str) -> Iterator[NBestList | InputError]:
    """The lists; a warning on stderr where there are none, which is mostly somebody's mistake upstream."""
    empty = True
    for item in lists:
        empty = False
        yield item
    if empty:
        typer.echo(f"warning: {source_name(source)}: there are no lists in it", err=True)


def print_reports(rows: Mapping[str, Report], by_group: bool = False) -> None:
    """A table on the screen, or on a pipe, which has no width of its own; the table needs about so much."""
    Console(width=None if sys.stdout.isatty() else 130).print(render(rows, by_group))


def group_finder(groups: str | None) -> Callable[[str], str] | None:
    """How ``--groups`` finds a list's group."""
    if groups is None:
        return None
    if Path(groups).exists():
        table = read_groups(groups)
        return lambda list_id: table.get(list_id, "")
    return compile_group_pattern(groups)


def chosen_weights(known: dict[str, Weights], name: str, changes: list[str] | None) -> Weights:
    """The named weights with ``--weight`` options applied; raises ConfigError where they are malformed."""
    if name in known:
        weights = known[name]
    elif Path(name).is_file():
        try:
            weights = parse_weights({"name": Path(name).stem, **json.loads(Path(name).read_text("utf-8"))})
        except (ValueError, TypeError) as fault:
            raise ConfigError(f"--weights {name}: cannot be read as JSON weights: {fault}") from None
    else:
        there = f"no such file, and the bundle has {', '.join(sorted(known))}{did_you_mean(name, known)}"
        raise ConfigError(f"--weights {name}: {there}")
    for change in changes or ():
        weights = changed(weights, change)
    return weights


def looked_at(
    lists: Iterator[NBestList | InputError], weights: Weights, streams: list[str] | None, to: str
) -> Iterator[NBestList | InputError]:
    """The lists, once the first were looked at; raises as ``check_streams`` and ``check_writable``."""
    first = list(itertools.islice(lists, FIRST_LISTS))
    good = [each for each in first if isinstance(each, NBestList)]
    check_streams(good, weights, streams)
    check_writable(to, good)
    names = sorted({name for each in good for name in each.streams})
    if names and not any(weights.streams.values()):
        told = f"no score of the lists ({', '.join(names)}): language models alone decide"
        typer.echo(f"warning: weights {weights.name!r} count {told}", err=True)
    return itertools.chain(first, lists)


def check_streams(lists: Sequence[NBestList], weights: Weights, streams: list[str] | None) -> None:
    """Raises ConfigError where weights or ``--stream`` name something that none of the first lists has."""
    first = lists[:FIRST_LISTS]
    if not first:
        return
    there = sorted({name for each in first for name in each.streams})
    none = f"none of the first {len(first)} lists has" if len(first) > 1 else "the only list has not"
    fields = sorted({name for each in first for hypothesis in each.hypotheses for name in hypothesis.fields})
    for name, stream in parse_field_map((), streams or ()).streams.items():
        if name not in there:
            meant = did_you_mean(stream.field, [*fields, *there])
            raise ConfigError(f"--stream {name}={stream.field}: {none} a score in that field{meant}")
    for name, weight in weights.streams.items():
        if weight != 0 and name not in there and all(map(is_rescored, first)):
            give = f"give the lists that it read, or `-w {name}=0`, and language models alone decide"
            raise ConfigError(
                f"weights {weights.name!r} count the stream {name!r}, but {RESCORED_LISTS_MESSAGE}: {give}"
            )
        if weight != 0 and name not in there:
            if name in {"mixture", *weights.lm, *weights.mixture}:
                meant = f"; did you mean `-w lm:{name}={weight:g}`?"
            else:
                meant = did_you_mean(name, [*there, "word", "oov"])
            raise ConfigError(
                f"weights {weights.name!r} count the stream {name!r}, which {none}; they have "
                f"{', '.join(there) or 'no scores at all'}{meant or f'; `-w {name}=0` leaves it out'}"
            )


def changed(weights: Weights, change: str) -> Weights:
    """One ``NAME=VALUE`` applied; the weights are then no longer those of their name."""
    name, equals, text = change.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = None
    if not equals or not name or value is None:
        raise ConfigError(f"--weight {change!r}: expected NAME=NUMBER")
    label = weights.name if weights.name.endswith("*") else f"{weights.name}*"
    if name in ("word", "oov"):
        return parse_weights_like(weights, label, **{name: value})
    table = {"lm": "lm", "mix": "mixture"}.get(name.split(":")[0], "streams") if ":" in name else "streams"
    key = name.split(":", 1)[1] if table != "streams" else name
    if table == "mixture":
        return parse_weights_like(weights, label, mixture=shares_with(weights.mixture, key, value))
    return parse_weights_like(weights, label, **{table: {**getattr(weights, table), key: value}})


def shares_with(shares: Mapping[str, float], name: str, value: float) -> dict[str, float]:
    """λ with one of them changed and the others scaled to what is left."""
    others = {key: share for key, share in shares.items() if key != name}
    left, sum_of_others = 1.0 - value, sum(others.values())
    scaled = {key: share * left / sum_of_others if sum_of_others else 0.0 for key, share in others.items()}
    return {**scaled, name: value}


def parse_weights_like(weights: Weights, label: str, **fields: object) -> Weights:
    """``weights`` with some fields replaced, checked like those of a file."""
    checked = parse_weights(fields)
    return replace(weights, name=label, **{name: getattr(checked, name) for name in fields})


def first_pass_weights(streams: Mapping[str, float] | None) -> Weights:
    """What ``--first-pass`` gives to streams, as weights called by the option."""
    return Weights("--first-pass", streams=streams or {})


def named_numbers(text: str) -> dict[str, float]:
    """``a=1,b=2`` taken apart; raises ConfigError where it is malformed."""
    out: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        try:
            out[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise ConfigError(f"{part!r}: expected NAME=NUMBER")
    return out

"""Declare command-line options once, as dataclass fields, and share them between commands.

If a field's default is made by ``option`` or ``argument``, each command that takes the dataclass as a
parameter gets that option or argument; see ``expand_options``. Other fields are declared like parameters of
typer commands, by a type ``Annotated`` with ``typer.Option``; or their types are such dataclasses. Libraries
must not import typer, and use ``dataclasses.field`` with the same metadata.

Below are the options that several kinds of commands share: text rules, phrases and weights.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from rescorer.errors import ConfigError, FormatError, LimitExceeded, did_you_mean
from rescorer.evaluation.list_errors import Selection
from rescorer.extensions import COMPONENTS, Generation, Phrases
from rescorer.formats.fields import parse_field_map
from rescorer.formats.rescored import RESCORED_LISTS_MESSAGE, check_writable, is_rescored
from rescorer.models.bundle import Bundle, read_normaliser
from rescorer.phrases import read_phrase_file
from rescorer.scoring.components import weighted_columns
from rescorer.scoring.options import load_weights
from rescorer.scoring.ranker import ListRanker
from rescorer.terminal.list_options import (
    Input,
    ListInputOptions,
    Lists,
    advise_field,
    advise_own_score,
    advise_start,
    advise_tuning,
    describe_scores,
    describe_unread,
)
from rescorer.terminal.program import warn
from rescorer.text import FILLERS, LETTERS, Normaliser, NormaliserSettings
from rescorer.types import NBestList, Weights
from rescorer.weights import parse_weights


def option(default: Any, help: str, *flags: str, **settings: Any) -> Any:
    """Define an option by the default of a dataclass field, or of a parameter of a command.

    Args:
        default: the value if the option is not given; ``...`` if it must be given.
        flags: names of the option; default: ``--`` and the name of the field. No bool gets a ``--no-…``.
        settings: other arguments of ``typer.Option``, such as ``min`` and ``metavar``.
    """
    default = MISSING if default is ... else default
    return field(default=default, metadata={"help": help, "flags": flags or None, **settings})


def argument(help: str, metavar: str | None = None, *, default: Any = ...) -> Any:
    """Define a positional argument of a command, in the same way as ``option`` defines an option."""
    settings = {"help": help, "metavar": metavar, "is_argument": True}
    return field(default=MISSING if default is ... else default, metadata=settings)


def expand_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter of a command by one option per field, at the same place in ``--help``.

    >>> @dataclass(frozen=True)
    ... class SizeOptions:
    ...     width: int = option(640, "Width in pixels.", min=1)
    >>> @expand_options
    ... def resize(file: str, size: SizeOptions) -> None: ...
    >>> list(inspect.signature(resize).parameters)
    ['file', 'width']
    """
    own = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in own if is_dataclass(parameter.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for parameter in own:
        if parameter.name in groups:
            parameters += _field_parameters(groups[parameter.name])
        else:
            parameters.append(_make_parameter(parameter.name, parameter.annotation, parameter.default))

    def command(**values: Any) -> None:
        options = {name: _build_group(group, values) for name, group in groups.items()}
        function(**options, **values)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _build_group(group: Any, values: dict[str, Any]) -> Any:
    """Make a dataclass from the values of its options; remove these from ``values``."""
    hints = get_type_hints(group)
    return group(
        **{
            item.name: (
                _build_group(hints[item.name], values)
                if is_dataclass(hints[item.name])
                else values.pop(item.name)
            )
            for item in fields(group)
        }
    )


def _field_parameters(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for item in fields(group):
        annotation = hints[item.name]
        if is_dataclass(annotation):
            yield from _field_parameters(annotation)
        else:
            yield _make_parameter(item.name, annotation, item)


def _make_parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Make a parameter of a typer command. The default may be a dataclass field, as ``option`` returns."""
    if isinstance(default, Field):
        settings = dict(default.metadata)
        default = inspect.Parameter.empty if default.default is MISSING else default.default
        if "help" in settings:
            flags = settings.pop("flags", ())
            if flags is None:
                flags = [f"--{name.replace('_', '-')}"] if annotation is bool else []
            make = typer.Argument if settings.pop("is_argument", False) else typer.Option
            annotation = Annotated[annotation, make(*flags, **settings)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


BundleOption = Annotated[
    Path,
    typer.Option(
        "--bundle",
        "-b",
        help="Folder of a model bundle: one version, such as models/starter/1, or all versions, such as "
        "models/starter, for the newest.",
    ),
]
OtherBundleOption = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        "-b",
        help="Folder of a model bundle: one version, such as models/starter/1, or all versions, such as "
        "models/starter, for the newest. Without it, --lm.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="Device of the models: cpu, cuda, cuda:1, …")]
DtypeOption = Annotated[
    str,
    typer.Option(
        help="Precision of matrix products: float32; bfloat16 or int8, which are slightly less exact and "
        "faster on processors that support them; or auto for that which the bundle records."
    ),
]


@dataclass(frozen=True, slots=True)
class SelectionOptions:
    """Which hypotheses of a list are ranked: whether equal ones are merged, and empty ones dropped."""

    merge: bool = option(
        False, "Merge hypotheses with the same words after normalisation, adding their probabilities."
    )
    drop_empty: bool = option(
        False, "Drop hypotheses without words after normalisation; if all are empty, the first stays."
    )

    def selection(self) -> Selection:
        """Convert the options to a ``Selection``, the form that ``rescorer.evaluation`` takes."""
        return Selection(self.merge, self.drop_empty)


def warn_if_tuned_otherwise(weights: Weights, selection: Selection) -> None:
    """Warn if ``--merge`` or ``--drop-empty`` is given now but was not given in tuning, or the reverse."""
    for name, option, is_set in (
        ("merge", "--merge", selection.merge),
        ("drop_empty", "--drop-empty", selection.drop_empty),
    ):
        was_set = weights.tuned_with.get(name, is_set)
        if was_set != is_set:
            tuned, now = ("with", "without") if was_set else ("without", "with")
            message = f"were tuned {tuned} {option} and are used {now} it"
            warn(f"weights {weights.name!r} {message}")


RAW = "raw"


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The text rules by which words are compared, counted and written. Models still read text by the bundle's
    rules."""

    normaliser: str | None = option(
        None,
        "JSON file of normaliser settings by which words are compared and errors are counted; raw "
        "only splits at white space. Default: words without case and punctuation, also with a bundle, "
        "whose models read text as it says.",
        metavar="FILE",
    )
    language: str = option(
        "", "Language of the text, such as tr or az-Latn: decides the case of I and ı.", metavar="TAG"
    )
    fillers: str = option(
        "", f"Drop the fillers of a language or corpus: {', '.join(FILLERS)}.", metavar="NAME,…"
    )
    letters: str = option(
        "", f"Alphabet in which signs are letters and case counts: {', '.join(LETTERS)}.", metavar="NAME"
    )

    def make_normaliser(self, bundle: Bundle | None = None) -> Normaliser:
        """Make the normaliser that the options choose.

        Args:
            bundle: the bundle whose normaliser is used unless ``--normaliser`` is given. Other options change
                its settings.

        Raises:
            ConfigError: the file does not exist, or a name is unknown.
            BundleError: the file does not contain normaliser settings.
        """
        changes = self._changes()
        if self.normaliser is None and not changes:
            return bundle.text_normaliser if bundle else Normaliser()
        settings = self._read_settings(bundle)
        try:
            return Normaliser(replace(settings, **changes))
        except ConfigError as error:  # begins with the name of the setting, as the option is named
            raise ConfigError(f"--{error}") from None

    def apply(self, ranker: ListRanker) -> None:
        """Let a ranker compare and write texts by the normaliser that the options choose."""
        ranker.text_normaliser = self.make_normaliser(ranker.bundle)

    def _changes(self) -> dict[str, Any]:
        fillers = tuple(name.strip() for name in self.fillers.split(",") if name.strip())
        changes = {"language": self.language, "fillers": fillers, "letters": self.letters}
        return {name: value for name, value in changes.items() if value}

    def _read_settings(self, bundle: Bundle | None) -> NormaliserSettings:
        if self.normaliser is None:
            return bundle.text_normaliser.settings if bundle else NormaliserSettings()
        if self.normaliser == RAW:
            return NormaliserSettings.raw()
        path = Path(self.normaliser)
        if not path.exists():
            raise ConfigError(
                f"--normaliser {path}: no such file; expected a JSON file of normaliser settings, such as "
                "the text.json of a bundle, or raw; leave it out for words without case and punctuation"
            )
        return read_normaliser(path).settings


@dataclass(frozen=True, slots=True)
class PhraseOptions:
    """Names and phrases that are more likely than usual in all lists of a command."""

    phrases: Path | None = option(
        None,
        "Names and phrases that are expected in all lists, one per line; or JSON objects with text, "
        "weight, spellings and slot. Hypotheses get credits for those that they have.",
        metavar="FILE",
    )
    phrase_list: list[str] | None = option(
        None, "The same, of the bundle's phrases/NAME.txt. Repeatable.", metavar="NAME"
    )

    def apply(self, ranker: ListRanker) -> None:
        """Give a ranker the phrases, so that it makes them more likely in all lists.

        Raises:
            ConfigError: the file cannot be read, a phrase is invalid, or the bundle lacks a list.
            FormatError: a line of the file is not a phrase.
        """
        names = self.phrase_list or []
        given = () if self.phrases is None else read_phrase_file(self.phrases)
        try:
            ranker.component(Phrases).expect(given, names)
        except LimitExceeded as error:
            raise ConfigError(f"--phrases {self.phrases}: {error}") from None


DictionaryOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Pronunciations of words, in the form of the CMU dictionary: lines of a word and its phones. "
        "Default: the dictionary that the extra sounds installs.",
    ),
]


@dataclass(frozen=True, slots=True)
class CandidateOptions:
    """Whether hypotheses are generated from phrases, and the pronunciation dictionary that this uses."""

    generate: bool = option(
        False,
        "Add hypotheses that a list lacks, with its phrases in place of what sounds like them; the "
        "output marks them as generated. Needs the extra sounds, or --dictionary.",
    )
    dictionary: DictionaryOption = None

    def apply(self, ranker: ListRanker) -> None:
        """Read the dictionary if hypotheses are generated.

        Raises:
            ConfigError: there is no dictionary, or it cannot be read; or one is given, but no hypotheses are
                generated.
        """
        if self.dictionary is not None and not self.generate:
            raise ConfigError("--dictionary is for generating hypotheses; give --generate too")
        if self.generate:
            use_dictionary(ranker, self.dictionary)


def use_dictionary(ranker: ListRanker, path: Path | None) -> None:
    """Let a ranker use a dictionary, by default the installed one; raise ConfigError if it cannot be read."""
    generation = ranker.component(Generation)
    generation.dictionary = path
    try:
        generation.generator  # noqa: B018  # reads the dictionary
    except FormatError as error:
        raise ConfigError(f"--dictionary {error}") from None


N_CHECKED_LISTS = 10
"""In how many lists the streams that weights and options name are looked for, before any list is scored."""
TABLES = {"lm": "lm", "mix": "mixture", "reranker": "rerankers"}
"""The field of ``Weights`` for each prefix of a name in ``--weight``: ``lm:mixture`` is in ``Weights.lm``.
Names without a prefix are those of streams, of fields in ``OWN_WEIGHTS`` and of components."""
WEIGHTS_BY_PREFIX = {
    "lm": ("lm:mixture", "the language models"),
    "mix": ("mix:NAME", "the share of a model in the mixture"),
    "reranker": ("reranker:NAME", "a reranker"),
}
"""For each prefix: an example of a weight, and its meaning. An error shows both if the prefix has no name."""
OWN_WEIGHTS = (
    "word", "oov", "empty", "phrases", "cache", "neural_cache", "flatness", "generated", "sound_match",
)  # fmt: skip
"""Names that ``--weight`` accepts and that are fields of ``Weights``."""
FIRST_PASS = "--first-pass"
"""The option for the recogniser's own weights. Messages use it as the name of these weights, too."""

FirstPassOption = Annotated[
    str | None,
    typer.Option(
        FIRST_PASS,
        metavar="STREAM=WEIGHT,…",
        help="Weights that the recogniser ranked by, also that of a word: acoustic=1,lm=9.5,word=-0.6. "
        "Default: the order of the lists.",
    ),
]


DEFAULT = "default"
"""Name of the weights that every bundle has."""


@dataclass(frozen=True, slots=True)
class WeightOptions:
    """The weights to use, by name or file, and changes to single weights."""

    weights: str | None = option(
        None, f"Name of a weights set of the bundle, or a JSON file of weights. Default: {DEFAULT}."
    )
    weight: list[str] | None = option(
        None,
        "Change one weight: acoustic=1 (a stream), lm:mixture=9.5, mix:neural=0.5, word=-0.6, oov=-3, "
        "empty=-5, phrases=2, cache=0.1, neural_cache=0.1, flatness=0.3, generated=-20, sound_match=10, "
        "reranker:NAME=1. May be repeated.",
        "--weight",
        "-w",
        metavar="NAME=VALUE",
    )

    @property
    def are_given(self) -> bool:
        """Whether weights were chosen or changed."""
        return bool(self.weight) or self.weights is not None

    def resolve(self, known: Mapping[str, Weights]) -> Weights:
        """Find the weights by name or in a file, and apply the changes.

        Args:
            known: the weights sets of the bundle.

        Raises:
            ConfigError: there are no such weights, or an option is malformed.
        """
        weights = self.find(known)
        if self.weight and weights.calibration is not None:
            warn(
                f"--weight changes weights {weights.name!r}: their calibration does not apply any more, and "
                "there are no confidences"
            )
            weights = replace(weights, calibration=None)
        for change in self.weight or ():
            weights = change_weight(weights, change)
        return weights

    def find(self, known: Mapping[str, Weights]) -> Weights:
        """Find the weights by name or in a file, without changes; see ``resolve``."""
        name = DEFAULT if self.weights is None else self.weights
        if name in known:
            return known[name]
        if Path(name).is_file():
            return load_weights(name)
        available = ", ".join(sorted(known))
        raise ConfigError(
            f"--weights {name}: no such file, and the bundle has {available}{did_you_mean(name, known)}"
        )


def change_weight(weights: Weights, change: str) -> Weights:
    """Apply one ``NAME=VALUE`` to weights. Their own name then ends with ``*``, which shows that they were
    changed."""
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
    """Set one interpolation weight of a mixture, and scale the others so that all of them add up to 1."""
    others = {key: weight for key, weight in mixture.items() if key != name}
    remaining, sum_of_others = 1.0 - value, sum(others.values())
    scaled = {
        key: weight * remaining / sum_of_others if sum_of_others else 0.0 for key, weight in others.items()
    }
    return {**scaled, name: value}


def _replace_checked(weights: Weights, label: str, **fields: object) -> Weights:
    """Replace fields of weights, and check the result as when a weights file is read."""
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

    Warn if the weights use no stream of the lists, or were never tuned for scores like those of the lists.

    Args:
        warnings: a list to which the warning about untuned weights is added.

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
        warn(f"weights {weights.name!r} {message}; {advice}")
    line = warn_if_untuned(good, weights)
    if line and warnings is not None:
        warnings.append(line)
    return itertools.chain(first, lists)


def warn_if_untuned(lists: Sequence[NBestList], weights: Weights) -> str:
    """Warn if weights were never tuned for scores like those of the lists; return the warning."""
    if line := advise_tuning(lists[:N_CHECKED_LISTS], weights):
        warn(line)
    return line


def check_streams(
    lists: Sequence[NBestList],
    weights: Weights | None,
    options: ListInputOptions,
    source: str,
    printed: Collection[str] = (),
) -> str:
    """Check that lists have the streams that options and weights name. Print a line about fields that look
    like scores or hypotheses, but are not read.

    Args:
        weights: weights that rank the lists; None if they are not ranked.
        options: how the lists were read from the source.
        printed: lines that were printed for other files; an equal line is not printed again.

    Returns:
        The line about unread fields; empty if there is none.

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
    """Print a line about fields of the first lists that look like hypotheses, but are not read as such."""
    if line := describe_unread(Input(lists[:N_CHECKED_LISTS], options, source), None):
        typer.echo(line, err=True)


def _suggest_weight(name: str, weights: Weights, given: Input) -> str:
    """Say which options to use if a weight is for a stream that the lists do not have."""
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
    """Parse the value of ``--first-pass``, such as ``acoustic=1,lm=9.5,word=-0.6``; raise ConfigError if it
    is malformed."""
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

"""Options of rescoring: one object, from clients and commands to the core."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from rescorer.errors import ConfigError, did_you_mean, quote
from rescorer.list_checks import find_wrong_type
from rescorer.notebook import document_fields
from rescorer.types import DecisionKind, DecisionRule, Hypothesis, NBestList, Phrase, Weights
from rescorer.weights import parse_weights

Weighting = Weights | str | None
"""Weights, the name of a set of weights of the bundle, or None for its set ``default``."""
Fallback = Literal["", "ngram", "first_pass"]
"""Degraded answer to accept from a busy service; empty: accept none."""
MAX_WEIGHTS_BYTES = 16_000_000
"""Largest file of weights that is read."""


@document_fields
@dataclass(frozen=True, slots=True)
class RescoreOptions:
    """Options of rescoring, the same for ``Rescorer``, ``Client``, ``AsyncClient`` and the commands.

    Raises:
        ConfigError: the weights or the decision rule are invalid.
        TypeError: a value is of another type than those described.
    """

    weights: Weighting = None
    """Weights of the totals. A mapping or the ``Path`` of a JSON file is read as ``Weights``."""
    decision: DecisionRule | None = None
    """Rule that decides by the totals; None for the rule of the weights. A name such as
    ``"minimum_bayes_risk"`` is read as the rule of that kind with its defaults."""
    merge: bool = False
    """Merge hypotheses with equal canonical words, adding their probabilities."""
    drop_empty: bool = False
    """Drop hypotheses without canonical words; the first one stays if all are empty."""
    generate: bool = False
    """Add hypotheses in which expected phrases replace words that sound like them. The field ``generated`` of
    each says how it was made."""
    phrases: tuple[Phrase, ...] = ()
    """Phrases that are expected in all lists, in addition to the phrases of each list."""
    phrase_lists: tuple[str, ...] = ()
    """Names of the bundle's lists of phrases that are expected in all lists."""
    model: str = ""
    """Name, or ``name/version``, of the bundle to use; empty for the loaded bundle, or the client's model."""

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            object.__setattr__(self, name, read(name, getattr(self, name)))

    @classmethod
    def make(cls, options: RescoreOptions | Weighting = None, **changes: Any) -> RescoreOptions:
        """Return the options that a caller wrote: an object or only weights, and changes by keyword.

        Raises:
            ConfigError: weights or a decision rule are invalid.
            TypeError: a keyword is not the name of an option, or a value has the wrong type.
        """
        known = [field.name for field in fields(cls)]
        for name in changes:
            if name not in known:
                raise TypeError(
                    f"{quote(name)} is not an option of rescoring; expected some of "
                    f"{', '.join(known)}{did_you_mean(name, known)}"
                )
        if isinstance(options, RescoreOptions):
            return replace(options, **changes) if changes else options
        if options is not None:
            if "weights" in changes:
                raise TypeError("weights were given twice; expected them once")
            changes["weights"] = options
        return cls(**changes)


def _read_weights(name: str, value: Any) -> Weighting:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Weights):
        return parse_weights({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, Path):
        return load_weights(value)
    if isinstance(value, Mapping):
        if set(value) == {"name"}:
            raise ConfigError(f"weights has only a name; did you mean weights={quote(str(value['name']))}?")
        return parse_weights(value)
    _refuse(name, value, 'Weights, the name of a set of the bundle such as "default", or None')


def _read_decision(name: str, value: Any) -> DecisionRule | None:
    if value is None or isinstance(value, DecisionRule):
        return value
    if isinstance(value, str):
        known = get_args(DecisionKind)
        if value not in known:
            expected = f"a DecisionRule, or one of {', '.join(known)}{did_you_mean(value, known)}"
            raise ConfigError(f"{name} is {quote(value)}; expected {expected}")
        return DecisionRule(value)  # type: ignore[arg-type]
    _refuse(name, value, "a DecisionRule, the name of its kind, or None")


def _read_phrases(name: str, value: Any) -> tuple[Phrase, ...]:
    """Read phrases; a plain string among them is a phrase of weight 1."""
    phrases = _read_sequence(name, value)
    for index, phrase in enumerate(phrases):
        if not isinstance(phrase, (Phrase, str)):
            _refuse(f"{name}[{index}]", phrase, "a Phrase or its text")
        if not isinstance(phrase, str) and (wrong := find_wrong_type(phrase, Phrase)):
            raise TypeError(f"{name}[{index}].{': '.join(wrong)}")
    return tuple(
        Phrase(phrase)
        if isinstance(phrase, str)
        else replace(phrase, weight=float(phrase.weight), spellings=tuple(phrase.spellings))
        for phrase in phrases
    )


def _read_names(name: str, value: Any) -> tuple[str, ...]:
    names = _read_sequence(name, value)
    for index, one in enumerate(names):
        if not isinstance(one, str):
            _refuse(f"{name}[{index}]", one, "the name of a list of phrases")
    return names


def _read_sequence(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, tuple):
        return value
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        _refuse(name, value, "a sequence, such as a list")
    return tuple(value)


def _read(kind: type[Any], expected: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        return value if isinstance(value, kind) else _refuse(name, value, expected)

    return check


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "weights": _read_weights,
    "decision": _read_decision,
    **dict.fromkeys(("merge", "drop_empty", "generate"), _read(bool, "True or False")),
    "phrases": _read_phrases,
    "phrase_lists": _read_names,
    "model": _read(str, 'the name of a model, or "" for the loaded one'),
}


def _refuse(name: str, value: Any, expected: str) -> NoReturn:
    raise TypeError(f"{name} is of type {type(value).__name__}; expected {expected}")


def load_weights(path: Path | str) -> Weights:
    """Read weights from a JSON file, as ``rescorer tune -o`` writes them, with all that belongs to them:
    λ of the mixture, decision rule, calibration.

    Raises:
        ConfigError: the file cannot be read, or its weights are invalid.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_WEIGHTS_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"weights {path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_WEIGHTS_BYTES:
        raise ConfigError(f"weights {path}: more than {MAX_WEIGHTS_BYTES:,} bytes; expected a JSON object")
    try:
        values = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"weights {path}: cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"weights {path}: {type(values).__name__}; expected a JSON object")
    try:
        return parse_weights({"name": path.stem, **values})
    except ConfigError as error:
        raise ConfigError(f"weights {path}: {error}") from None


def as_lists(lists: NBestList | Sequence[NBestList]) -> Sequence[NBestList]:
    """Return the lists of a call as a sequence. A list that was given alone becomes a sequence of one.

    Raises:
        TypeError: something else was given.
    """
    return tuple(read_items(lists, NBestList))


def read_items(lists: Any, kinds: type[Any] | tuple[type[Any], ...]) -> Iterator[Any]:
    """Return an iterator over the lists of a call, which checks each as it is read. Accepts one list alone.

    Args:
        kinds: types of the items: lists, and errors in the place of lists where the caller takes them.

    Raises:
        TypeError: something else was given; the type of an item is checked when it is reached.
    """
    if isinstance(lists, kinds):
        lists = (lists,)
    if isinstance(lists, (str, bytes, Mapping)) or not hasattr(lists, "__iter__"):
        expected = (
            "an NBestList, or a sequence of them; rescorer.formats.registry chooses a reader for a file"
        )
        raise TypeError(f"lists are of type {type(lists).__name__}; expected {expected}")
    return (_check_item(index, item, kinds) for index, item in enumerate(lists))


def _check_item(index: int, item: Any, kinds: type[Any] | tuple[type[Any], ...]) -> Any:
    if isinstance(item, kinds):
        return item
    hint = ""
    if isinstance(item, (str, Hypothesis)):
        hint = '; hypotheses belong into a list: NBestList("id", (Hypothesis("text"), …), streams)'
    raise TypeError(f"lists[{index}] is of type {type(item).__name__}; expected an NBestList{hint}")


def as_texts(texts: str | Sequence[str], name: str = "texts") -> Sequence[str]:
    """Return the texts of a call as a sequence. A text that was given alone becomes a sequence of one.

    Args:
        name: name of the texts in error messages.

    Raises:
        TypeError: something else was given.
    """
    if isinstance(texts, str):
        return (texts,)
    if isinstance(texts, (bytes, Mapping)) or not hasattr(texts, "__iter__"):
        raise TypeError(f"{name} is of type {type(texts).__name__}; expected a string or several")
    texts = texts if isinstance(texts, (list, tuple)) else list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{index}] is of type {type(text).__name__}; expected a string")
    return texts

"""Prompts: what a model in pieces of words reads before a sentence, besides the context of the sentence.

A prompt is plain data with a few texts around the utterances that were said before. Some are shipped, as
files in the folder ``forms``; others are files of users. What is read follows from the history of a list
alone, so that every process reads the same, and a conversation that grows keeps its beginning: only when the
utterances have more than ``max_units`` units, the oldest ones are left out, down to half of that number. Keys
and values of the units that were read before can then be used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rescorer.errors import BundleError, ConfigError, quote
from rescorer.safe_input import Folder
from rescorer.types import SENTENCE_END, Words

if TYPE_CHECKING:
    from rescorer.units.tokens import WordDivider

FORMS = Path(__file__).parent / "forms"
MAX_CHARACTERS = 10_000
"""Largest length of a text of a prompt."""
MAX_UNITS = 100_000
"""Largest number of units of previous utterances that may be read."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is read before a sentence.

    A word that follows a text with a space at its end is divided as after a space, and any other word as at
    the start of a text.

    Raises:
        BundleError: a value is invalid.
    """

    before: str = ""
    """Text before everything."""
    before_utterance: str = ""
    """Text before each previous utterance."""
    after_utterance: str = "\n"
    """Text after each previous utterance."""
    before_sentence: str = ""
    """Text before the sentence."""
    max_units: int = 512
    """Largest number of units of previous utterances, with the texts around each; 0: none are read."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "max_units":
                if type(value) is not int or not 0 <= value <= MAX_UNITS:
                    raise BundleError(f"prompt: max_units is {value!r}; expected 0 to {MAX_UNITS:,}")
            elif not isinstance(value, str) or len(value) > MAX_CHARACTERS:
                raise BundleError(
                    f"prompt: {field.name} is not a text of at most {MAX_CHARACTERS:,} characters"
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``from_dict`` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Prompt:
        """Read a prompt from plain data; what is left out has its default.

        Raises:
            BundleError: the data is no object, or a key or value is invalid.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(values, Mapping):
            raise BundleError(f"prompt: not an object; expected some of {', '.join(known)}")
        if unknown := sorted(set(values) - set(known)):
            raise BundleError(f"prompt: unknown {quote(unknown[0])}; expected some of {', '.join(known)}")
        return cls(**values)

    @classmethod
    def read(cls, name: str) -> Prompt:
        """Read a prompt that is shipped, by its name, or that of a JSON file.

        Raises:
            ConfigError: there is no such form or file.
            BundleError: the file is not a valid prompt.
        """
        shipped = FORMS / f"{name}.json"
        path = shipped if name in list_forms() else Path(name)
        if not path.is_file():
            raise ConfigError(
                f"there is no prompt {quote(name)}; expected {', '.join(list_forms())} or a JSON file"
            )
        values = Folder(path.parent).read_json(path.name)
        try:
            return cls.from_dict(values)
        except BundleError as error:
            raise BundleError(f"{path}: {error}") from None


def list_forms() -> list[str]:
    """Names of the prompts that are shipped."""
    return sorted(path.stem for path in FORMS.glob("*.json"))


class Before(NamedTuple):
    """What is read before the words of a sentence."""

    units: list[int]
    begins: bool
    """Whether the next word is divided as at the start of a text."""


def read_before(
    divider: WordDivider, history: Words, prompt: Prompt | None = None, *, context: bool = True
) -> Before:
    """Divide into units what was said before a sentence.

    Args:
        history: words of previous utterances, each with ``SENTENCE_END`` after it, then the context of the
            sentence.
        prompt: None: nothing is read except the context.
        context: whether the context is read.
    """
    *utterances, own = _split(history)
    units, after_space = list[int](), False
    if prompt is not None:
        for text, words in _lay_out(divider, utterances, prompt):
            units += divider.divide([text.removesuffix(" ")], after_space=False)[0]
            after_space = text.endswith(" ") or (not text and after_space)
            if words:
                units += divider.divide_text(words, after_space=after_space)
                after_space = False
    if context and own:
        units += divider.divide_text(own, after_space=after_space)
    return Before(units, not after_space and not (context and own))


def _lay_out(divider: WordDivider, utterances: Sequence[Words], prompt: Prompt) -> list[tuple[str, Words]]:
    """Texts of a prompt, each with the words that follow it."""
    parts = [(prompt.before, Words())]
    fixed = sum(
        map(len, divider.divide([prompt.before_utterance, prompt.after_utterance], after_space=False))
    )
    lengths = [fixed + len(divider.divide_text(words)) for words in utterances] if prompt.max_units else []
    for words in utterances[find_first(lengths, prompt.max_units) :] if lengths else []:
        parts += [(prompt.before_utterance, words), (prompt.after_utterance, Words())]
    return [*parts, (prompt.before_sentence, Words())]


def find_first(lengths: Sequence[int], max_units: int) -> int:
    """The first utterance that is read, by the lengths of all: when they have become more than
    ``max_units`` together, the oldest are left out until half of that remains, or only the newest one. That
    one is left out too if it is longer by itself."""
    first = total = 0
    for place, length in enumerate(lengths):
        total += length
        if total > max_units:
            while first < place and total > max_units // 2:
                total -= lengths[first]
                first += 1
            if total > max_units:
                first, total = place + 1, 0
    return first


def _split(history: Words) -> list[Words]:
    """The words of each previous utterance, and last those of the context."""
    parts, start = list[Words](), 0
    for place, word in enumerate(history):
        if word == SENTENCE_END:
            parts.append(history[start:place])
            start = place + 1
    return [*parts, history[start:]]


def check_units(divider: WordDivider, prompt: Prompt, n_positions: int) -> None:
    """Check that a model can read a prompt.

    Args:
        n_positions: number of units of a text that it can read.

    Raises:
        ConfigError: a text has no units, or the prompt leaves less than half of the positions to sentences.
    """
    for field in fields(prompt):
        text = getattr(prompt, field.name)
        if isinstance(text, str) and text.rstrip(" ") and not divider.divide([text], after_space=False)[0]:
            raise ConfigError(
                f"the tokenizer has no units for {field.name} of the prompt, {quote(text)}; name another one"
            )
    fixed, most = len(read_before(divider, (), prompt).units), n_positions // 2
    if fixed + prompt.max_units > most:
        cure = f"lower max_units (--previous) to {most - fixed:,}" if fixed <= most else "shorten its texts"
        raise ConfigError(
            f"the prompt may have {fixed + prompt.max_units:,} units, and the model reads {n_positions:,}; "
            f"expected at most half of them: {cure}"
        )

"""Find different texts that have the same words once normalised: some are meant to, others hide errors.

Texts may differ in case, punctuation, events such as ``[NOISE]`` and variants such as ``to(2)``. If they
differ in more than that, then a normaliser makes two words equal, and errors between them are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from rescorer.errors import pluralise
from rescorer.text import EVENT_PATTERNS, Normaliser, NormaliserSettings

MAX_EXAMPLES = 3
MAX_EXAMPLE_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class EqualTexts:
    """Different texts of the same list, or of its reference, that have the same words."""

    texts: int = 0
    """Number of texts that have the words of another text of their list."""
    beyond: int = 0
    """Those of them that differ from it in more than case, punctuation, events and variants."""
    examples: tuple[tuple[str, str], ...] = ()
    """Pairs of texts, those of ``beyond`` first."""
    beyond_examples: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"texts": self.texts, "beyond_case_and_punctuation": self.beyond, "examples": self.examples}

    def quote_beyond(self) -> str:
        """The examples of ``beyond``, in a sentence."""
        return "; ".join(f"{first!r} = {second!r}" for first, second in self.beyond_examples)


@dataclass(slots=True)
class EqualTextTally:
    """Collects, list by list, the texts to which a normaliser gives the same words."""

    normaliser: Normaliser
    mild: Normaliser
    """Gives the same words only to texts that may have them; see ``EqualTexts.beyond``."""
    _texts: int = 0
    _beyond: int = 0
    _examples: list[tuple[str, str]] = field(default_factory=list)
    _beyond_examples: list[tuple[str, str]] = field(default_factory=list)

    def add(self, texts: Iterable[str]) -> None:
        """Add the texts of a list."""
        by_words: dict[tuple[str, ...], str] = {}
        mild_words: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for text in dict.fromkeys(texts):
            words = self.normaliser.normalise(text)
            other = by_words.setdefault(words, text)
            if other is text:
                continue
            self._texts += 1
            _keep(self._examples, other, text)
            # all texts of these words are compared, so that the count depends on no order
            seen = mild_words.setdefault(words, {self.mild.normalise(other)})
            if (mild := self.mild.normalise(text)) not in seen:
                seen.add(mild)
                self._beyond += 1
                _keep(self._beyond_examples, other, text)

    def stats(self) -> EqualTexts:
        """What was found in all lists."""
        examples = list(dict.fromkeys([*self._beyond_examples, *self._examples]))[:MAX_EXAMPLES]
        return EqualTexts(self._texts, self._beyond, tuple(examples), tuple(self._beyond_examples))


def make_mild_normaliser(settings: NormaliserSettings) -> Normaliser:
    """A normaliser that makes only texts equal which differ in case, punctuation, events or variants, or in
    what the settings replace or drop by name."""
    return Normaliser(
        NormaliserSettings(
            language=settings.language,
            drop=tuple(dict.fromkeys((*EVENT_PATTERNS, *settings.drop))),
            fillers=settings.fillers,
            variants=settings.variants,
            letters=settings.letters,
            replace=settings.replace,
        )
    )


def make_bundle_twin(read: Normaliser, compared: Normaliser) -> Normaliser:
    """What a bundle's normaliser should at most make equal: texts that are compared as equal, or that differ
    in what it drops by name."""
    drop = tuple(dict.fromkeys((*compared.settings.drop, *read.settings.drop)))
    return Normaliser(replace(compared.settings, drop=drop, replace=read.settings.replace))


def find_equated(lists: Iterable[Iterable[str]], read: Normaliser, compared: Normaliser) -> EqualTexts:
    """Find texts to which the normaliser of a bundle gives the same words, although they are not compared as
    equal: its models cannot tell them apart.

    Args:
        lists: the texts of each list.
    """
    if read.settings == compared.settings:
        return EqualTexts()
    tally = EqualTextTally(read, make_bundle_twin(read, compared))
    for texts in lists:
        tally.add(texts)
    return tally.stats()


def describe_equated(found: EqualTexts) -> str:
    """What the normaliser of a bundle hides from its models, in a sentence."""
    texts = pluralise(found.beyond, "text that differs", "texts that differ")
    return (
        f"the bundle's own normaliser gives its models the same words for {texts} from another of its list: "
        f"{found.quote_beyond()}"
    )


def _keep(examples: list[tuple[str, str]], first: str, second: str) -> None:
    if len(examples) < MAX_EXAMPLES:
        examples.append((first[:MAX_EXAMPLE_CHARACTERS], second[:MAX_EXAMPLE_CHARACTERS]))

"""Find the phrases of lists: their own, those of a request, and named ones of the bundle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import replace
from threading import Lock

from rescorer.conversation import Phrase
from rescorer.errors import ConfigError, InvalidList, LimitExceeded, did_you_mean, quote
from rescorer.phrases.matching import PhraseMatch, PhraseSearch, SlotShare, estimate_steps, fill_slots
from rescorer.phrases.phrase_set import PhraseSet, compile_phrases
from rescorer.trie import Words
from rescorer.types import NBestList

MAX_SETS = 16
"""Largest number of named sets that a call can ask for."""
MAX_KEPT = 16
"""Number of compiled sets that are kept, because the lists of a conversation have the same phrases."""
MAX_KEPT_NODES = 100_000
"""Number of nodes of all sets that are kept, which take 35 MB."""


def check_set_names(names: Sized) -> None:
    """Raise LimitExceeded if there are too many names of sets."""
    if len(names) > MAX_SETS:
        raise LimitExceeded(f"{len(names)} names; expected at most {MAX_SETS}", field="phrase_lists")


class PhraseFinder:
    """Compiles phrases, and finds them in hypotheses.

    Args:
        normalise: returns the canonical words of a text.
        named: the sets of phrases of the bundle, by name.
        slots: words that the n-grams of the bundle know as slots.
    """

    def __init__(
        self,
        normalise: Callable[[str], Words],
        named: Mapping[str, PhraseSet],
        slots: Collection[str] = (),
    ) -> None:
        self._normalise, self._named, self._slots = normalise, named, slots
        self._kept: OrderedDict[tuple[Phrase, ...], PhraseSet] = OrderedDict()
        self._lock = Lock()

    def select(self, phrases: tuple[Phrase, ...] = (), names: Sequence[str] = ()) -> list[PhraseSet]:
        """Return the sets of phrases that lists share: some that are given, and named ones of the bundle.

        Raises:
            ConfigError: the bundle does not have phrases of a name.
            LimitExceeded: a phrase is invalid, or there are too many; see ``compile_phrases``.
        """
        check_set_names(names)
        for name in names:
            if name not in self._named:
                known = ", ".join(sorted(self._named)) or "none"
                meant = did_you_mean(name, self._named)
                raise ConfigError(f"phrase_lists names {quote(name)}; the bundle has: {known}{meant}")
        given = [self._compile(phrases)] if phrases else []
        return given + [self._named[name] for name in dict.fromkeys(names)]

    def find(
        self, nbest: NBestList, words: Sequence[Words], shared: Sequence[PhraseSet] = ()
    ) -> tuple[Sequence[PhraseMatch], ...]:
        """Find phrases in each hypothesis of a list; return nothing if none of them has any.

        Args:
            words: canonical words of each hypothesis, the same object for equal texts.
            shared: sets of phrases that are expected besides those of the list.

        Raises:
            InvalidList: a phrase of the list is invalid, or it has too many.
        """
        phrase_sets = [*shared, *self._compile_own(nbest)]
        if not phrase_sets:
            return ()
        has_slots = any(phrases.slots for phrases in phrase_sets)
        search = PhraseSearch(phrase_sets)
        found: dict[tuple[Words, bool], Sequence[PhraseMatch]] = {}
        shares: dict[Words, list[SlotShare]] = {}
        matches = []
        for hypothesis, canonical in zip(nbest.hypotheses, words, strict=True):
            key = canonical, hypothesis.partial
            if key not in found:
                in_words = search.find(canonical, partial=hypothesis.partial)
                found[key] = fill_slots(phrase_sets, canonical, in_words, shares) if has_slots else in_words
            matches.append(found[key])
        return tuple(matches) if any(matches) else ()

    def estimate_steps(
        self, nbest: NBestList, words: Sequence[Words], shared: Sequence[PhraseSet] = ()
    ) -> int:
        """Return an upper bound of the steps of ``find``, whose arguments and errors are the same."""
        phrase_sets = [*shared, *self._compile_own(nbest)]
        if not phrase_sets:
            return 0
        partial = (hypothesis.partial for hypothesis in nbest.hypotheses)
        n_words = sum(len(canonical) for canonical, _ in set(zip(words, partial, strict=True)))
        return estimate_steps(n_words, phrase_sets)

    def collect(self, nbest: NBestList, shared: Sequence[PhraseSet] = ()) -> tuple[Phrase, ...]:
        """Return all phrases that are expected in a list, each once.

        Raises:
            InvalidList: a phrase of the list is invalid, or it has too many.
        """
        self._compile_own(nbest)
        own = _hashable(nbest.phrases)
        phrases = (*own, *(phrase for one in shared for phrase in one.phrases))
        return tuple(dict.fromkeys(phrases)) if shared else own

    def _compile_own(self, nbest: NBestList) -> list[PhraseSet]:
        try:
            return [self._compile(_hashable(nbest.phrases))] if nbest.phrases else []
        except LimitExceeded as error:
            raise InvalidList(error.message, list_id=nbest.id, field=error.field) from None

    def _compile(self, phrases: tuple[Phrase, ...]) -> PhraseSet:
        """Compile phrases, unless an equal set is kept; may be called from several threads."""
        with self._lock:
            compiled = self._kept.pop(phrases, None)
        compiled = compiled or compile_phrases(phrases, self._normalise, self._slots)
        with self._lock:
            self._kept[phrases] = compiled
            n_nodes = sum(kept.n_nodes for kept in self._kept.values())
            while len(self._kept) > MAX_KEPT or n_nodes > MAX_KEPT_NODES:
                n_nodes -= self._kept.popitem(last=False)[1].n_nodes
        return compiled


def _hashable(phrases: Sequence[Phrase]) -> tuple[Phrase, ...]:
    """Phrases that can be kept by their content, although lists stand in them where tuples are expected."""
    phrases = tuple(phrases)
    try:
        hash(phrases)
    except TypeError:
        return tuple(replace(phrase, spellings=tuple(phrase.spellings)) for phrase in phrases)
    return phrases

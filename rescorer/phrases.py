"""Find the names and phrases of a conversation in hypotheses, and credit the hypotheses that have them.

Phrases with weights and hypotheses in canonical words come in. For each hypothesis, its credit and the
phrases that gave it go out.

A phrase may have a slot. A slot is a word such as ``$name`` that stood for phrases in the text on which an
n-gram was trained: an n-gram that has seen *call $name now* gives ``$name`` a probability wherever a name may
stand. A phrase with a slot is therefore read in two ways, as its words and as its slot. If it is read as its
slot, its words have the probability

    P(w_i … w_j | h) = P(slot | h) · P(w_i … w_j | slot),

and the following words are predicted from the slot. A reading of a hypothesis says for each such phrase how
it is read; the probability of a hypothesis is the sum over its readings. Mixtures need the probability of
each word. It is P(w_1 … w_i) / P(w_1 … w_{i-1}), where each of the two is a sum over the distinct beginnings
of the readings. A model that does not know a slot leaves out the readings with this slot.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np

from rescorer.errors import (
    MAX_QUOTED_CHARS,
    BundleError,
    ConfigError,
    FormatError,
    InvalidList,
    LimitExceeded,
    did_you_mean,
    quote,
)
from rescorer.formats.fields import parse_phrases
from rescorer.safe_input import Folder
from rescorer.trie import EdgeScores, HypothesisTrie, Words, build_trie
from rescorer.types import NBestList, Phrase

MAX_PHRASES = 5_000  # largest number of phrases of a list, with their other spellings
MAX_PHRASE_WORDS = 16  # largest number of canonical words of a phrase
MAX_PHRASE_CHARS = 1_000  # largest number of characters of a phrase
MAX_WEIGHT = 100.0
MAX_PHRASE_SLOTS = 7  # largest number of slots of phrases with equal words; all are read
MAX_NAMED_SLOTS = 20  # number of the bundle's slots that an error about an unknown slot lists
MAX_COMPARED_SLOTS = 1_000
"""Number of the bundle's slots that are compared with an unknown slot to suggest one, in 10 ms."""
ENTRY_PROBABILITY = 0.01  # probability of the phrase model that a phrase begins at a word


@dataclass(slots=True)
class Node:
    """A node of a trie of phrases. It stands for a sequence of words with which some phrases begin."""

    children: dict[str, Node] = field(default_factory=dict)
    phrase: int = -1
    """Index of the phrase that ends here; of several, that with the largest weight; -1: none ends here."""
    longer_weight: float = 0.0
    """Largest weight of a phrase that continues after this node; 0 if no phrase does."""
    mass: float = 0.0
    """Sum of the weights of all phrases that end here or below; phrases with equal words count once."""
    slots: tuple[str, ...] = ()
    """The slots of the phrases that end here."""


@dataclass(frozen=True, slots=True)
class PhraseSet:
    """Phrases, ready to be found in hypotheses."""

    phrases: tuple[Phrase, ...]
    root: Node
    n_nodes: int
    """Number of nodes without the roots."""
    slots: Mapping[str, Node] = field(default_factory=dict)
    """Root of the trie of the phrases of each slot, by the slot's word in canonical form."""
    longest: int = MAX_PHRASE_WORDS
    """Upper bound of the number of words of a phrase."""

    def word_log_probs(self, words: Words) -> tuple[float, ...]:
        """Return the log-probability of each word of a phrase, or of its beginning, under the phrase model.

        In this model, a phrase begins at a word with probability ``ENTRY_PROBABILITY``. Which phrase it is,
        is drawn in proportion to the weights, and its words follow one another.
        """
        node, log_mass = self.root, math.log(self.root.mass / ENTRY_PROBABILITY)
        log_probs = []
        for word in words:
            node, before = node.children[word], log_mass
            log_mass = math.log(node.mass)  # the quotient of two masses may be too small for a float64
            log_probs.append(log_mass - before)
        return tuple(log_probs)

    def find_slots(self, words: Words) -> tuple[str, ...]:
        """Return the slots of the phrases that have exactly these words."""
        path = walk(self.root, words)
        return path[-1].slots if len(path) == len(words) else ()

    def slot_masses(self, slot: str, words: Words) -> np.ndarray:
        """Return sums of weights of a slot's phrases, (n + 2,), which give the probability of n words in it.

        Value k, for k = 0 … n, sums over the phrases that begin with the first k words. The last value is the
        weight of the phrase that has exactly these words.
        """
        masses = np.zeros(len(words) + 2)
        if (root := self.slots.get(slot)) is not None:
            path = walk(root, words)
            masses[: len(path) + 1] = [root.mass, *(node.mass for node in path)]
            if len(path) == len(words) and path[-1].phrase >= 0:
                masses[-1] = self.phrases[path[-1].phrase].weight
        return masses


def walk(root: Node, words: Words) -> list[Node]:
    """Return the node after each of the words, as long as the trie continues."""
    node, path = root, []
    for word in words:
        if (child := node.children.get(word)) is None:
            break
        node = child
        path.append(node)
    return path


def compile_phrases(
    phrases: Sequence[Phrase], normalise: Callable[[str], Words], slots: Collection[str] = ()
) -> PhraseSet:
    """Build the trie of phrases and their other spellings.

    A phrase that is given twice counts once, with its largest weight.

    Args:
        slots: the words that the n-grams of the bundle know as slots, in canonical form.

    Raises:
        LimitExceeded: there are too many phrases; or a phrase has no words, too many words or characters, a
            weight that is not above 0 and at most ``MAX_WEIGHT``, or a slot that no n-gram has.
    """
    count = sum(1 + len(phrase.spellings) for phrase in phrases)
    if count > MAX_PHRASES:
        message = f"{count:,} phrases and spellings; expected at most {MAX_PHRASES:,}"
        raise LimitExceeded(message, field="phrases")
    root, n_nodes, longest = Node(), 0, 0
    slot_roots: dict[str, Node] = {}
    for index, phrase in enumerate(phrases):
        if not isinstance(phrase.weight, (int, float)) or not 0 < phrase.weight <= MAX_WEIGHT:
            expected = f"expected a number above 0, at most {MAX_WEIGHT:g}"
            message = f"{phrase.weight!r} for {quote(phrase.text)}; {expected}"
            raise LimitExceeded(message, field=f"phrases[{index}].weight")
        slot = _find_slot(phrase, index, normalise, slots) if phrase.slot else ""
        for place, text in _spellings(phrase, index):
            if len(text) > MAX_PHRASE_CHARS:
                message = f"{quote(text)} has {len(text):,} characters; expected at most {MAX_PHRASE_CHARS:,}"
                raise LimitExceeded(message, field=place)
            words = normalise(text)
            if not 1 <= len(words) <= MAX_PHRASE_WORDS:
                message = f"{quote(text)} has {len(words)} words; expected 1 to {MAX_PHRASE_WORDS}"
                raise LimitExceeded(message, field=place)
            longest = max(longest, len(words))
            n_nodes += _add(root, words, index, phrases)
            if slot:
                n_nodes += _add(slot_roots.setdefault(slot, Node()), words, index, phrases)
                _add_slot(root, words, slot, text, index)
    for node in (root, *slot_roots.values()):
        _sum_weights(node, phrases)
    return PhraseSet(tuple(phrases), root, n_nodes, slot_roots, longest)


def _find_slot(phrase: Phrase, index: int, normalise: Callable[[str], Words], slots: Collection[str]) -> str:
    """The word of a phrase's slot in canonical form; raise LimitExceeded if no n-gram knows the slot."""
    place = f"phrases[{index}].slot"
    if not isinstance(phrase.slot, str):
        raise LimitExceeded(f"{phrase.slot!r} for {quote(phrase.text)}; expected a string", field=place)
    slot = phrase.slot[:MAX_PHRASE_CHARS]
    words = (slot,) if slot in slots else normalise(slot)
    if len(words) != 1 or words[0] not in slots:
        others = f" and {len(slots) - MAX_NAMED_SLOTS:,} more" if len(slots) > MAX_NAMED_SLOTS else ""
        by_name = sorted(slots)
        known = f"has: {', '.join(by_name[:MAX_NAMED_SLOTS])}{others}" if slots else "has none"
        message = f"{quote(phrase.slot)} for {quote(phrase.text)} is not a slot; the bundle {known}"
        message += did_you_mean(slot[:MAX_QUOTED_CHARS], by_name[:MAX_COMPARED_SLOTS])
        raise LimitExceeded(message, field=place)
    return words[0]


def _add_slot(root: Node, words: Words, slot: str, text: str, index: int) -> None:
    """Add a slot to the node at which a phrase ends; raise LimitExceeded if the node has too many."""
    node = walk(root, words)[-1]
    if slot not in node.slots:
        if len(node.slots) == MAX_PHRASE_SLOTS:
            message = (
                f"{quote(text)} has other slots already; expected at most {MAX_PHRASE_SLOTS} for a phrase"
            )
            raise LimitExceeded(message, field=f"phrases[{index}].slot")
        node.slots = (*node.slots, slot)


def _spellings(phrase: Phrase, index: int) -> list[tuple[str, str]]:
    """Each way to write a phrase: the name of the field where it is given, for messages, and the text."""
    others = ((f"phrases[{index}].spellings[{i}]", text) for i, text in enumerate(phrase.spellings))
    return [(f"phrases[{index}].text", phrase.text), *others]


def _add(root: Node, words: Words, index: int, phrases: Sequence[Phrase]) -> int:
    """Add a phrase; return the number of new nodes."""
    node, weight, n_new = root, phrases[index].weight, 0
    for word in words:
        node.longer_weight = max(node.longer_weight, weight)
        if (child := node.children.get(word)) is None:
            child = node.children[word] = Node()
            n_new += 1
        node = child
    if node.phrase < 0 or phrases[node.phrase].weight < weight:
        node.phrase = index
    return n_new


def _sum_weights(node: Node, phrases: Sequence[Phrase]) -> float:
    """Set the ``mass`` of a node and of all nodes below. The recursion is as deep as the longest phrase."""
    own = phrases[node.phrase].weight if node.phrase >= 0 else 0.0
    node.mass = own + math.fsum(_sum_weights(child, phrases) for child in node.children.values())
    return node.mass


MAX_READINGS = MAX_PHRASE_SLOTS + 1
"""Largest number of readings of a hypothesis."""

MAX_KEPT_PLACES = 65_536
"""Number of results that are kept while a list is searched, in about 20 MB. A result is the phrases at a
place; places with the same words after them share it."""


class SlotShare(NamedTuple):
    """A slot of a phrase, and the probability of the phrase given that slot."""

    slot: str  # its word in canonical form
    log_probs: tuple[float, ...]  # log-probability of each word of the phrase in the slot


class PhraseMatch(NamedTuple):
    """A phrase in a hypothesis."""

    phrase: Phrase | None  # None for the beginning of phrases, at the end of a partial hypothesis
    start: int  # index of the phrase's first word in the hypothesis
    n_words: int
    credit: float  # weight of the phrase times its number of words
    origin: PhraseSet  # the set that has the phrase
    slots: tuple[SlotShare, ...] = ()  # the slots as which the phrase is also read


class PhraseSearch:
    """Finds the phrases of several sets in hypotheses.

    The phrases at a place depend only on the words after the place. The hypotheses of a list have most words
    in common, so the phrases are looked up once for the same words, and kept.
    """

    def __init__(self, phrase_sets: Sequence[PhraseSet]) -> None:
        self._sets = [phrases for phrases in phrase_sets if phrases.longest]  # empty sets cost nothing
        self._longest = max((phrases.longest for phrases in phrase_sets), default=0)
        self._first_words = frozenset[str]().union(*(phrases.root.children for phrases in phrase_sets))
        self._found: dict[tuple[Words, bool], list[PhraseMatch]] = {}
        self._n_kept = 0
        self.steps = 0
        """Number of words compared and phrases weighed so far."""

    def find(self, words: Words, *, partial: bool = False) -> list[PhraseMatch]:
        """Return the phrases in a hypothesis that do not overlap and have the largest sum of credits.

        Of equal sums, phrases that begin earlier win, then longer ones, then those of later sets. The last
        words of a ``partial`` hypothesis are also credited if a phrase begins with them, because more words
        will follow.
        """
        n = len(words)
        best = [0.0] * (n + 1)  # largest sum of credits from each word on
        taken: dict[int, PhraseMatch] = {}
        for start in range(n - 1, -1, -1):
            best[start] = best[start + 1]
            if words[start] in self._first_words:
                until = start + self._longest
                for match in self._find_first(words[start:until], is_last=partial and until > n):
                    if (total := match.credit + best[start + match.n_words]) >= best[start]:
                        best[start], taken[start] = total, match
        self.steps += n
        matches, position = [], 0
        while position < n:
            if (chosen := taken.get(position)) is None:
                position += 1
                continue
            phrase, _, n_words, credit, origin, _ = chosen
            matches.append(PhraseMatch(phrase, position, n_words, credit, origin))
            position += n_words
        return matches

    def _find_first(self, words: Words, *, is_last: bool) -> list[PhraseMatch]:
        """List the phrases with which ``words`` begin: shorter ones first, and those of later sets last.

        If ``words`` are the last ones of a partial hypothesis, ``is_last``, the beginning of a phrase counts
        too. A phrase is left out if a later one of the same length has as much credit or more, because it
        would never be chosen.
        """
        key = words, is_last
        if (found := self._found.get(key)) is None:
            found = self._look_up(words, is_last=is_last)
            self._n_kept += 1 + len(found)
            if self._n_kept > MAX_KEPT_PLACES:
                self._found.clear()
                self._n_kept = 1 + len(found)
            self._found[key] = found
        self.steps += len(found)
        return found

    def _look_up(self, words: Words, *, is_last: bool) -> list[PhraseMatch]:
        by_length: list[list[PhraseMatch]] = [[] for _ in range(len(words) + 1)]
        for phrases in self._sets:
            path = walk(phrases.root, words)
            self.steps += min(len(path) + 1, len(words))
            for n_words, node in enumerate(path, start=1):
                if node.phrase >= 0:
                    phrase = phrases.phrases[node.phrase]
                    match = PhraseMatch(phrase, 0, n_words, phrase.weight * n_words, phrases)
                    _add_match(by_length[n_words], match)
            if is_last and len(path) == len(words) and path[-1].longer_weight > 0:
                credit = path[-1].longer_weight * len(words)
                _add_match(by_length[-1], PhraseMatch(None, 0, len(words), credit, phrases))
        return [match for matches in by_length for match in matches]


STEPS_PER_COMPARISON = 8
"""Time of comparing a word or weighing a phrase, as a number of steps of ``sounds.estimate_steps``."""
STEPS_PER_PHRASE = 2_000
"""Time of adding a phrase, or a spelling, to a trie, in these steps."""


def estimate_steps(n_words: int, longest: Iterable[int]) -> int:
    """Return an upper bound of the steps of ``PhraseSearch`` for hypotheses of ``n_words`` in total.

    From each word on, at most as many words are compared with a set as its longest phrase has. A set has at
    most one phrase and one beginning of phrases of each length.

    Args:
        longest: number of words of the longest phrase of each set.
    """
    return STEPS_PER_COMPARISON * n_words * (1 + 3 * sum(longest))


def measure_phrases(phrases: Iterable[Phrase], max_words: Callable[[str], int]) -> tuple[int, int]:
    """Return the number of phrases with their spellings, and an upper bound of the words of the longest one.

    Args:
        phrases: phrases that were not checked yet, or messages with the same fields.
        max_words: returns an upper bound of the words of a text.
    """
    texts = [text for phrase in phrases for text in (phrase.text, *phrase.spellings)]
    return len(texts), min(MAX_PHRASE_WORDS, max(map(max_words, texts), default=0))


def _add_match(matches: list[PhraseMatch], new: PhraseMatch) -> None:
    """Add a match to those of the same length, after dropping those whose credit is not higher."""
    while matches and matches[-1].credit <= new.credit:
        matches.pop()
    matches.append(new)


def fill_slots(
    phrase_sets: Sequence[PhraseSet],
    words: Words,
    matches: Sequence[PhraseMatch],
    known: dict[Words, list[SlotShare]],
) -> list[PhraseMatch]:
    """Return the phrases of a hypothesis with the slots as which each is read, the more probable ones first.

    Phrases get their slots from left to right, as long as the hypothesis has at most ``MAX_READINGS``
    readings; later phrases are read only as words. The beginning of a phrase has no slot.

    Args:
        phrase_sets: all sets that are searched; the probability of a slot is divided among the phrases of all
            sets.
        known: the slots of phrases that were found before; new ones are added.
    """
    filled, n_more = [], MAX_READINGS
    for match in matches:
        if match.phrase is not None and n_more > 1:
            in_slot = words[match.start : match.start + match.n_words]
            if in_slot not in known:
                slots = {slot for part in phrase_sets if part.slots for slot in part.find_slots(in_slot)}
                shares = [SlotShare(slot, _share_slot(phrase_sets, slot, in_slot)) for slot in slots]
                shares.sort(key=lambda share: (-math.fsum(share.log_probs), share.slot))
                known[in_slot] = shares
            if shares := known[in_slot][: n_more - 1]:
                match = match._replace(slots=tuple(shares))
                n_more //= 1 + len(shares)
        filled.append(match)
    return filled


def _share_slot(phrase_sets: Sequence[PhraseSet], slot: str, words: Words) -> tuple[float, ...]:
    """Return the log-probability of each word of a phrase in one of its slots.

    A slot draws phrases in proportion to their weights. The probability of a word is the weight of the
    phrases that continue with it, divided by the weight of those that began alike; that of the last word
    includes the phrase's end. So the log-probabilities sum to ln (weight of the phrase / weight of all).
    Weights of equal phrases in different sets are added.
    """
    log_masses = np.log(sum(part.slot_masses(slot, words) for part in phrase_sets))
    log_probs = np.diff(log_masses)
    log_probs[-2] += log_probs[-1]
    return tuple(log_probs[:-1].tolist())


def phrase_log_probs(words: Words, matches: Sequence[PhraseMatch]) -> np.ndarray:
    """Return the log-probability of each word under the phrase model, (n,); -inf outside of phrases."""
    log_probs = np.full(len(words), -np.inf)
    for match in matches:
        end = match.start + match.n_words
        log_probs[match.start : end] = match.origin.word_log_probs(words[match.start : end])
    return log_probs


MAX_PHRASE_FILE_BYTES = 4 << 20  # largest file of phrases


def read_phrase_file(path: Path) -> tuple[Phrase, ...]:
    """Read a file of phrases whose path the user gave.

    Raises:
        ConfigError: the file cannot be read, or is too large.
        FormatError: a line is not a phrase; see ``parse_phrase_file``.
    """
    try:
        data = Folder(path.parent).read_bytes(path.name, MAX_PHRASE_FILE_BYTES)
    except BundleError as error:
        raise ConfigError(str(error)) from None
    return parse_phrase_file(data, str(path))


def parse_phrase_file(data: bytes, file: str) -> tuple[Phrase, ...]:
    """Convert the lines of a file to phrases. A line is a phrase, or a JSON object with text, weight,
    spellings and slot.

    Empty lines and those that begin with ``#`` are ignored. ``file`` names the file in messages.

    Raises:
        FormatError: a line is not UTF-8, begins with a brace but is not a JSON object, or has another key or
            type.
    """
    phrases: list[Phrase] = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            line = raw.decode("utf-8").strip()
            if line and not line.startswith("#"):
                item = json.loads(line) if line.startswith("{") else line
                phrases += parse_phrases([item], "phrase", "")
        except UnicodeDecodeError as error:
            raise FormatError(f"not UTF-8 at byte {error.start}", file=file, line=number) from None
        except InvalidList as error:
            field = error.field.removeprefix("phrase[0]").removeprefix(".")
            raise FormatError(error.message, file=file, line=number, field=field) from None
        except (ValueError, RecursionError) as error:
            message = f"cannot be read as JSON: {error}; a line that begins with {{ is an object"
            raise FormatError(message, file=file, line=number) from None
    return tuple(phrases)


MAX_SETS = 16  # largest number of named sets that a call can ask for
MAX_KEPT = 16
"""Number of compiled sets that are kept for later lists: those of a conversation have the same phrases."""
MAX_KEPT_NODES = 100_000  # number of nodes of all kept sets together, in 35 MB


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
        """Return the sets of phrases that several lists share: one of the given phrases, and named ones of
        the bundle.

        Raises:
            ConfigError: the bundle has no phrases of a name.
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
        """Find phrases in each hypothesis of a list; return an empty tuple if no hypothesis has any.

        Args:
            words: canonical words of each hypothesis; equal texts must have the same object, which
                is searched once.
            shared: sets of phrases that are searched besides the list's own phrases.

        Raises:
            InvalidList: a phrase of the list is invalid, or the list has too many.
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
        """Return an upper bound of the steps of ``find``, with the same arguments and errors."""
        phrase_sets = [*shared, *self._compile_own(nbest)]
        if not phrase_sets:
            return 0
        partial = (hypothesis.partial for hypothesis in nbest.hypotheses)
        n_words = sum(len(canonical) for canonical, _ in set(zip(words, partial, strict=True)))
        return estimate_steps(n_words, (phrases.longest for phrases in phrase_sets))

    def find_named(self, names: Iterable[str]) -> list[PhraseSet]:
        """Return the sets of phrases of the bundle with these names, as far as it has them."""
        return [self._named[name] for name in dict.fromkeys(names) if name in self._named]

    def collect(self, nbest: NBestList, shared: Sequence[PhraseSet] = ()) -> tuple[Phrase, ...]:
        """Return all phrases that are searched in a list, each once.

        Raises:
            InvalidList: a phrase of the list is invalid, or the list has too many.
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
        """Compile phrases, or return a kept set of equal phrases. This may be called from several threads."""
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
    """The same phrases, with tuples where the caller gave lists, so that the phrases can be keys."""
    phrases = tuple(phrases)
    try:
        hash(phrases)
    except TypeError:
        return tuple(replace(phrase, spellings=tuple(phrase.spellings)) for phrase in phrases)
    return phrases


MAX_PART_WORDS = 262_144  # number of words of readings that are scored at a time, in 40 MB

SlotScores = Mapping[int, Mapping[str, np.ndarray]]
"""Scores of the hypotheses with several readings, summed over these, by index in the trie and by model: ln P
of each word, and of ``</s>`` unless the hypothesis is partial."""


class Reading(NamedTuple):
    """One reading of a hypothesis: some of its phrases are replaced by their slots."""

    words: Words
    replaced: tuple[tuple[PhraseMatch, SlotShare], ...]
    token: np.ndarray
    """(n + 1,) for each word of the hypothesis and ``</s>``, the index in ``words`` of its word or slot."""

    def spread(self, log_probs: np.ndarray, unknown: np.ndarray, credits: np.ndarray) -> np.ndarray:
        """Return ln P of each word of the hypothesis and of ``</s>``, (n + 1,), from ln P of this reading's
        words.

        Unknown words have at least their ln P in the phrase model, ``credits``. Unknown slots have
        probability 0.
        """
        spread = log_probs[self.token]
        spread = np.where(unknown[self.token], np.maximum(spread, credits), spread)
        for match, share in self.replaced:
            place = self.token[match.start]
            in_slot = np.array(share.log_probs)
            in_slot[0] += -np.inf if unknown[place] else log_probs[place]
            spread[match.start : match.start + match.n_words] = in_slot
        return spread


class ReadHypothesis(NamedTuple):
    """All readings of a hypothesis; the first one is the hypothesis itself."""

    rows: tuple[int, ...]
    """Indices, in the trie of the batch, of the hypotheses that are equal to this one."""
    readings: tuple[Reading, ...]
    credits: np.ndarray
    """(n + 1,) ln P of the words under the phrase model, for words that a language model does not know."""
    partial: bool

    def sum_readings(self, log_probs: Sequence[np.ndarray]) -> np.ndarray:
        """Sum ln P of each word over the readings, from ln P of words and ``</s>`` in each reading."""
        rows = np.stack(log_probs)
        # up to the start of its last slot, a reading is the same as another one
        begins = [reading.replaced[-1][0].start if reading.replaced else 0 for reading in self.readings]
        is_distinct = np.arange(rows.shape[1]) >= np.array(begins)[:, None]
        prefixes = np.where(is_distinct, np.cumsum(rows, axis=1), -np.inf)
        sums = np.diff(np.logaddexp.reduce(prefixes, axis=0), prepend=0.0)
        return sums[:-1] if self.partial else sums


class SlotReadings(NamedTuple):
    """The readings of those hypotheses of a batch that have phrases with slots."""

    hypotheses: tuple[ReadHypothesis, ...]
    trie: HypothesisTrie  # the readings of all hypotheses, one after the other

    def sum_scores(self, scores: Mapping[str, EdgeScores]) -> SlotScores:
        """Sum over the readings of each hypothesis.

        Args:
            scores: edge scores of ``trie``, by the name of each n-gram that knows slots; these are forward
                models.
        """
        paths = self.trie.paths
        first, sums = 0, dict[int, Mapping[str, np.ndarray]]()
        for hypothesis in self.hypotheses:
            edges = paths[first : first + len(hypothesis.readings)]
            first += len(hypothesis.readings)
            by_model = {
                name: hypothesis.sum_readings(
                    [
                        reading.spread(part.log_probs[path], part.unknown[path], hypothesis.credits)
                        for reading, path in zip(hypothesis.readings, edges, strict=True)
                    ]
                )
                for name, part in scores.items()
            }
            sums |= dict.fromkeys(hypothesis.rows, by_model)
        return sums


def read_slots(
    words: Sequence[Words],
    contexts: Sequence[Words],
    matches: Sequence[Sequence[PhraseMatch]],
    partial: Sequence[bool],
    max_words: int = MAX_PART_WORDS,
) -> Iterator[SlotReadings]:
    """Yield, in parts, the readings of those hypotheses of a batch that have phrases with slots.

    Args:
        contexts: words before each hypothesis; no slots are read in these.
        partial: whether the end of each hypothesis is not scored.
        max_words: largest number of words of all readings of a part. A hypothesis that has more words makes a
            part by itself.
    """
    rows_of: dict[tuple[int, int, int, bool], list[int]] = {}
    for row, found in enumerate(matches):
        if any(match.slots for match in found):
            # equal hypotheses of a list share these objects
            key = id(words[row]), id(contexts[row]), id(found), bool(partial[row])
            rows_of.setdefault(key, []).append(row)
    part, n_words = list[ReadHypothesis](), 0
    for rows in rows_of.values():
        first = rows[0]
        credits = np.append(phrase_log_probs(words[first], matches[first]), -np.inf)
        readings = _list_readings(words[first], matches[first])
        hypothesis = ReadHypothesis(tuple(rows), readings, credits, bool(partial[first]))
        n_more = sum(len(reading.words) + 1 for reading in hypothesis.readings) + len(contexts[first])
        if part and n_words + n_more > max_words:
            yield _build_readings(part, contexts)
            part, n_words = [], 0
        part.append(hypothesis)
        n_words += n_more
    if part:
        yield _build_readings(part, contexts)


def _build_readings(hypotheses: Sequence[ReadHypothesis], contexts: Sequence[Words]) -> SlotReadings:
    readings = [(reading.words, contexts[h.rows[0]]) for h in hypotheses for reading in h.readings]
    trie = build_trie([words for words, _ in readings], [context for _, context in readings])
    return SlotReadings(tuple(hypotheses), trie)


def _list_readings(words: Words, matches: Sequence[PhraseMatch]) -> tuple[Reading, ...]:
    """All readings of a hypothesis, the hypothesis itself first."""
    choices = [(None, *((match, share) for share in match.slots)) for match in matches if match.slots]
    readings = []
    for chosen in product(*choices):
        replaced = tuple(choice for choice in chosen if choice is not None)
        read, token = list(words), np.arange(len(words) + 1)
        for match, share in reversed(replaced):
            end = match.start + match.n_words
            read[match.start : end] = [share.slot]
            token[match.start : end] = match.start
            token[end:] -= match.n_words - 1
        readings.append(Reading(tuple(read), replaced, token))
    return tuple(readings)

"""Count word and character errors of hypotheses against reference transcripts.

The input is the texts of references and hypotheses; the output is ``WordErrors``, which can be added up.
``CountingSettings`` chooses the unit that is counted (words, characters or a mixture), the alignment, and the
transcription marks that are honoured.

The default alignment has the fewest errors. The alignment of NIST's sclite has the lowest cost, where a
substitution costs 4, and an insertion or a deletion 3. sclite walks back from the end of the texts. Among
alignments of equal cost, it prefers a pair of words to a gap, and an insertion to a deletion. This matters
because alignments of equal cost can differ in their number of errors: three substitutions cost as much as
two deletions and two insertions.

References and hypotheses may have alternatives, written as in NIST's files: ``{ -uh / @ } i see``. A reading
is a text in which each choice between alternatives has been made, such as ``i see``. The two readings that
match best are compared, one of the reference and one of the hypothesis. The former also determines the number
of reference words. By default, the best match has the fewest errors; for sclite, it is the cheapest pair of
paths through two networks of words.

The opening brace of a choice must start a word; inside braces, no spaces are needed. Braces without a slash
are a choice only if they stand alone, as in ``{ a }``. Otherwise they are characters of words, as in
Buckwalter's transliteration: ``{lkbyr qA}l``. Braces that do not match are an error, so that no character is
lost silently. If texts use braces as ordinary characters, switch alternatives off.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Literal, NamedTuple, TypeAlias, TypeVar, Union, get_args

import numpy as np
from rapidfuzz.distance import Levenshtein

from rescorer.errors import ConfigError, InvalidList, quote
from rescorer.text import split_units
from rescorer.types import ErrorUnit


@dataclass(frozen=True, slots=True)
class WordErrors:
    """Errors of one or more hypotheses; add counts with ``+``, starting from ``WordErrors.zero()``."""

    substitutions: int
    deletions: int
    """Reference words that the hypothesis lacks."""
    insertions: int
    reference_words: int
    sentences: int
    sentences_wrong: int

    def __post_init__(self) -> None:
        """Check the counts; raise ValueError if they contradict each other, which is a bug in the caller."""
        if any(getattr(self, count.name) < 0 for count in fields(self)):
            raise ValueError(f"negative counts: {self}")
        if self.substitutions + self.deletions > self.reference_words:
            raise ValueError(f"more substitutions and deletions than reference words: {self}")
        if self.sentences_wrong > min(self.sentences, self.errors) or (
            self.errors and not self.sentences_wrong
        ):
            raise ValueError(f"errors and wrong sentences contradict each other: {self}")

    @classmethod
    def zero(cls) -> WordErrors:
        return cls(0, 0, 0, 0, 0, 0)

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(*(getattr(self, count.name) + getattr(other, count.name) for count in fields(self)))

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per reference word; without reference words, 0 or, if there are errors, infinity."""
        if self.reference_words:
            return self.errors / self.reference_words
        return float("inf") if self.errors else 0.0

    @property
    def accuracy(self) -> float:
        """Word accuracy, 1 - rate; insertions can make it negative."""
        return 1.0 - self.rate

    @property
    def sentence_rate(self) -> float:
        """Share of sentences with at least one error; 0 if there are no sentences."""
        return self.sentences_wrong / self.sentences if self.sentences else 0.0


def count_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Count the errors of a hypothesis by minimum edit distance, in which every operation costs 1.

    If several alignments have the fewest errors, rapidfuzz chooses one of them. The choice determines the
    numbers of substitutions, deletions and insertions.
    """
    counts = {"replace": 0, "delete": 0, "insert": 0}
    for operation in Levenshtein.editops(reference, hypothesis):
        counts[operation.tag] += 1
    return _sentence_errors(counts["replace"], counts["delete"], counts["insert"], len(reference))


def count_closest_readings(
    references: Sequence[Sequence[str]], hypotheses: Sequence[Sequence[str]]
) -> WordErrors:
    """Count the errors between that reading of the reference and that of the hypothesis that match best.

    Among equally good pairs, the first reading of the reference counts, and then the first of the hypothesis.
    """
    if len(references) == len(hypotheses) == 1:
        return count_errors(references[0], hypotheses[0])
    closest, fewest = (references[0], hypotheses[0]), None
    for reference in references:
        for hypothesis in hypotheses:
            errors = Levenshtein.distance(reference, hypothesis, score_cutoff=fewest)
            if fewest is None or errors < fewest:
                closest, fewest = (reference, hypothesis), errors
    return count_errors(*closest)


GAP_COST, SUBSTITUTION_COST = 3, 4
OPTIONAL_GAP_COST = 2
EMPTY_ARC_COST = 0.001
"""Cost of choosing an alternative without words. It is so small that it only breaks ties."""


class Token(NamedTuple):
    """A word with its transcription marks."""

    text: str
    optional: bool = False
    """Whether the word was written ``(word)``, so that leaving it out is not an error (sclite -D)."""
    fragment: bool = False
    """Whether the word starts or ends with a hyphen: it then matches any word that ends or starts with its
    remaining letters (sclite -F)."""


class Arc(NamedTuple):
    """A word of a network."""

    token: Token | None
    """None for an alternative without words."""
    predecessors: tuple[int, ...]
    """Numbers of the arcs that this arc may follow: 0 for the start, n for the n-th arc. The first wins
    ties."""


@dataclass(frozen=True, slots=True)
class Network:
    """A network whose paths are the readings of a text. Every arc comes after its predecessors."""

    arcs: tuple[Arc, ...]
    final_arcs: tuple[int, ...]
    """Arcs that may be last, numbered as in ``Arc.predecessors``."""


def words_match(reference: Token, hypothesis: Token) -> bool:
    """Whether sclite counts two words as equal. A fragment ``wo-`` equals ``word`` and ``wo``."""
    if reference.fragment or hypothesis.fragment:
        for fragment, word in ((reference.text, hypothesis.text), (hypothesis.text, reference.text)):
            if len(fragment) > 1 and fragment.startswith("-"):
                return word.endswith(fragment[1:])
            if len(fragment) > 1 and fragment.endswith("-"):
                return word.startswith(fragment[:-1])
    return reference.text == hypothesis.text


class _Cell(NamedTuple):
    """The best alignment of a prefix of the reference with a prefix of the hypothesis."""

    cost: float
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    words: int = 0


def _cost(cell: _Cell) -> float:
    return cell.cost


_FLOAT32 = struct.Struct("f")


def _add_float32(cost: float, increment: float) -> float:
    """Add in single precision, as sclite does.

    If paths have several alternatives without words, this rounding breaks ties and changes the counts.
    """
    rounded: float = _FLOAT32.unpack(_FLOAT32.pack(cost + increment))[0]
    return rounded


def align_network(reference: Network, hypothesis: Network | Sequence[Token]) -> WordErrors:
    """Count the errors between those paths of two networks that match best, by sclite's alignment.

    The table of costs is filled row by row. There is one row for each arc of the reference. A row has one
    cell for the start of the hypothesis, and one for each arc of the hypothesis.
    """
    heard = hypothesis if isinstance(hypothesis, Network) else chain(hypothesis)
    row = [_Cell(0)]  # (arcs of the hypothesis + 1,)
    for arc in heard.arcs:
        row.append(_skip(_cheapest(row, arc.predecessors), arc.token, 0))
    rows = {0: row}
    last_use = {arc: number for number, item in enumerate(reference.arcs, 1) for arc in item.predecessors}
    for number, arc in enumerate(reference.arcs, 1):
        rows[number] = _next_row(arc.token, [rows[item] for item in arc.predecessors], heard)
        for predecessor in arc.predecessors:
            if last_use[predecessor] == number and predecessor not in reference.final_arcs:
                rows.pop(predecessor, None)
    best = min((_cheapest(rows[arc], heard.final_arcs) for arc in reference.final_arcs), key=_cost)
    return _sentence_errors(best.substitutions, best.deletions, best.insertions, best.words)


def chain(tokens: Sequence[Token]) -> Network:
    """Build the network of a text without alternatives."""
    return Network(tuple(Arc(token, (number,)) for number, token in enumerate(tokens)), (len(tokens),))


def _cheapest(row: Sequence[_Cell], arcs: Sequence[int]) -> _Cell:
    """Return the cheapest of the cells of ``row`` for some arcs; of equal cells, the first."""
    return row[arcs[0]] if len(arcs) == 1 else min((row[arc] for arc in arcs), key=_cost)


def _next_row(word: Token | None, previous: Sequence[Sequence[_Cell]], hypothesis: Network) -> list[_Cell]:
    """Compute the row of an arc of the reference from the rows of the arcs that it may follow."""
    above = (
        previous[0]
        if len(previous) == 1
        else [min(cells, key=_cost) for cells in zip(*previous, strict=True)]
    )
    row = [_skip(above[0], word, 1)]
    for column, (token, predecessors) in enumerate(hypothesis.arcs, 1):
        is_chain = len(predecessors) == 1
        deletion = _skip(above[column], word, 1)
        insertion = _skip(_cheapest(row, predecessors), token, 0)
        best = deletion if deletion.cost < insertion.cost else insertion
        if word is not None and token is not None:  # the null word is paired with no word
            if is_chain:
                cost, substitutions, deletions, insertions, words = above[predecessors[0]]
            else:  # of equal cells, sclite takes that of the first arc of the reference
                cheapest = (_cheapest(cells, predecessors) for cells in previous)
                cost, substitutions, deletions, insertions, words = min(cheapest, key=_cost)
            wrong = not words_match(word, token)
            cost = _add_float32(cost, SUBSTITUTION_COST * wrong)
            if cost <= best.cost:
                best = _Cell(cost, substitutions + wrong, deletions, insertions, words + 1)
        row.append(best)
    return row


def _skip(cell: _Cell, token: Token | None, is_deletion: int) -> _Cell:
    """Align a word with a gap: a word of the reference if ``is_deletion`` is 1, else of the hypothesis."""
    cost, substitutions, deletions, insertions, words = cell
    if token is None:
        return _Cell(_add_float32(cost, EMPTY_ARC_COST), substitutions, deletions, insertions, words)
    if token.optional:  # sclite counts it as a correct reference word, also in the hypothesis
        return _Cell(_add_float32(cost, OPTIONAL_GAP_COST), substitutions, deletions, insertions, words + 1)
    cost = _add_float32(cost, GAP_COST)
    return _Cell(
        cost, substitutions, deletions + is_deletion, insertions + 1 - is_deletion, words + is_deletion
    )


COST_SCALE = 1 << 24
"""``align_words`` multiplies costs by this factor, and adds 1 or subtracts 1 for a substitution. The number
of substitutions can then be read from the remainder."""


def align_words(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Count the errors of a hypothesis by sclite's alignment, without transcription marks.

    The lengths of both texts and the cost determine all counts but the number of substitutions. rapidfuzz
    finds the smallest and the largest number of substitutions among the cheapest alignments. If the two
    differ, ``align_table`` decides.
    """
    gap = GAP_COST * COST_SCALE
    fewest = Levenshtein.distance(
        reference, hypothesis, weights=(gap, gap, SUBSTITUTION_COST * COST_SCALE + 1)
    )
    most = Levenshtein.distance(reference, hypothesis, weights=(gap, gap, SUBSTITUTION_COST * COST_SCALE - 1))
    cost, substitutions = divmod(fewest, COST_SCALE)
    if cost * COST_SCALE - most != substitutions:
        return align_table(reference, hypothesis)
    extra_words = len(hypothesis) - len(reference)
    deletions = (cost - GAP_COST * extra_words - SUBSTITUTION_COST * substitutions) // (2 * GAP_COST)
    return _sentence_errors(substitutions, deletions, deletions + extra_words, len(reference))


def align_table(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Count the same errors as ``align_words``, by tracing the full table of costs back in sclite's order."""
    steps = trace_alignment(reference, hypothesis)
    deletions = sum(j is None for _, j in steps)
    insertions = sum(i is None for i, _ in steps)
    pairs = [(i, j) for i, j in steps if i is not None and j is not None]
    substitutions = sum(reference[i] != hypothesis[j] for i, j in pairs)
    return _sentence_errors(substitutions, deletions, insertions, len(reference))


Step = tuple[int | None, int | None]
"""Positions of a reference word and of the hypothesis word aligned with it; one of them is None for a gap."""


def trace_alignment(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Step]:
    """Return sclite's alignment of two texts without transcription marks, from the first word to the last."""
    table = _cost_table(reference, hypothesis)
    steps: list[Step] = []
    i, j = len(reference), len(hypothesis)
    while i or j:
        wrong = i > 0 and j > 0 and reference[i - 1] != hypothesis[j - 1]
        if i and j and table[i, j] == table[i - 1, j - 1] + SUBSTITUTION_COST * wrong:
            i, j = i - 1, j - 1
            steps.append((i, j))
        elif j and (not i or table[i, j] == table[i, j - 1] + GAP_COST):
            j -= 1
            steps.append((None, j))
        else:
            i -= 1
            steps.append((i, None))
    return steps[::-1]


def _cost_table(reference: Sequence[str], hypothesis: Sequence[str]) -> np.ndarray:
    """Compute the lowest cost of aligning each prefix of the reference with each prefix of the hypothesis."""
    codes: dict[str, int] = {}
    heard = np.array([codes.setdefault(word, len(codes)) for word in hypothesis], dtype=np.int64)
    insertion_costs = GAP_COST * np.arange(len(hypothesis) + 1)
    table = np.empty((len(reference) + 1, len(hypothesis) + 1), dtype=np.int32)
    table[0] = insertion_costs
    for i, word in enumerate(reference):
        row = table[i] + GAP_COST
        paired = table[i, :-1] + SUBSTITUTION_COST * (heard != codes.get(word, -1))
        np.minimum(row[1:], paired, out=row[1:])
        table[i + 1] = np.minimum.accumulate(row - insertion_costs) + insertion_costs
    return table


def _sentence_errors(substitutions: int, deletions: int, insertions: int, words: int) -> WordErrors:
    wrong = substitutions or deletions or insertions
    return WordErrors(substitutions, deletions, insertions, words, 1, sentences_wrong=int(bool(wrong)))


OPEN, CLOSE, EMPTY = "{", "}", "@"
MAX_READINGS = 256
MAX_DEPTH = 50
QUOTED = 60
"""Largest number of characters of a malformed choice that error messages quote."""
HINT = "; where braces are ordinary characters, count with --alternations off"

_MARK = re.compile(r"[{}/]")

Words = tuple[str, ...]
Part: TypeAlias = Union[str, tuple[tuple["Part", ...], ...]]  # noqa: UP007 (names itself)
"""A word as written, or a choice. A choice consists of alternatives, and an alternative of parts."""


def has_choices(text: str) -> bool:
    """Whether a text has a choice between alternatives. Braces that do not match are taken for characters."""
    try:
        return any(not isinstance(part, str) for part in parse_alternations(text))
    except InvalidList:
        return False


def parse_alternations(text: str, list_id: str = "", field: str = "reference") -> tuple[Part, ...]:
    """Parse the choices between alternatives in a text as sclite does.

    >>> parse_alternations("{ uh / { a / @ } } i see")
    ((('uh',), ((('a',), ('@',)),)), 'i', 'see')

    An alternative that is entirely empty, without even ``@``, is ignored.

    Raises:
        InvalidList: braces do not match, or are nested more than ``MAX_DEPTH`` deep; the error names them.
    """
    if OPEN not in text and CLOSE not in text:
        return tuple(text.split())
    complete: list[tuple[Part, ...]] = []  # complete alternatives of the innermost open brace
    current: list[Part] = []  # the alternative being read
    enclosing: list[tuple[list[tuple[Part, ...]], list[Part]]] = []  # both, for every enclosing brace
    start = 0
    for position in _find_marks(text, list_id, field):
        current += text[start:position].split()
        start = position + 1
        if text[position] == OPEN:
            enclosing.append((complete, current))
            complete, current = [], []
            continue
        complete += [tuple(current)] if current else []
        current = []
        if text[position] == CLOSE:
            choice = tuple(complete)
            complete, current = enclosing.pop()
            current += [choice] if choice else []
    return (*current, *text[start:].split())


def _find_marks(text: str, list_id: str, field: str) -> list[int]:
    """Find the positions of the braces and slashes of choices, in order."""

    def error(message: str) -> InvalidList:
        return InvalidList(message + HINT, list_id=list_id, field=field)

    def starts_word(position: int) -> bool:
        return not position or text[position - 1].isspace() or position - 1 in marks

    marks: set[int] = set()
    groups: list[list[int]] = []  # for every open brace: its position and those of its slashes
    for match in _MARK.finditer(text):
        position, mark = match.start(), match[0]
        if mark == OPEN:
            if groups or starts_word(position):
                groups.append([position])
            if len(groups) > MAX_DEPTH:
                raise error(f"braces are nested more than {MAX_DEPTH} deep")
        elif groups:
            groups[-1].append(position)
            if mark == CLOSE:
                group = groups.pop()
                if len(group) > 2 or _stand_alone(text, *group):
                    marks.update(group)
        elif mark == CLOSE and starts_word(position) and not text[position + 1 : position + 2].strip():
            raise error(f'"}}" without a "{{" before it: {quote(text[: position + 1][-QUOTED:])}')
    if groups:
        raise error(f'"{{" without a "}}" after it: {quote(text[groups[0][0] :], QUOTED)}')
    return sorted(marks)


def _stand_alone(text: str, opened: int, closed: int) -> bool:
    """Whether two braces have white space inside them, and white space or another mark after the second."""
    after = text[closed + 1 : closed + 2]
    return text[opened + 1].isspace() and text[closed - 1].isspace() and (not after.strip() or after in "{/}")


def expand_alternations(text: str, list_id: str = "", field: str = "reference") -> tuple[Words, ...]:
    """List all distinct readings of a text in the order in which they are written.

    Inside braces, ``@`` stands for no words; outside, a slash or ``@`` is an ordinary word.

    >>> expand_alternations("{ { -uh / @ } / a } i see")
    (('-uh', 'i', 'see'), ('i', 'see'), ('a', 'i', 'see'))

    Raises:
        InvalidList: braces do not match, or there are more than ``MAX_READINGS`` readings.
    """

    def expand_sequence(parts: Sequence[Part], empty: str = "") -> list[Words]:
        readings: list[list[str]] = [[]]
        for part in parts:
            expansions = expand_part(part, empty, MAX_READINGS // len(readings))
            if len(expansions) > 1:
                readings = [[*left, *right] for left in readings for right in expansions]
                continue
            for words in readings:  # extended in place: most parts are single words
                words.extend(expansions[0])
        return [tuple(words) for words in readings]

    def expand_part(part: Part, empty: str, limit: int) -> list[Words]:
        if isinstance(part, str):
            return [() if part == empty else (part,)]
        expansions: dict[Words, None] = {}
        for alternative in part:
            expansions |= dict.fromkeys(expand_sequence(alternative, EMPTY))
            if len(expansions) > limit:
                message = f"alternations give more than {MAX_READINGS} readings"
                raise InvalidList(message, list_id=list_id, field=field)
        return list(expansions)

    return tuple(dict.fromkeys(expand_sequence(parse_alternations(text, list_id, field))))


Method = Literal["levenshtein", "sclite"]
Normalise = Callable[[str], tuple[str, ...]]
ErrorCounter = Callable[[str], WordErrors]
"""Counts the errors of a hypothesis, given as text, against a fixed reference."""
Heard = TypeVar("Heard")
"""The form of a hypothesis from which its errors are counted: its words, its readings, or a network."""


@dataclass(frozen=True, slots=True)
class CountingSettings:
    """Settings that say how errors are counted."""

    method: Method = "levenshtein"
    """``levenshtein`` counts the fewest possible errors; ``sclite`` counts those of sclite's alignment, which
    sometimes has one error more."""
    unit: ErrorUnit = "word"
    """``word``, ``character``, or ``mixed``: characters in scripts without spaces, and words in others; see
    ``rescorer.text``. sclite's options -c and -c NOASCII count the same as ``character`` and ``mixed``, if
    each character is one code point and, for ``mixed``, all words in scripts with spaces are ASCII."""
    optional_words: bool = False
    """Whether a word written ``(word)`` may be left out (sclite -D)."""
    fragments: bool = False
    """Whether ``wo-`` matches every word with that beginning, and ``-rd`` every word with that ending
    (sclite -F)."""
    alternations: bool = True
    """Whether ``{ a / b / @ }`` is a choice; otherwise braces are ordinary characters."""

    def __post_init__(self) -> None:
        """Check the settings; raise ConfigError if they contradict each other."""
        if self.method not in get_args(Method):
            raise ConfigError(f"counting is {self.method!r}; expected one of {', '.join(get_args(Method))}")
        if self.method != "sclite" and (self.optional_words or self.fragments):
            raise ConfigError(
                f"optional words and fragments need sclite's alignment, but counting is {self.method!r}; "
                "count with sclite"
            )
        if self.unit not in get_args(ErrorUnit):
            raise ConfigError(f"unit is {self.unit!r}; expected one of {', '.join(get_args(ErrorUnit))}")
        if self.unit != "word" and self.fragments:
            unit = "characters" if self.unit == "character" else "the mixed unit"
            raise ConfigError(f"fragments are parts of words and cannot be combined with {unit}")

    def split(self, words: Sequence[str]) -> tuple[str, ...]:
        """Split canonical words into the units that are counted."""
        return split_units(words, self.unit)

    def counter_for(self, reference: str, words: Normalise, list_id: str = "") -> ErrorCounter:
        """Build a function that counts the errors of hypotheses against one reference.

        If the reference or the hypothesis has alternatives, the readings that match best are compared. With
        sclite's alignment, ``@`` stands for no words outside braces, too.

        Args:
            words: converts text to canonical words, each token independently of the others.

        Raises:
            InvalidList: alternatives in the reference are malformed. The returned function raises the same
                error for a hypothesis.
        """
        normalise = words if self.unit == "word" else lambda text: self.split(words(text))
        if self.method == "sclite":
            return self._align_with(reference, normalise, list_id)

        def read(text: str, field: str = "text") -> tuple[tuple[str, ...], ...]:
            readings = self.expand(text, list_id, field)
            return tuple(dict.fromkeys(normalise(" ".join(reading)) for reading in readings))

        references = read(reference, "reference")
        return _cached_counter(read, lambda readings: count_closest_readings(references, readings))

    def expand(self, text: str, list_id: str = "", field: str = "reference") -> tuple[tuple[str, ...], ...]:
        """List all readings of a text as written; see ``expand_alternations``.

        Raises:
            InvalidList: the alternatives are malformed.
        """
        return expand_alternations(text, list_id, field) if self.alternations else (tuple(text.split()),)

    def _align_with(self, reference: str, normalise: Normalise, list_id: str) -> ErrorCounter:
        """Build a counter by sclite's alignment. It uses a faster algorithm for texts without marks."""
        has_options = self.optional_words or self.fragments

        def is_plain(text: str) -> bool:
            return not (
                has_options or (self.alternations and any(mark in text for mark in (OPEN, CLOSE, EMPTY)))
            )

        def tokenise(text: str) -> tuple[Token, ...]:
            if has_options:
                return tuple(token for word in text.split() for token in self._parse_marks(word, normalise))
            return tuple(map(Token, normalise(text)))

        def read(text: str, field: str = "text") -> Network:
            if self.alternations:
                return build_network(parse_alternations(text, list_id, field), tokenise)
            return build_network(text.split(), tokenise, empty=None)

        @cache
        def reference_network() -> Network:
            return read(reference, "reference")

        spoken = normalise(reference) if is_plain(reference) else None
        if spoken is None:
            reference_network()  # so that its error comes before the first hypothesis

        def hear(text: str) -> tuple[str, ...] | Network:
            return normalise(text) if spoken is not None and is_plain(text) else read(text)

        def count(heard: tuple[str, ...] | Network) -> WordErrors:
            if isinstance(heard, Network):
                return align_network(reference_network(), heard)
            return align_words(spoken or (), heard)

        return _cached_counter(hear, count)

    def _parse_marks(self, written: str, normalise: Normalise) -> list[Token]:
        """Read the marks of one written word, and normalise the word without them."""
        optional = self.optional_words and len(written) > 2 and written[0] == "(" and written[-1] == ")"
        word = written[1:-1] if optional else written
        letters = word.strip("-")
        if not (self.fragments and letters and letters != word):
            return [Token(part, optional) for part in normalise(word)]
        parts = list(normalise(letters))
        if parts:
            parts[0] = "-" * word.startswith("-") + parts[0]
            parts[-1] += "-" * word.endswith("-")
        # sclite does not treat an optional word that starts with a hyphen as a fragment
        return [
            Token(part, optional, part.endswith("-") or (part.startswith("-") and not optional))
            for part in parts
        ]


DEFAULT_COUNTING = CountingSettings()
"""Fewest possible errors in words."""


def build_network(
    parts: Sequence[Part], tokenise: Callable[[str], Sequence[Token]], empty: str | None = EMPTY
) -> Network:
    """Build the network of a text.

    Args:
        tokenise: converts a written word to tokens; a word without tokens gets no arc.
        empty: word that stands for no words; None if there is no such word.
    """
    arcs: list[Arc] = []

    def add_arc(token: Token | None, predecessors: tuple[int, ...]) -> tuple[int, ...]:
        arcs.append(Arc(token, predecessors))
        return (len(arcs),)

    def add_sequence(sequence: Sequence[Part], predecessors: tuple[int, ...]) -> tuple[int, ...]:
        for part in sequence:
            if part == empty:
                predecessors = add_arc(None, predecessors)
            elif isinstance(part, str):
                for token in tokenise(part):
                    predecessors = add_arc(token, predecessors)
            else:
                start, predecessors = predecessors, ()
                for alternative in part:
                    n_arcs = len(arcs)
                    ends = add_sequence(alternative, start)
                    predecessors += ends if len(arcs) > n_arcs else add_arc(None, start)
        return predecessors

    final_arcs = add_sequence(parts, (0,))
    return Network(tuple(arcs), final_arcs)


def _cached_counter(hear: Callable[[str], Heard], count: Callable[[Heard], WordErrors]) -> ErrorCounter:
    """Build a counter that keeps counts, so that texts in the same form (``Heard``) are counted once."""
    counted = cache(count)
    return lambda text: counted(hear(text))

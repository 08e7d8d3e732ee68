"""Toolkits' markup in texts: pieces of words, single letters, and marks that are not words.

Some recognisers print texts in pieces, as their tokenizer makes them, because no last step joins the pieces.
``MarkupTally`` finds the kinds of markup in the texts of a file, and ``join_text`` turns a text with markup
into ordinary text. The kinds are:

=================================  ==================================================================
``▁the ▁un known``, ``▁the▁sea``   SentencePiece: a piece that starts (or ends) a word has the mark (U+2581)
``_the _un known``                 the same with an underscore, as wav2letter writes it
``the un ##known``                 WordPiece (BERT): a piece that continues a word has the mark
``the un@@ known``                 subword-nmt: a piece that is continued has the mark
``the</w> un known</w>``           byte pairs with marks at ends of words
``the Ġun known``, ``TheĠsea``     byte-level pairs (GPT-2), whose other bytes are letters, too
``t h e | s e a |``, ``the|sea|``  letters, with a mark between words (wav2letter, fairseq, wav2vec 2.0)
``t h e _ s e a``                  letters, with underscores
``t h e <space> s e a``            letters, as ESPnet writes them
``<|en|><|0.00|> The sea``         Whisper's tokens for languages, tasks and times
``the sea<eos>``, ``<sos/eos>``    ends of sentences, paddings and blanks
=================================  ==================================================================

One character does not prove a kind of markup: ``|`` is a letter in Buckwalter's Arabic, and ``Ġ`` in Maltese.
The marks must stand where the tokenizer puts them, in enough texts or tokens of the file.

SentencePiece's ``⁇`` and ``<unk>`` are neither joined nor removed. They stay words, because something was
said there.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

from rescorer.errors import InputError, RescorerError
from rescorer.formats.fields import TIME_DECIMALS, WORDS_FIELD, is_finite_number
from rescorer.formats.io.folders import Lists
from rescorer.types import Hypothesis, NBestList

UNKNOWN_PIECE = "⁇"
"""The text that SentencePiece writes for a piece that it does not know (U+2047)."""
MAX_SAMPLE_LISTS, MAX_SAMPLE_CHARACTERS = 1000, 1_000_000
"""Number of lists at the beginning of a file, and of characters in them, that are searched for markup."""
MAX_WORD_PIECES = 200
"""Maximum number of pieces that are joined to a word with times, because this takes quadratic time."""
MAX_EXAMPLES = 3
MAX_CONTRARY_SHARE = 0.1
"""A kind of markup is ruled out if texts that cannot have it are more than this share of those with marks."""

UNKNOWN = re.compile(r"⁇|<unk>|\[UNK\]", re.IGNORECASE)
EVENT = re.compile(r"</?\w[\w/-]*>|\[\w[\w-]*\]|⁇")
"""Matches tokens that are whole words in any vocabulary, such as ``[noise]`` and unknown pieces."""
WHISPER_MARK = re.compile(r"<\|[^<>|\s]{0,40}\|>")
START_OF_TRANSCRIPT, START_OF_PROMPT = "<|startoftranscript|>", "<|startofprev|>"
SENTENCE_MARK = re.compile(
    r"<(?:sos/eos|sos|eos|bos|#s|/?s|pad|blank|blk)>|\[(?:CLS|SEP|PAD)\]", re.IGNORECASE
)
WORD_START, WORD_END, SPACE, SEPARATOR, UNDERSCORE, BYTE_SPACE = "▁", "</w>", "<space>", "|", "_", "Ġ"
AT_PIECE = re.compile("▁(?=[^▁\u2580-\u259f\\s])|(?<=[^▁\u2580-\u259f\\s])▁")
"""Matches a mark ``▁`` next to a piece of a word. Next to other block characters, it is part of a drawing."""
CONTINUING = re.compile(r"##\w")
CONTINUED = re.compile(r".*\w'?@@", re.DOTALL)
UNDERSCORED = re.compile(r"_[^\W_].*(?<!_)", re.DOTALL)
GLUED_WORDS = re.compile(r"\|?[\w'’-]+(?:\|[\w'’-]+)+\|?")
GLUED_BYTES = re.compile(r"(?<=[^\W_])Ġ(?=\w)")


# Joining. Each function changes only texts with its marks, and is therefore idempotent.


def strip_whisper_marks(text: str) -> str:
    """Remove Whisper's tokens, and the prompts that precede transcripts."""
    if "<|" not in text:
        return text
    *prompted, last = text.split(START_OF_TRANSCRIPT)
    parts = [*(part.partition(START_OF_PROMPT)[0] for part in prompted), last]
    return _tidy(WHISPER_MARK.sub(" ", " ".join(parts)))


def strip_sentence_marks(text: str) -> str:
    """Remove the marks of sentence ends, paddings and blanks."""
    return _tidy(SENTENCE_MARK.sub(" ", text)) if SENTENCE_MARK.search(text) else text


def join_sentencepiece(text: str) -> str:
    """Join pieces; the first piece of each word starts with ``▁``.

    >>> join_sentencepiece("▁the ▁un known ▁cat"), join_sentencepiece("▁the▁sea▁was▁calm")
    ('the unknown cat', 'the sea was calm')
    """
    return _tidy(_concatenate(text).replace(WORD_START, " ")) if WORD_START in text else text


def join_underscores(text: str) -> str:
    """Join pieces; the first piece of each word starts with an underscore.

    >>> join_underscores("_the _un known _cat")
    'the unknown cat'
    """
    tokens = text.split()
    if not any(map(UNDERSCORED.match, tokens)):
        return text
    marked = (WORD_START + token.lstrip("_") if token.startswith("_") else token for token in tokens)
    return join_sentencepiece(" ".join(marked))


def join_word_ends(text: str) -> str:
    """Join pieces; the last piece of each word ends with ``</w>``.

    >>> join_word_ends("the</w> un known</w> cat</w>")
    'the unknown cat'
    """
    return _tidy(_concatenate(text).replace(WORD_END, " ")) if WORD_END in text else text


def join_wordpiece(text: str) -> str:
    """Join each piece that starts with ``##`` to the piece before it.

    >>> join_wordpiece("the un ##known cat")
    'the unknown cat'
    """
    if "##" not in text:
        return text
    words: list[list[str]] = []
    for token in text.split():
        piece = _strip_start(token, "#")
        if piece != token and words and not UNKNOWN.fullmatch(words[-1][-1]):
            words[-1].append(piece)
        else:
            words.append([piece])
    return _tidy(" ".join(_strip_start("".join(word), "#") for word in words))


def join_subword_nmt(text: str) -> str:
    """Join each piece that ends with ``@@`` to the next piece. The last piece of a text may also end with it.

    >>> join_subword_nmt("the un@@ known ca@@")
    'the unknown ca'
    """
    if "@@" not in text:
        return text
    words, is_continued = list[list[str]](), False
    for token in text.split():
        piece = _strip_end(token, "@")
        if is_continued and not UNKNOWN.fullmatch(token):
            words[-1].append(piece)
        else:
            words.append([piece])
        is_continued = piece != token
    return _tidy(" ".join(_strip_end("".join(word), "@") for word in words))


def join_letters(text: str, separator: str = SEPARATOR) -> str:
    """Join the letters between two marks. If words are not spelt letter by letter, replace marks by spaces.

    >>> join_letters("t h e | c a t |"), join_letters("the|cat|")
    ('the cat', 'the cat')
    """
    if separator not in text:
        return text
    tokens = text.split()
    if _are_letters(tokens, separator):
        text = _concatenate(text)
    elif separator != SEPARATOR or (len(tokens) > 1 and separator in tokens):
        return text
    return _tidy(text.replace(separator, " "))


def join_spaces(text: str) -> str:
    """Join the letters or pieces between two tokens ``<space>``.

    >>> join_spaces("t h e <space> c a t"), join_spaces("the<space>cat")
    ('the cat', 'the cat')
    """
    if text.split().count(SPACE) == text.count(SPACE) > 0:  # all are tokens, so white space is between tokens
        text = _concatenate(text)
    return _tidy(text.replace(SPACE, " ")) if SPACE in text else text


def join_byte_level(text: str) -> str:
    """Join byte-level pieces, in which ``Ġ`` is a space and other characters are bytes of UTF-8.

    >>> join_byte_level("The Ġca f Ã© Ġclosed")
    'The café closed'
    """
    if BYTE_SPACE not in text:
        return text
    joined = _concatenate(text)
    decoded = [_decode_bytes(word) for word in joined.split()]
    if any(word is None for word in decoded):
        return _tidy(joined.replace(BYTE_SPACE, " "))
    return _tidy(" ".join(word or "" for word in decoded))


def _tidy(text: str) -> str:
    return " ".join(text.split())


def _concatenate(text: str) -> str:
    """Remove white space, except around unknown pieces and events, which stay separate words."""
    joined = "".join(f" {token} " if EVENT.fullmatch(token) else token for token in text.split())
    return _tidy(UNKNOWN.sub(r" \g<0> ", joined))


def _strip_start(token: str, half: str) -> str:
    """Remove all marks of two equal characters, such as ``##``, from the start of a token.

    Args:
        half: one of the two characters.
    """
    rest = token.lstrip(half)
    return half * ((len(token) - len(rest)) % 2) + rest


def _strip_end(token: str, half: str) -> str:
    rest = token.rstrip(half)
    return rest + half * ((len(token) - len(rest)) % 2)


def _is_letter(token: str) -> bool:
    """Whether a token is one character with its combining marks, or an unknown piece or an event."""
    return (
        len(token) == 1
        or bool(EVENT.fullmatch(token))
        or (len(token) < 10 and all(unicodedata.category(character)[0] == "M" for character in token[1:]))
    )


def _are_letters(tokens: Sequence[str], separator: str) -> bool:
    return all(token == separator or _is_letter(token) for token in tokens)


PRINTABLE_BYTES = [byte for first, last in ("!~", "¡¬", "®ÿ") for byte in range(ord(first), ord(last) + 1)]
OTHER_BYTES = [byte for byte in range(256) if byte not in PRINTABLE_BYTES]
BYTES = dict(zip([*PRINTABLE_BYTES, *range(256, 512)], [*PRINTABLE_BYTES, *OTHER_BYTES], strict=False))
"""The byte that each character of byte-level pieces stands for. Printable characters stand for themselves."""


def _decode_bytes(text: str) -> str | None:
    """Decode the characters of byte-level pieces; return None if the bytes are not printable UTF-8 text."""
    if UNKNOWN.fullmatch(text):
        return text
    try:
        decoded = bytes(BYTES[ord(character)] for character in text).decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return None
    is_printable = all(unicodedata.category(c) != "Cc" or c.isspace() for c in decoded)
    return decoded if is_printable else None


# Recognising. Each function returns the number of marks where the tokenizer puts them, or CONTRARY.

CONTRARY = -1
"""Number of marks that stands for a text that cannot have a kind of markup."""


def _count_underscores(tokens: Sequence[str]) -> int:
    marked = sum(bool(UNDERSCORED.fullmatch(token)) for token in tokens)
    if marked < sum(token.startswith("_") for token in tokens):
        return CONTRARY
    return marked if tokens and tokens[0].startswith("_") else 0


def _count_wordpiece(tokens: Sequence[str]) -> int:
    first, *others = map(CONTINUING.match, tokens)
    return CONTRARY if first else sum(map(bool, others))


def _count_letters(tokens: Sequence[str], separator: str = SEPARATOR) -> int:
    if len(tokens) == 1:
        (token,) = tokens
        marks = token.count(SEPARATOR) if separator == SEPARATOR else 0
        return marks if marks > 1 and GLUED_WORDS.fullmatch(token) else 0
    if not _are_letters(tokens, separator):
        return CONTRARY
    is_spelt = any(a[0].isalnum() and b[0].isalnum() for a, b in pairwise(tokens))
    return tokens.count(separator) if is_spelt else 0


def _count_bytes(tokens: Sequence[str]) -> int:
    marks = sum(token.startswith(BYTE_SPACE) for token in tokens[1:])
    marks += sum(len(GLUED_BYTES.findall(token)) for token in tokens)
    if not marks:
        return 0
    return CONTRARY if _decode_bytes("".join(UNKNOWN.sub("", token) for token in tokens)) is None else marks


@dataclass(frozen=True, slots=True)
class Markup:
    """A kind of markup, and the evidence by which a file is taken to have it."""

    name: str
    description: str
    sign: str
    """A string that occurs in every text with this markup."""
    join: Callable[[str], str]
    """Returns a text without this markup."""
    count: Callable[[Sequence[str]], int] | None = None
    """Counts the marks in the tokens of a text; None if marks have a form that nothing else has."""
    min_marks: int = 1
    min_texts: float = 0.0
    """The share of a file's texts that must have marks."""
    min_tokens: float = 0.0
    """The number of marks that there must be per token, over all texts of a file."""

    @property
    def is_spelt(self) -> bool:
        """Whether texts with this markup are spelt letter by letter."""
        return self in SPELT


WHISPER = Markup("whisper", "Whisper's tokens (<|…|>)", "<|", strip_whisper_marks)
SENTENCE = Markup("sentence-marks", "sentence marks (<eos>)", "", strip_sentence_marks)
SENTENCEPIECE = Markup(
    "sentencepiece", "SentencePiece pieces (▁)", WORD_START, join_sentencepiece,
    lambda tokens: sum(len(AT_PIECE.findall(t)) + (t == WORD_START and len(tokens) > 1) for t in tokens),
    1, 0.2,
)  # fmt: skip
UNDERSCORES = Markup(
    "underscores", "pieces with _ at starts of words", UNDERSCORE, join_underscores,
    _count_underscores, 2, 0.5, 0.2,
)  # fmt: skip
WORD_ENDS = Markup(
    "word-ends", "pieces with </w> at ends of words", WORD_END, join_word_ends,
    lambda tokens: sum(token.count(WORD_END) - token.startswith(WORD_END) for token in tokens), 1, 0.2,
)  # fmt: skip
SPACES = Markup(
    "spaces", "letters with <space>", SPACE, join_spaces,
    lambda tokens: sum(token.count(SPACE) for token in tokens), 1, 0.2,
)  # fmt: skip
LETTERS = Markup("letters", "letters with | between words", SEPARATOR, join_letters, _count_letters, 1, 0.5)
LETTERS_UNDERSCORED = Markup(
    "letters-underscored", "letters with _ between words", UNDERSCORE,
    partial(join_letters, separator=UNDERSCORE), partial(_count_letters, separator=UNDERSCORE), 1, 0.5,
)  # fmt: skip
SPELT = (SPACES, LETTERS, LETTERS_UNDERSCORED)
BYTE_LEVEL = Markup(
    "byte-level", "byte-level pieces (Ġ)", BYTE_SPACE, join_byte_level, _count_bytes, 2, 0.3, 0.2
)
WORDPIECE = Markup(
    "wordpiece", "WordPiece pieces (##)", "##", join_wordpiece, _count_wordpiece, 1, 0.0, 0.005
)
SUBWORD_NMT = Markup(
    "subword-nmt", "subword-nmt pieces (@@)", "@@", join_subword_nmt,
    lambda tokens: sum(bool(CONTINUED.fullmatch(token)) for token in tokens[:-1]), 1, 0.0, 0.005,
)  # fmt: skip
KINDS = (
    WHISPER, SENTENCE, SENTENCEPIECE, UNDERSCORES, WORD_ENDS, SPACES, LETTERS, LETTERS_UNDERSCORED,
    BYTE_LEVEL, WORDPIECE, SUBWORD_NMT,
)  # fmt: skip
"""All kinds of markup, in the order in which they are removed from a text."""
DROPPED_TOKENS = frozenset({"<s>", "</s>"})
"""Tokens that are removed before words are counted. They count as markup only if they touch a word."""


@dataclass(frozen=True, slots=True)
class FoundMarkup:
    """A kind of markup in the texts of a file."""

    kind: Markup
    texts: int
    """Number of texts with this markup."""
    of_texts: int
    """Number of all texts."""
    examples: tuple[str, ...]


class MarkupTally:
    """Counts the marks in the texts of a file, which are added one by one."""

    def __init__(self, drops: Callable[[str], bool] = lambda token: token.lower() in DROPPED_TOKENS) -> None:
        """Start with no texts.

        Args:
            drops: whether a token is removed before words are counted, and so is harmless.
        """
        self._drops = drops
        self._n_texts = self._n_tokens = 0
        self._marks: Counter[str] = Counter()
        self._texts: Counter[str] = Counter()
        self._contrary: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        self.unknown: Counter[str] = Counter()
        """Counts of tokens that stand for something unknown, such as ``<unk>``."""

    def add(self, text: str) -> None:
        """Count a text."""
        self._n_texts += 1
        if WHISPER.sign in text:
            self._count(WHISPER, self._count_harmful(WHISPER_MARK, text), text)
        if "<" in text or "[" in text:
            self._count(SENTENCE, self._count_harmful(SENTENCE_MARK, text), text)
        tokens = strip_sentence_marks(strip_whisper_marks(text)).split()
        self._n_tokens += len(tokens)
        if not tokens:
            return
        if UNKNOWN_PIECE in text or "<" in text or "[" in text:
            self.unknown.update(token for token in tokens if UNKNOWN.fullmatch(token))
        for kind in KINDS:
            if kind.count is not None and kind.sign in text:
                self._count(kind, kind.count(tokens), text)

    def _count_harmful(self, pattern: re.Pattern[str], text: str) -> int:
        """Count the matches of a pattern, except those that are harmless tokens."""
        return sum(
            not self._drops(match[0])
            or not (text[: match.start()][-1:] or " ").isspace()
            or not (text[match.end() : match.end() + 1] or " ").isspace()
            for match in pattern.finditer(text)
        )

    def _count(self, kind: Markup, marks: int, text: str) -> None:
        if marks == CONTRARY:
            self._contrary[kind.name] += 1
        elif marks:
            self._marks[kind.name] += marks
            self._texts[kind.name] += 1
            examples = self._examples.setdefault(kind.name, [])
            if len(examples) < MAX_EXAMPLES:
                examples.append(text)

    def found(self) -> tuple[FoundMarkup, ...]:
        """Return the kinds of markup that the texts have."""
        return tuple(
            FoundMarkup(kind, self._texts[kind.name], self._n_texts, tuple(self._examples[kind.name]))
            for kind in KINDS
            if self._has(kind)
        )

    def _has(self, kind: Markup) -> bool:
        marks, texts = self._marks[kind.name], self._texts[kind.name]
        return (
            marks >= kind.min_marks
            and texts >= kind.min_texts * self._n_texts
            and marks >= kind.min_tokens * self._n_tokens
            and self._contrary[kind.name] <= MAX_CONTRARY_SHARE * texts
        )


def tally_markup(texts: Iterable[str]) -> MarkupTally:
    """Count the marks of texts."""
    tally = MarkupTally()
    for text in texts:
        tally.add(text)
    return tally


def find_markup(texts: Iterable[str]) -> tuple[Markup, ...]:
    """Return the kinds of markup that texts have, in the order in which to remove them."""
    return tuple(found.kind for found in tally_markup(texts).found())


def join_text(text: str, kinds: Sequence[Markup] | None = None) -> str:
    """Return a text without markup: words with single spaces between them. Unknown pieces stay as they are.

    Args:
        kinds: the kinds of markup that ``find_markup`` has found in the file of the text; if None, the kinds
            in the text itself. If they say that the file is spelt letter by letter, a text of letters without
            a mark is one word.

    >>> join_text("<|en|> ▁the ▁un known ▁cat"), join_text("the cat"), join_text("y e s", [LETTERS])
    ('the unknown cat', 'the cat', 'yes')
    """
    for kind in find_markup([text]) if kinds is None else kinds:
        is_one_word = kind.is_spelt and kind.sign not in text and _are_letters(text.split(), kind.sign)
        text = _concatenate(text) if is_one_word else kind.join(text)
    return text


def join_list(nbest: NBestList, kinds: Sequence[Markup], reference_kinds: Sequence[Markup] = ()) -> NBestList:
    """Return a list without markup in its texts, its reference, its context and its previous utterances.

    The times of pieces are joined to times of words. If they do not fit the text, the hypothesis loses them.

    Args:
        reference_kinds: the kinds of markup that references have.
    """
    reference = nbest.reference
    return replace(
        nbest,
        hypotheses=tuple(join_hypothesis(hypothesis, kinds) for hypothesis in nbest.hypotheses),
        context=join_text(nbest.context, kinds),
        previous=tuple(replace(said, text=join_text(said.text, kinds)) for said in nbest.previous),
        reference=reference and join_text(reference, reference_kinds),
    )


def join_hypothesis(hypothesis: Hypothesis, kinds: Sequence[Markup]) -> Hypothesis:
    """Return a hypothesis without markup. Its fields ``words`` and ``nwords`` are adapted to the new text."""
    text = join_text(hypothesis.text, kinds)
    if text == hypothesis.text:
        return hypothesis
    fields = dict(hypothesis.fields)
    if "nwords" in fields:
        fields["nwords"] = len(text.split())
    if WORDS_FIELD in fields:
        times = join_word_times(fields.pop(WORDS_FIELD), text.split(), kinds)
        fields |= {} if times is None else {WORDS_FIELD: times}
    return replace(hypothesis, text=text, fields=fields)


def join_word_times(
    entries: Any, words: Sequence[str], kinds: Sequence[Markup]
) -> list[dict[str, Any]] | None:
    """Join the entries of the field ``words``, one per piece, to one per word; None if they do not fit.

    A word lasts from the start of its first piece to the end of its last piece. Its confidence is the lowest
    of the confidences of its pieces.
    """
    if not isinstance(entries, list):
        return None
    start = [BYTE_SPACE] if BYTE_LEVEL in kinds else []  # without it, bytes are letters
    joined: list[dict[str, Any]] = []
    pieces: list[Mapping[str, Any]] = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("word"), str):
            return None
        if not join_text(entry["word"], kinds):
            continue  # a mark that is no word
        if len(joined) == len(words) or len(pieces) == MAX_WORD_PIECES:
            return None
        pieces.append(entry)
        word = words[len(joined)]
        text = join_text(" ".join([*start, *(piece["word"] for piece in pieces)]), kinds).replace(" ", "")
        if text == word:
            joined.append(_merge_pieces(word, pieces))
            pieces = []
        elif len(text) > len(word.encode("utf-8", "surrogatepass")):  # more than the word, even as bytes
            return None
    return joined if len(joined) == len(words) and not pieces else None


def _merge_pieces(word: str, pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return {**first, "word": word}
    merged = {
        key: value for key, value in first.items() if all(piece.get(key) == value for piece in pieces[1:])
    }
    merged["word"] = word
    start: Any = first.get("start_s")
    numbers: list[Any] = [last.get("start_s"), last.get("duration_s")]
    if is_finite_number(start):
        merged["start_s"] = start
        if all(map(is_finite_number, numbers)):
            merged["duration_s"] = round(sum(numbers) - start, TIME_DECIMALS)
    confidences: list[Any] = [piece.get("confidence") for piece in pieces]
    if all(map(is_finite_number, confidences)):
        merged["confidence"] = min(confidences)
    return merged


# Lists


class ListMarkup:
    """The markup that the hypotheses and the references of a file have, as found in its first lists."""

    def __init__(self) -> None:
        self._hypotheses, self._references = MarkupTally(), MarkupTally()
        self._n_lists = self._n_characters = 0

    def add(self, item: NBestList | InputError) -> None:
        """Count the texts of a list; errors are ignored."""
        if not isinstance(item, NBestList) or self.is_enough:
            return
        self._n_lists += 1
        for hypothesis in item.hypotheses:
            self._n_characters += len(hypothesis.text)
            self._hypotheses.add(hypothesis.text)
        if item.reference is not None:
            self._references.add(item.reference)

    @property
    def is_enough(self) -> bool:
        """Whether enough lists have been counted to show the markup of the file; others are ignored."""
        return self._n_lists >= MAX_SAMPLE_LISTS or self._n_characters >= MAX_SAMPLE_CHARACTERS

    @property
    def hypothesis_kinds(self) -> tuple[Markup, ...]:
        """The kinds of markup to remove from hypotheses."""
        return _with_marks(self._hypotheses.found())

    @property
    def reference_kinds(self) -> tuple[Markup, ...]:
        """The kinds of markup to remove from references."""
        return _with_marks(self._references.found())

    def found(self) -> tuple[FoundMarkup, ...]:
        """Return the kinds of markup found in hypotheses, followed by those found in references."""
        return self._hypotheses.found() + self._references.found()


def _with_marks(found: Sequence[FoundMarkup]) -> tuple[Markup, ...]:
    """Return the kinds that were found, and the kinds whose marks mean nothing else in any file."""
    kinds = {item.kind.name for item in found}
    return tuple(kind for kind in KINDS if kind.count is None or kind.name in kinds)


Report = Callable[[tuple[FoundMarkup, ...]], object]
"""A function that is called once per file, with the kinds of markup found there, or with none."""


def sample_markup(lists: Iterable[NBestList | InputError]) -> ListMarkup:
    """Recognise the markup of a file by its first lists."""
    markup = ListMarkup()
    for item in lists:
        markup.add(item)
        if markup.is_enough:
            break
    return markup


def watch_markup(lists: Lists, report: Report) -> Lists:
    """Yield lists unchanged. Report the markup of the first lists, even if the caller stops earlier."""
    markup, is_reported = ListMarkup(), False
    try:
        for item in lists:
            if not is_reported:
                markup.add(item)
                if markup.is_enough:
                    is_reported = True
                    report(markup.found())
            yield item
    finally:
        if not is_reported:
            report(markup.found())


class JoinReport:
    """Receives reports about the markup of a file. A subclass overrides the methods that it needs."""

    def joined(self, found: tuple[FoundMarkup, ...]) -> None:
        """Called before the first list is yielded.

        Args:
            found: the kinds of markup of the file; there may be none.
        """

    def lost_times(self, count: int) -> None:
        """Called after the last list, if hypotheses lost their word times.

        Args:
            count: number of these hypotheses.
        """

    def left(self, found: tuple[FoundMarkup, ...]) -> None:
        """Called after the last list, if texts still have markup, because the first lists did not have it.

        Args:
            found: the kinds of this markup.
        """


def join_lists(lists: Lists, report: JoinReport | None = None, markup: ListMarkup | None = None) -> Lists:
    """Yield lists without the markup of their file, and without marks that are not words.

    Args:
        markup: the markup of the whole file, if the lists are only a part of it; None to find it in the first
            lists.
    """
    report = report or JoinReport()
    if markup is None:
        markup, first, error = ListMarkup(), list[NBestList | InputError](), None
        try:
            for item in lists:
                first.append(item)
                markup.add(item)
                if markup.is_enough:
                    break
        except RescorerError as stop:
            error = stop  # is raised where it was, after the lists before it
        lists = chain(first, lists if error is None else _raise(error))
    report.joined(markup.found())
    kinds, reference_kinds = markup.hypothesis_kinds, markup.reference_kinds
    n_lost, left = 0, MarkupTally()
    for item in lists:
        if isinstance(item, NBestList):
            n_timed = _count_timed(item)
            item = join_list(item, kinds, reference_kinds)
            n_lost += n_timed - _count_timed(item)
            for hypothesis in item.hypotheses:
                left.add(hypothesis.text)
        yield item
    if n_lost:
        report.lost_times(n_lost)
    if found := left.found():
        report.left(found)


def _raise(error: RescorerError) -> Lists:
    raise error
    yield  # makes this a generator, so that the error is raised when it is iterated


def _count_timed(nbest: NBestList) -> int:
    return sum(WORDS_FIELD in hypothesis.fields for hypothesis in nbest.hypotheses)

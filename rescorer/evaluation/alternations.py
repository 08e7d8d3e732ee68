"""Owns references that leave a choice: ``{ -uh / @ } i see``, as NIST's transcripts write them."""

from __future__ import annotations

from rescorer.errors import InvalidList

OPEN, OR, CLOSE, NOTHING = "{", "/", "}", "@"
MAX_ALTERNATIVES = 256

Words = tuple[str, ...]


def expand_alternations(reference: str, list_id: str = "") -> tuple[Words, ...]:
    """Every way to read ``reference``, distinct, in the order written; ``@`` in braces is nothing.

    >>> expand_alternations("{ { -uh / @ } / a } i see")
    (('-uh', 'i', 'see'), ('i', 'see'), ('a', 'i', 'see'))

    Marks count only as tokens of their own; a slash or ``@`` outside braces is a word like any other.

    Raises:
        InvalidList: braces do not match, or there are more than ``MAX_ALTERNATIVES`` readings.
    """

    def fault(message: str) -> InvalidList:
        return InvalidList(message, list_id=list_id, field="reference")

    done: list[Words] = []  # alternatives of the innermost open brace that are complete
    current: list[Words] = [()]  # readings of the alternative being read
    around: list[tuple[list[Words], list[Words]]] = []  # the same two of every brace around it
    for token in reference.split():
        if token == OPEN:
            around.append((done, current))
            done, current = [], [()]
        elif around and token in (OR, CLOSE):
            done += current
            current = [()]
            if token == CLOSE:
                choices = list(dict.fromkeys(done))
                done, before = around.pop()
                if len(choices) * len(before) > MAX_ALTERNATIVES:
                    raise fault(f"alternations give more than {MAX_ALTERNATIVES} readings")
                current = [left + right for left in before for right in choices]
        elif token == CLOSE:
            raise fault('"}" without a "{" before it')
        elif not (around and token == NOTHING):
            current = [(*words, token) for words in current]
    if around:
        raise fault('"{" without a "}" after it')
    return tuple(dict.fromkeys(current))

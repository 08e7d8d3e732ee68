"""Rescore the lists of conversations in order: each is read after what was said before it.

Lists of one conversation wait for one another; different conversations are rescored together.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rescorer.conversation import Utterance
from rescorer.errors import InvalidList
from rescorer.files.rescoring import (
    Batch,
    BatchRescorer,
    BatchResults,
    RenderedList,
    count_words,
    cut_batches,
    select_lists,
)
from rescorer.preparation.previous import MAX_PREVIOUS_WORDS, STEP
from rescorer.types import NBestList

SessionText = Literal["chosen", "reference"]

GROUP = "group"
"""Name under which the group of a list is its session."""
WINDOW_BATCHES = 16
"""Number of batches that are read at a time, so that several conversations go on at once."""
MAX_SESSIONS = 10_000
"""Largest number of conversations that are remembered; of more, those of the latest lists."""


@dataclass(slots=True)
class _Session:
    """What was said in a conversation, as far as models can read it."""

    utterances: deque[Utterance] = field(default_factory=deque)
    n_words: int = 0

    def add(self, utterance: Utterance) -> None:
        self.utterances.append(utterance)
        self.n_words += _length(utterance)
        # dropped by steps, as normalise_previous cuts a long past
        while len(self.utterances) > STEP:
            oldest = sum(_length(self.utterances[i]) for i in range(STEP))
            if self.n_words - oldest < MAX_PREVIOUS_WORDS:
                return
            for _ in range(STEP):
                self.utterances.popleft()
            self.n_words -= oldest


class SessionRescorer:
    """Rescores batches of lists, each list after the texts before it in its conversation.

    A list that has previous utterances of its own keeps them. A list that cannot be rescored adds nothing to
    its conversation.

    Args:
        inner: rescores the lists that need not wait for one another.
        field: field of lists that names their conversation, or ``group``.
        text: whether later lists are read after the chosen texts, or after the references, which shows what
            perfect earlier decisions would be worth.
    """

    def __init__(self, inner: BatchRescorer, field: str, text: SessionText = "chosen") -> None:
        self.inner, self.field, self.text = inner, field, text
        self._sessions: OrderedDict[str, _Session] = OrderedDict()  # that of the latest list last

    @property
    def batch_words(self) -> int:
        return WINDOW_BATCHES * self.inner.batch_words

    @property
    def count(self) -> int:
        return self.inner.count

    def rescore_batches(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, BatchResults]]:
        for batch in batches:
            yield batch, self._rescore(select_lists(batch))

    def _rescore(self, lists: Sequence[NBestList]) -> BatchResults:
        """Rescore some lists, first the earliest of each conversation, then the second ones, and so on."""
        results: dict[int, RenderedList | InvalidList] = {}
        waiting: dict[str, deque[int]] = defaultdict(deque)
        for index, nbest in enumerate(lists):
            try:
                waiting[self._name_session(nbest)].append(index)
            except InvalidList as error:
                results[index] = error
        while waiting:
            turn = {name: indices.popleft() for name, indices in waiting.items()}
            waiting = {name: indices for name, indices in waiting.items() if indices}
            results |= self._rescore_turn(lists, turn)
        return [results[index] for index in range(len(lists))]

    def _rescore_turn(
        self, lists: Sequence[NBestList], turn: Mapping[str, int]
    ) -> dict[int, RenderedList | InvalidList]:
        """Rescore one list of each conversation, and add what it says to the conversation."""
        batch: Batch = [self._add_previous(lists[index], name) for name, index in turn.items()]
        share = -(-sum(map(count_words, batch)) // self.inner.count)  # so that all processes are busy
        batches = cut_batches(batch, min(share, self.inner.batch_words))
        rescored = self.inner.rescore_batches(batches)
        results = dict(zip(turn.values(), (r for _, part in rescored for r in part), strict=True))
        for name, index in turn.items():
            self._remember(name, lists[index], results[index])
        return results

    def _name_session(self, nbest: NBestList) -> str:
        """The name of a list's conversation; raises InvalidList if the list cannot take part."""
        name = nbest.group if self.field == GROUP else nbest.fields.get(self.field)
        if not isinstance(name, (str, int)) or isinstance(name, bool) or name == "":
            message = "missing; expected the name of a conversation, a text or an integer (--session)"
            raise InvalidList(message, list_id=nbest.id, field=self.field)
        if self.text == "reference" and nbest.reference is None:
            message = "missing, but later lists are to be read after it (--session-text reference)"
            raise InvalidList(message, list_id=nbest.id, field="reference")
        return str(name)

    def _add_previous(self, nbest: NBestList, name: str) -> NBestList:
        session = self._sessions.get(name)
        if nbest.previous or session is None:
            return nbest
        return replace(nbest, previous=tuple(session.utterances))

    def _remember(self, name: str, nbest: NBestList, result: RenderedList | InvalidList) -> None:
        """Add the text of a list to its conversation."""
        if isinstance(result, InvalidList):
            return
        is_certain = self.text == "reference"
        text = nbest.reference if is_certain else result.text
        confidence = 1.0 if is_certain else result.confidence
        self._sessions.setdefault(name, _Session()).add(Utterance(text or "", nbest.group, confidence))
        self._sessions.move_to_end(name)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)


def _length(utterance: Utterance) -> int:
    return len(utterance.text.split())

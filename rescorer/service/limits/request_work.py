"""Bound the work of a request: searching its lists, scoring their words, deciding, and rerankers."""

from __future__ import annotations

from collections.abc import Sequence

from rescorer.decision import rules
from rescorer.errors import InputError, LimitExceeded
from rescorer.scoring.batch import count_distinct
from rescorer.scoring.components import BoundOptions, PreparedList


class SearchBudget:
    """The steps that searching the lists of a request may take, for phrases and for what sounds like them.

    Args:
        n_lists: number of lists of the request.
        limit: largest number of steps, ``max_search_steps``.
    """

    def __init__(self, n_lists: int, limit: int) -> None:
        self._n_lists, self._limit = n_lists, limit
        self._n_begun = self._steps = self._list_steps = 0

    def begin_list(self) -> None:
        self._n_begun += 1
        self._list_steps = 0

    def spend(self, steps: int) -> None:
        """Count a search of the current list before it begins.

        Raises:
            LimitExceeded: If the list, or all lists so far, would take too long.
        """
        self._list_steps += steps
        expected = f"expected at most {self._limit} (max_search_steps); send fewer hypotheses or phrases"
        if self._list_steps > self._limit:
            message = f"finding its phrases could take {self._list_steps} steps; {expected}"
            raise LimitExceeded(message, field="phrases")
        self._steps += steps
        if self._steps > self._limit:
            lists = f"the first {self._n_begun} of {self._n_lists} lists"
            message = f"finding the phrases of {lists} could take {self._steps} steps; {expected} per message"
            raise RequestTooCostly(message, field=f"lists[{self._n_begun - 1}]")


class RequestTooCostly(LimitExceeded):
    """The lists of a request exceed a limit together, although none does alone."""


def limit_words(
    lists: Sequence[PreparedList | InputError],
    limit: int,
    field: str = "hypotheses",
    *,
    backward: bool = False,
) -> tuple[tuple[PreparedList | InputError, ...], int]:
    """Return the lists, with an error in place of each that has too many words, and the number of all words.

    Args:
        backward: whether a backward model scores them too; see ``plan_batches``.

    Raises:
        LimitExceeded: If the lists have too many words together, although none does alone.
    """
    tokens = sum(count_tokens(prepared) for prepared in lists if isinstance(prepared, PreparedList))
    if tokens <= limit:
        return tuple(lists), tokens
    expected = f"expected at most {limit} (max_request_words)"
    expected += "" if backward else "; words shared from the start count once"
    tokens, limited = 0, list[PreparedList | InputError]()
    for index, prepared in enumerate(lists):
        if isinstance(prepared, PreparedList):
            list_tokens = count_distinct(prepared.words, prepared.history, backward=backward)
            if list_tokens > limit:
                prepared = LimitExceeded(f"{list_tokens} words; {expected}", field=field)
            elif tokens + list_tokens > limit:
                count = f"the first {index + 1} of {len(lists)} lists have {tokens + list_tokens} words"
                raise LimitExceeded(f"{count}; {expected}", field=f"lists[{index}]")
            else:
                tokens += list_tokens
        limited.append(prepared)
    return tuple(limited), tokens


def limit_steps(
    lists: Sequence[PreparedList | InputError], options: BoundOptions, limit: int
) -> tuple[tuple[PreparedList | InputError, ...], int]:
    """Return the lists, with an error in place of each that takes too long to decide, and the steps of all.

    Raises:
        LimitExceeded: If the lists take too long together, although none does alone.
    """
    total, limited = 0, list[PreparedList | InputError]()
    decision, costly = options.decision, list[str]()
    advice = "send fewer hypotheses"
    if decision.kind != "maximum":
        advice = f"use the rule maximum, or {advice}"
    expected = f"expected at most {limit} (max_decision_steps); {advice}"
    for index, prepared in enumerate(lists):
        steps = 0
        if isinstance(prepared, PreparedList):
            steps = rules.estimate_steps(decision, prepared.words)
            for component in prepared.components:
                if own_steps := component.steps_to_rank(prepared, options.weights):
                    steps, costly = steps + own_steps, [*costly, *component.columns]
        names = " and ".join(dict.fromkeys([decision.kind, *costly]))
        if steps > limit:
            prepared = LimitExceeded(f"{names} takes {steps} steps; {expected}", field="hypotheses")
        elif total + steps > limit:
            what = f"{names} of the first {index + 1} of {len(lists)} lists takes {total + steps} steps"
            raise LimitExceeded(f"{what}; {expected} per message", field=f"lists[{index}]")
        else:
            total += steps
        limited.append(prepared)
    return tuple(limited), total


def count_tokens(prepared: PreparedList) -> int:
    """Count the words of a list, the ends of its sentences and what is read before it."""
    return sum(map(len, prepared.words)) + len(prepared.words) + len(prepared.history)

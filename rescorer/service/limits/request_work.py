"""Bound the work of a prepared request: its words to score, and the steps of deciding and of rerankers."""

from __future__ import annotations

from collections.abc import Sequence

from rescorer.decision import rules
from rescorer.errors import InputError, LimitExceeded
from rescorer.scoring.batch import count_distinct
from rescorer.scoring.components import BoundOptions, PreparedList


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
            for component in options.components:
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

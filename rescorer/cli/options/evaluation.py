"""Options of the commands that evaluate files: how lists are read, ranked, selected and counted."""

from __future__ import annotations

from dataclasses import dataclass

from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.scoring import CountingOptions, NormaliserOption
from rescorer.cli.options.selection import SelectionOptions
from rescorer.cli.options.weights import FirstPassOption, WeightOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """What ``rescorer evaluate`` and ``rescorer report`` need in order to evaluate files."""

    first_pass: FirstPassOption = None
    normaliser: NormaliserOption = None
    lists: ListInputOptions
    weights: WeightOptions
    selection: SelectionOptions
    counting: CountingOptions

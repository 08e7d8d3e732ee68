"""Options for the rule by which the totals of a list decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from rescorer.types import DecisionKind, DecisionRule, ErrorUnit, Weights

KINDS: dict[str, DecisionKind] = {
    "maximum": "maximum",
    "mbr": "minimum_bayes_risk",
    "confusion-network": "confusion_network",
}
"""Kinds of rules, by their name on the command line."""


@dataclass(frozen=True, slots=True)
class DecisionOptions:
    """How the totals decide, where it differs from the rule of the weights."""

    decision: Annotated[
        Literal["maximum", "mbr", "confusion-network"] | None,
        typer.Option(
            help="Decision rule. maximum: the largest total; mbr: the fewest expected errors under the "
            "posteriors of the list (minimum Bayes risk); confusion-network: also write the consensus, which "
            "may be new text. Default: the rule of the weights, usually maximum."
        ),
    ] = None
    decision_unit: Annotated[
        ErrorUnit | None,
        typer.Option(help="Errors that mbr minimises; see --unit of `rescorer evaluate`. Default: word."),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Temperature of the posteriors of mbr and confusion-network, softmax(total / temperature), "
            "above 0; high values let all hypotheses count alike. Default: that of the weights, or 1."
        ),
    ] = None

    def resolve(self, weights: Weights) -> DecisionRule:
        """Apply the options to the rule of the weights.

        Raises:
            ConfigError: the options are invalid or contradict each other.
        """
        rule = weights.decision
        kind = KINDS[self.decision] if self.decision else rule.kind
        has_words_only = self.decision is not None and kind == "confusion_network"
        return DecisionRule(
            kind,
            self.decision_unit or ("word" if has_words_only else rule.unit),
            rule.temperature if self.temperature is None else self.temperature,
        )

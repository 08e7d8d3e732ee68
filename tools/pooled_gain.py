"""Pool the reports of several sets of lists, and test the gain of one system over another on all of them.

    rescorer report SET --tune --max-utterances 1000000 -o set.json    (once per set)
    python -m tools.pooled_gain "mixture, tuned" "mixture, tuned, MBR" first.json second.json …

Errors and words are summed over the sets. The bootstrap draws groups, or lists if a set has no groups.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rescorer.evaluation.statistics import Gain, bootstrap


class Outcome(NamedTuple):
    """The errors of the two systems on one list."""

    group: str
    reference_words: int
    baseline_errors: int
    system_errors: int


def read_outcomes(path: Path, baseline: str, system: str) -> Iterator[Outcome]:
    """Yield the outcomes of all lists of a report.

    Raises:
        SystemExit: the report does not have all its lists, or lacks a system.
    """
    utterances = json.loads(path.read_text(encoding="utf-8"))["utterances"]
    rows = utterances["rows"]
    if len(rows) < utterances["total"]:
        raise SystemExit(f"{path} has {len(rows)} of {utterances['total']} lists; give --max-utterances")
    for number, row in enumerate(rows):
        errors = _errors_by_system(row)
        if missing := sorted({baseline, system} - set(errors)):
            raise SystemExit(f"{path}: no system {missing[0]!r}; it has: {', '.join(errors)}")
        group = f"{path}: {row['group'] or number}"
        yield Outcome(group, row["reference_words"], errors[baseline], errors[system])


def _errors_by_system(row: Mapping[str, Any]) -> dict[str, int]:
    return {name: reading["errors"] for reading in row["readings"] for name in reading["systems"]}


def pool(outcomes: list[Outcome]) -> Gain:
    """Test the gain of the system over the baseline."""
    errors = np.array([[o.baseline_errors for o in outcomes], [o.system_errors for o in outcomes]])
    words = np.array([o.reference_words for o in outcomes])
    return bootstrap(errors, words, groups=[o.group for o in outcomes]).gain(0, 1)


def main() -> None:
    """Print the pooled gain."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("baseline", help="row of the reports that is compared with")
    parser.add_argument("system", help="row of the reports that may be better")
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT.json")
    options = parser.parse_args()
    outcomes = [
        outcome
        for path in options.reports
        for outcome in read_outcomes(path, options.baseline, options.system)
    ]
    gain = pool(outcomes)
    low, high = 100 * gain.interval.low, 100 * gain.interval.high
    groups = len({outcome.group for outcome in outcomes})
    words = sum(outcome.reference_words for outcome in outcomes)
    print(f"{len(outcomes):,} lists, {words:,} words, {groups:,} groups or lists drawn")
    print(f"{options.system!r} saves {100 * gain.gain:+.2f} points over {options.baseline!r}")
    print(f"95 % interval {low:+.2f} to {high:+.2f}, p = {gain.p_value:.3f}")


if __name__ == "__main__":
    main()

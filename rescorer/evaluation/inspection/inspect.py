"""Inspect n-best lists: gather statistics in one pass, then judge them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rescorer.errors import InputError
from rescorer.evaluation.error_rate.counting import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.inspection.equal_texts import EqualTexts
from rescorer.evaluation.inspection.finding import Finding
from rescorer.evaluation.inspection.findings import judge
from rescorer.evaluation.inspection.list_stats import ErrorStats, ListStats
from rescorer.evaluation.inspection.models import ModelStats, ModelTally
from rescorer.evaluation.inspection.streams import StreamStats
from rescorer.evaluation.inspection.tally import ListTally
from rescorer.evaluation.inspection.words import WordStats
from rescorer.text import Normaliser
from rescorer.types import NBestList, Weights


@dataclass(frozen=True, slots=True)
class Inspection:
    """Statistics and findings of one file of lists."""

    lists: ListStats
    streams: tuple[StreamStats, ...]
    words: WordStats
    errors: ErrorStats | None
    """None without references."""
    models: ModelStats | None
    """None without a bundle."""
    equal: Mapping[str, EqualTexts]
    """Different texts with the same words: by ``normaliser``, in which errors are counted, and by that of the
    ``bundle`` if it is another one."""
    findings: tuple[Finding, ...]
    """Warnings first."""

    @property
    def suspicious(self) -> bool:
        """Whether something is probably wrong."""
        return any(finding.severity == "warning" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data; rates in percent, scores in nats."""
        return {
            **asdict(self.lists),
            "prefix_sharing": round(self.lists.prefix_sharing, 3),
            "streams": {stream.name: stream.to_dict() for stream in self.streams},
            **self.words.to_dict(),
            **(self.errors.to_dict() if self.errors else {}),
            **(self.models.to_dict() if self.models else {}),
            "equal_texts": {name: found.to_dict() for name, found in self.equal.items()},
            "findings": [asdict(finding) for finding in self.findings],
            "suspicious": self.suspicious,
        }


def inspect_lists(
    lists: Iterable[NBestList | InputError],
    normaliser: Normaliser,
    *,
    vocabulary: frozenset[str] | None = None,
    models: ModelTally | None = None,
    first_pass: Weights | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
    on_rejected: Callable[[InputError], object] = lambda error: None,
) -> Inspection:
    """Read lists once, keeping only sums, ids and distinct tokens in memory.

    Args:
        lists: lists and errors as a reader yields them; the errors are counted.
        vocabulary: known words; None for those of the bundle. Without either, OOV words are not reported.
        models: scores the lists with a bundle; None to skip the comparison with its n-gram and weights.
        first_pass: weights that define the first pass; None for the order of the lists, and for the
            only stream if there is one.
        on_rejected: called with the error of each rejected list.
    """
    tally = ListTally(normaliser, first_pass, counting, models)
    for item in lists:
        error = item if isinstance(item, InputError) else None
        if isinstance(item, NBestList):
            try:
                tally.add(item)
            except InputError as invalid:
                error = invalid
        if error is not None:
            tally.reject()
            on_rejected(error)
    model_stats = models.stats() if models else None
    vocabulary = models.vocabulary if models and vocabulary is None else vocabulary
    words = tally.word_stats(vocabulary)
    stats = tally.list_stats(), tally.stream_stats(), words, tally.error_stats(), model_stats
    equal = tally.equal_texts()
    return Inspection(*stats, equal=equal, findings=judge(*stats, equal))

"""Advise options for lists whose scores are not those that weights need.

Advice starts from the recogniser's own score, with the weight of everything else 0: an untuned weight of
language models can triple the errors of a recogniser that has one inside. `rescorer tune` finds weights from
there.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rescorer.cli.options.lists import FIELD_READERS, ListInputOptions
from rescorer.errors import RescorerError, find_similar
from rescorer.formats.json_documents import speech_services
from rescorer.formats.registry import choose
from rescorer.preparation.unread_lists import find_unread_lists
from rescorer.preparation.unread_scores import UnreadField, find_unread_fields, name_fields
from rescorer.preparation.untuned_weights import find_untuned_weights
from rescorer.storage.urls import as_local
from rescorer.types import NBestList, Weights

TUNE = "`rescorer tune` with the same options then finds weights, judged on held-out lists"
SCORE_OPTIONS = (speech_services.FORMAT, "whisper")
"""Formats with the options ``score``, ``base`` and ``sign``."""
OWN_TERMS = ("word", "oov", "empty", "phrases")
"""Terms of a total besides scores, each with a weight of its own."""


@dataclass(frozen=True, slots=True)
class Input:
    """The first lists of an input, and how they are read."""

    lists: Sequence[NBestList]
    options: ListInputOptions
    source: str

    @property
    def streams(self) -> list[str]:
        """Names of the score streams that were read."""
        return sorted({name for nbest in self.lists for name in nbest.streams})

    def unread(self) -> list[UnreadField]:
        """Numbers of the hypotheses that were not read as streams."""
        return find_unread_fields(self.lists)

    def reading_options(self, field: UnreadField, stream: str) -> tuple[str, str] | None:
        """The options that read a field as a stream, and the name that the stream gets; None if none can."""
        try:
            choice = choose(self.options.find_format(as_local(self.source)))
        except RescorerError:
            return None
        name = choice.format.name
        if name in FIELD_READERS and not choice.options and ":" not in field.name and "=" not in stream:
            holder = f"--map {shlex.quote(f'scores={field.parent}')} " if field.parent else ""
            is_usable = "," not in field.parent
            return (f"{holder}--stream {_option(stream, field)}", stream) if is_usable else None
        if name in SCORE_OPTIONS and not field.parent and not {*",:"} & {*field.name}:
            base, _, sign = field.units.lstrip(":").partition(":")
            units = {"score": field.name, "base": base or "e", **({"sign": sign} if sign else {})}
            settings = ",".join(f"{key}={value}" for key, value in {**choice.options, **units}.items())
            return f"--format {shlex.quote(f'{name}:{settings}')}", speech_services.STREAM
        return None


def advise_start(given: Input, weights: Weights, missing: str) -> str:
    """Say what to write for weights that need streams which lists do not have, and that use none of theirs.

    Args:
        missing: a stream that the weights name and the lists do not have.
    """
    if given.streams:
        return f"{advise_own_score(given, weights)}; {TUNE}"
    unread = given.unread()
    likely = [field for field in unread if field.is_likely]
    if not likely:
        return (
            f"`-w {missing}=0` leaves it out, and language models alone decide the ranking: give each "
            "hypothesis the score of the recogniser, such as -ln(rank) if only the order is known"
        )
    if reading := given.reading_options(likely[0], missing):
        options, stream = reading
        return f"`{options} {rank_by(weights, stream)}` ranks by {likely[0].label!r} alone; {TUNE}"
    return (
        f"no option reads {likely[0].label!r} from this format: `rescorer convert` makes JSON lines of it, "
        f"and `--stream {_option(missing, likely[0])} {rank_by(weights, missing)}` reads them; {TUNE}"
    )


def advise_own_score(given: Input, weights: Weights) -> str:
    """Name the options that rank by one stream alone: that of the order of the lists."""
    own = _find_own_score(given.lists, given.streams)
    which = "the only score" if len(given.streams) == 1 else f"the score {own!r}"
    return f"`{rank_by(weights, own)}` ranks by {which} alone"


def advise_field(given: Input, stream: str) -> str:
    """Name the option that may read a missing stream from a field; empty if no field looks like it."""
    likely = [field for field in given.unread() if field.is_likely]
    similar = find_similar(stream, [field.name for field in likely])
    for field in sorted(likely, key=lambda field: field.name != similar):
        if not field.parent and (reading := given.reading_options(field, stream)) and reading[1] == stream:
            return f", or `{reading[0]}` reads the field {field.label!r}"
    return ""


def describe_scores(given: Input) -> str:
    """Say which streams were read, or which fields of the hypotheses have numbers if none was."""
    if streams := given.streams:
        return f"streams: {', '.join(streams)}"
    names = name_fields(given.unread())
    return f"no scores at all; the hypotheses have numbers in: {names}" if names else "no scores at all"


def advise_tuning(lists: Sequence[NBestList], weights: Weights) -> str:
    """A warning about weights that were never tuned for scores like an end-to-end model's; else empty."""
    found = find_untuned_weights(lists, weights)
    if found is None:
        return ""
    without = " ".join(f"-w {shlex.quote(f'lm:{name}=0')}" for name, weight in weights.lm.items() if weight)
    return f"{found.describe()}. Rank by the scores alone, `{without}`; {TUNE}"


def rank_by(weights: Weights, stream: str) -> str:
    """The options ``-w`` with which one stream alone decides the ranking."""
    return " ".join(f"-w {shlex.quote(change)}" for change in _changes_to_rank_by(weights, stream))


def _changes_to_rank_by(weights: Weights, stream: str) -> Iterator[str]:
    for name, weight in weights.streams.items():
        if weight and name != stream:
            yield f"{name}=0"
    if weights.streams.get(stream, 0.0) <= 0.0:
        yield f"{stream}=1"
    yield from (f"lm:{name}=0" for name, weight in weights.lm.items() if weight)
    yield from (f"{name}=0" for name in OWN_TERMS if getattr(weights, name))
    yield from (f"reranker:{name}=0" for name, weight in weights.rerankers.items() if weight)


def _find_own_score(lists: Sequence[NBestList], streams: Sequence[str]) -> str:
    """The stream whose best hypothesis is most often the first one, as is that of the recogniser's totals."""

    def agreement(stream: str) -> int:
        scores = [nbest.streams[stream] for nbest in lists if stream in nbest.streams]
        return sum(values[0] == max(values) for values in scores)

    return max(streams, key=agreement)


def _option(stream: str, field: UnreadField) -> str:
    return shlex.quote(f"{stream}={field.name}{field.units}")


def describe_unread(given: Input, weights: Weights | None) -> str:
    """Lines about hypotheses that nothing reads, and about scores if weights rank; empty if all is read."""
    scores = describe_unread_scores(given, weights) if weights else ""
    return "\n".join(filter(None, (describe_unread_lists(given), scores)))


def describe_unread_lists(given: Input) -> str:
    """A line about arrays that look like hypotheses and that nothing reads; empty if there are none."""
    found = find_unread_lists(given.lists)
    if not found:
        return ""
    try:
        name = choose(given.options.find_format(as_local(given.source))).format.name
    except RescorerError:
        name = ""
    reading = "rename it to 'candidates' to read it"
    if name in FIELD_READERS:
        reading = f"`--map {shlex.quote(found[0].map_option)}` reads it"
    return f"warning: lists have {found[0].description}, which is not read as their hypotheses; {reading}"


def describe_unread_scores(given: Input, weights: Weights) -> str:
    """A line about scores that nothing reads while language models rank; empty if there are none.

    Where the weights use a stream, it names what is called like a score and is left over, unless the user
    chose the streams.
    """
    used = any(weights.streams.get(name) for name in given.streams) or any(weights.rerankers.values())
    if given.options.streams or (given.streams and not used):
        return ""
    likely = [field for field in given.unread() if field.is_likely]
    if used:
        named = [field for field in likely if field.is_named and not field.parent]
        reading = given.reading_options(named[0], named[0].name) if named else None
        if not reading or reading[1] != named[0].name:
            return ""
        reads = f"`{reading[0]}` reads {'it' if len(named) == 1 else 'the first'}"
        return f"note: no stream is read from {name_fields(named)}; {reads}"
    if not likely:
        return ""
    reading = given.reading_options(likely[0], next(iter(weights.streams), "acoustic"))
    advice = (
        f"; `{reading[0]} {rank_by(weights, reading[1])}` ranks by {likely[0].label!r} alone; {TUNE}"
        if reading
        else ""
    )
    return (
        "warning: no score of the hypotheses is read, and language models alone decide the ranking; fields "
        f"that look like scores: {name_fields(likely)}{advice}"
    )

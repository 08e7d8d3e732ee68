"""Owns the step between proto messages and types, for the server and the client; checks what only the wire
can get wrong, such as an undeclared base.

Fields that the client attached are not unpacked: the server hands the message's own ``Struct`` on, and the
Python client keeps them at home.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from rescorer.errors import InvalidList
from rescorer.formats.score_units import Base, Sign, Units, stream_to_nats
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.ranking import Ranking
from rescorer.score_combination import parse_weights
from rescorer.types import (
    Hypothesis,
    NBestList,
    RescoredHypothesis,
    RescoredList,
    TextScore,
    Weights,
)

Unit = TypeVar("Unit", Base, Sign)

BASES: Mapping[int, Base] = MappingProxyType(
    {
        pb.LOG_BASE_E: "e",
        pb.LOG_BASE_2: "2",
        pb.LOG_BASE_10: "10",
        pb.LOG_BASE_1_0001: "1.0001",
        pb.LOG_BASE_BYTELOG: "bytelog",
    }
)
DEGRADATIONS: Mapping[int, str] = MappingProxyType(
    {pb.DEGRADATION_NGRAM: "ngram", pb.DEGRADATION_FIRST_PASS: "first_pass"}
)
SIGNS: Mapping[int, Sign] = MappingProxyType({pb.SCORE_SIGN_LOG_PROB: "log_prob", pb.SCORE_SIGN_COST: "cost"})


def list_from_proto(message: pb.NBestList) -> NBestList:
    """A list with its streams in nats.

    Raises:
        InvalidList: a stream is not declared, has no name, comes twice, or holds what is no finite number.
    """
    streams: dict[str, tuple[float, ...]] = {}
    for index, stream in enumerate(message.streams):
        name = stream.name
        if not name or name in streams:
            wrong = f"{name!r} comes twice" if name else "empty; expected the stream's name"
            raise InvalidList(wrong, list_id=message.id, field=f"streams[{index}].name")
        field = f'streams["{name}"]'
        units = Units(
            _declared(BASES, stream.base, pb.LogBase, message.id, f"{field}.base"),
            _declared(SIGNS, stream.sign, pb.ScoreSign, message.id, f"{field}.sign"),
        )
        streams[name] = stream_to_nats(name, stream.values, units, list_id=message.id, field=field) or ()
    hypotheses = tuple(Hypothesis(each.text, _fields(each), each.partial) for each in message.hypotheses)
    return NBestList(message.id, hypotheses, streams, message.context, fields=_fields(message))


def _fields(message: pb.NBestList | pb.Hypothesis) -> Any:
    """The client's ``Struct`` as it came, which is a mapping too."""
    return message.fields if message.HasField("fields") else {}


def _declared(known: Mapping[int, Unit], value: int, enum: Any, list_id: str, field: str) -> Unit:
    if value in known:
        return known[value]
    names = ", ".join(enum.Name(each) for each in known)
    wrong = f"{value} is not known" if value else "not declared"
    raise InvalidList(f"{wrong}; expected one of {names}", list_id=list_id, field=field)


def list_to_proto(nbest: NBestList) -> pb.NBestList:
    """A list as the client sends it; streams are in nats, the client's fields stay at home.

    Raises:
        InvalidList: a text or a score is of a type, or holds characters, that cannot be sent.
    """
    try:
        return pb.NBestList(
            id=nbest.id,
            hypotheses=[pb.Hypothesis(text=each.text, partial=each.partial) for each in nbest.hypotheses],
            streams=[
                pb.ScoreStream(name=name, base=pb.LOG_BASE_E, sign=pb.SCORE_SIGN_LOG_PROB, values=values)
                for name, values in nbest.streams.items()
            ],
            context=nbest.context,
        )
    except (TypeError, ValueError) as fault:
        raise InvalidList(f"cannot be sent: {fault}", list_id=nbest.id) from None


def weights_from_proto(message: pb.Weights) -> Weights:
    """Weights of a request; raises ConfigError where a value is no finite number."""
    given = {
        "name": message.name,
        "streams": message.streams,
        "lm": message.lm,
        "mixture": message.mixture,
        "tuned_on": message.tuned_on,
    }
    present = {name: value for name, value in given.items() if value}
    return parse_weights({**present, "word": message.word, "oov": message.oov})


def weights_to_proto(weights: Weights) -> pb.Weights:
    return pb.Weights(
        name=weights.name,
        streams=weights.streams,
        # An empty map would be read as {"mixture": 1}.
        lm=weights.lm or {"mixture": 0.0},
        word=weights.word,
        oov=weights.oov,
        mixture=weights.mixture,
        tuned_on=weights.tuned_on,
    )


def write_ranking(ranking: Ranking, message: pb.RescoredList) -> None:
    """Fills an answer whose status is OK."""
    nbest = ranking.nbest
    message.id = nbest.id
    message.status.SetInParent()
    if nbest.fields:
        message.fields.CopyFrom(nbest.fields)  # type: ignore[arg-type]  # as it came in the request
    names, rows = list(ranking.components), list(zip(*ranking.components.values(), strict=True))
    for rank, i in enumerate(ranking.order, start=1):
        each = nbest.hypotheses[i]
        message.hypotheses.add(
            text=each.text,
            rank=rank,
            original_rank=i + 1,
            total=ranking.totals[i],
            log_posterior=ranking.log_posteriors[i],
            components=dict(zip(names, rows[i], strict=True)),
            merged_ranks=[place + 1 for place in ranking.members[i]],
            fields=each.fields or None,
        )


def rescored_from_proto(
    message: pb.RescoredList, sent: NBestList, weights: Weights, model: str
) -> RescoredList:
    """An answer, reunited with what of the list stayed at home."""
    hypotheses = tuple(
        RescoredHypothesis(
            text=each.text,
            original_rank=each.original_rank - 1,
            total=each.total,
            log_posterior=each.log_posterior,
            components=dict(sorted(each.components.items())),
            merged_ranks=tuple(place - 1 for place in each.merged_ranks),
            fields=sent.hypotheses[each.original_rank - 1].fields,
        )
        for each in message.hypotheses
    )
    return RescoredList(
        message.id,
        hypotheses,
        weights,
        model,
        sent.reference,
        sent.group,
        sent.fields,
        sent.context,
        DEGRADATIONS.get(message.degradation, ""),
    )


def text_score_to_proto(score: TextScore) -> pb.TextScore:
    log_probs = {name: pb.WordLogProbs(values=values) for name, values in score.log_probs.items()}
    return pb.TextScore(text=score.text, words=score.words, log_probs=log_probs, unknown=score.unknown)


def text_score_from_proto(message: pb.TextScore) -> TextScore:
    return TextScore(
        text=message.text,
        words=tuple(message.words),
        log_probs={name: tuple(each.values) for name, each in sorted(message.log_probs.items())},
        unknown=tuple(message.unknown),
    )

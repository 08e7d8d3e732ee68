"""Convert lists, weights, rankings, scores and errors to protocol messages and back, for client and server.

Errors that only messages can have, such as an undeclared logarithm base, are detected here. User-defined
fields are not unpacked: the server copies the message's own ``Struct`` to the response, and the Python client
does not send them at all.

A single table converts errors to gRPC statuses and back. A status carries a ``google.rpc.ErrorInfo`` with the
reason of the error, so that a client raises an error of the same class; a ``google.rpc.BadRequest`` if a
field of the request is invalid; and a ``google.rpc.RetryInfo`` if the call may succeed later.

A server may still serve models from memory after their files were lost. A health check reports these missing
models in the trailing metadata of ``Check``, because its message has no field for them.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args
from urllib import parse

import grpc
from google.protobuf.struct_pb2 import Struct
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from rescorer import errors
from rescorer.errors import InvalidList, RescorerError, quote, shorten
from rescorer.formats.common import Base, Sign, Units, stream_to_nats
from rescorer.list_checks import check_types
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import (
    LENGTH,
    MAXIMUM,
    ConfidenceMap,
    ConsensusWord,
    DecisionKind,
    DecisionRule,
    ErrorUnit,
    Generated,
    Hypothesis,
    NBestList,
    Phrase,
    RescoredHypothesis,
    RescoredList,
    TextScore,
    Utterance,
    Weights,
    WordConfidence,
)

if TYPE_CHECKING:
    from rescorer.ranking import Ranking


def is_loopback(host: str) -> bool:
    """Whether a host name or IP address is a loopback address of this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def format_address(host: str, port: int) -> str:
    """Join host and port as in gRPC targets and URLs.

    >>> format_address("::1", 50051)
    '[::1]:50051'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local_target(target: str) -> bool:
    """Whether all addresses of a gRPC target are on this machine.

    >>> is_local_target("ipv4:127.0.0.1:1,127.0.0.1:2"), is_local_target("dns:///example.org:1")
    (True, False)
    """
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    addresses = re.sub(r"^(dns:(//[^/]*/)?|ipv4:|ipv6:)", "", target).split(",")
    return all(is_loopback(re.sub(r":\d+$", "", address).strip("[]")) for address in addresses)


LIVENESS = "liveness"
"""Name of health that is SERVING as long as the server answers at all. Probes that restart a server ask for
it, because a restart does not help a server that is still loading, or that has no model."""
MISSING_MODELS = "rescorer-models-missing"
"""Key of the missing models in the trailing metadata of a health check; absent if no model is missing."""
MAX_VALUE_CHARS = 500
"""Maximum length of the value of this key. Labels of models that do not fit are replaced by ``MORE``."""
MORE = "..."


def encode_missing_models(labels: Iterable[str]) -> str:
    """Encode labels of models, such as ``name/version``, as ASCII: percent-encoded, separated by commas."""
    value = ""
    for label in labels:
        longer = f"{value}, {parse.quote(label)}" if value else parse.quote(label)
        if len(longer) + len(f", {MORE}") > MAX_VALUE_CHARS:
            return f"{value}, {MORE}" if value else MORE
        value = longer
    return value


def decode_missing_models(metadata: Iterable[tuple[str, str | bytes]] | None) -> tuple[str, ...]:
    """Return the labels of missing models from the trailing metadata of a health check. The last one is
    ``MORE`` if some did not fit."""
    values = [str(value) for key, value in metadata or () if key == MISSING_MODELS]
    return tuple(parse.unquote(label) for value in values for label in value.split(", "))


DOMAIN = "rescorer"
MAX_TEXT_CHARS = 500
"""Maximum length, in characters, of each text in the status of a list."""
MESSAGE_TOO_LARGE = re.compile(r"Received message larger than max \((\d+) vs\. (\d+)\)")
"""The message with which gRPC itself refuses a request that is larger than ``max_message_bytes``."""


class ErrorKind(NamedTuple):
    """The form that errors of one class take in a status."""

    error_type: type[RescorerError]
    code: grpc.StatusCode
    reason: str
    hidden: bool = False
    """True: clients do not get the error message, because it may reveal internals of the server."""


KINDS = (  # the first match counts, so subclasses come before their base classes
    ErrorKind(errors.LimitExceeded, grpc.StatusCode.INVALID_ARGUMENT, "LIMIT_EXCEEDED"),
    ErrorKind(InvalidList, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_LIST"),
    ErrorKind(errors.InputError, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT"),
    ErrorKind(errors.ConfigError, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_CONFIG"),
    ErrorKind(errors.ModelNotFound, grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
    ErrorKind(errors.ModelRefused, grpc.StatusCode.FAILED_PRECONDITION, "MODEL_REFUSED"),
    ErrorKind(errors.ModelError, grpc.StatusCode.INTERNAL, "MODEL_BROKEN", hidden=True),
    ErrorKind(errors.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    ErrorKind(errors.Unavailable, grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
    ErrorKind(errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
    ErrorKind(errors.PermissionDenied, grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
    ErrorKind(errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    ErrorKind(errors.ScoringError, grpc.StatusCode.INTERNAL, "SCORING_FAILED", hidden=True),
    ErrorKind(errors.ServiceError, grpc.StatusCode.UNKNOWN, "UNKNOWN", hidden=True),
)
BUG = ErrorKind(errors.ScoringError, grpc.StatusCode.INTERNAL, "INTERNAL", hidden=True)
"""The kind of all exceptions that are not in ``KINDS``."""

ERROR_BY_REASON = {kind.reason: kind.error_type for kind in (*KINDS, BUG)}
ERROR_BY_CODE = {kind.code.value[0]: kind.error_type for kind in reversed((*KINDS, BUG))} | {
    # The server stops; a client that cancels its call does not see this.
    grpc.StatusCode.CANCELLED.value[0]: errors.Unavailable,
    grpc.StatusCode.INVALID_ARGUMENT.value[0]: errors.InputError,
    grpc.StatusCode.INTERNAL.value[0]: errors.ScoringError,
}
"""Class of error by status code. It is used if a status has no known reason, because gRPC itself or a proxy
created it."""


def error_kind(error: Exception) -> ErrorKind:
    """Return the kind of an error; ``BUG`` if its class is not in ``KINDS``."""
    return next((kind for kind in KINDS if isinstance(error, kind.error_type)), BUG)


def status_from_error(
    error: Exception, request_id: str = "", path: str = "", max_text_chars: int = MAX_TEXT_CHARS
) -> Status:
    """Return the status that reports an error to the client.

    Args:
        request_id: id under which the server's log has the details.
        path: place in the request of the list that caused the error, such as ``lists[2]``.
        max_text_chars: maximum length of each text in the status, since error messages may quote the request.
    """
    kind = error_kind(error)
    message = (
        f"internal error; look for request {request_id} in the server's log"
        if kind.hidden
        else shorten(str(error), max_text_chars)
    )
    info = ErrorInfo(reason=kind.reason, domain=DOMAIN)
    if request_id:
        info.metadata["request_id"] = request_id
    for name in ("message", "list_id", "hypothesis", "field"):
        value = getattr(error, name, None)
        if value not in (None, "") and not kind.hidden:
            info.metadata[name] = shorten(str(value), max_text_chars)
    status = Status(code=kind.code.value[0], message=message)
    status.details.add().Pack(info)
    if retry_ms := retry_after_ms(error):
        delay = RetryInfo()
        delay.retry_delay.FromMilliseconds(retry_ms)
        status.details.add().Pack(delay)
    if not kind.hidden and (field := field_path(error, path)):
        description = getattr(error, "message", message)
        violation = BadRequest.FieldViolation(
            field=shorten(field, max_text_chars), description=shorten(description, max_text_chars)
        )
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    return status


def retry_after_ms(error: Exception) -> int:
    """Milliseconds to wait before trying again; 0 if unknown."""
    return math.ceil(getattr(error, "retry_after_s", 0.0) * 1e3)


def field_path(error: Exception, path: str) -> str:
    """Return the path of the invalid field in the request; empty if there is none.

    >>> field_path(InvalidList("nan", hypothesis=3, field='streams["acoustic"]'), "lists[2]")
    'lists[2].streams["acoustic"].values[3]'
    """
    field = getattr(error, "field", "")
    hypothesis = getattr(error, "hypothesis", None)
    if hypothesis is not None:
        if re.fullmatch(r'streams\[".*"\]', field):
            field = f"{field}.values[{hypothesis}]"
        else:
            field = f"hypotheses[{hypothesis}].{field}".rstrip(".")
    return ".".join(part for part in (path, field) if part)


def error_from_status(status: Status) -> RescorerError:
    """Return the error that a status reports, as an instance of its class in ``rescorer.errors``."""
    if too_large := MESSAGE_TOO_LARGE.search(status.message):
        sent, limit = too_large.groups()
        return errors.LimitExceeded(f"message of {sent} bytes; expected at most {limit} (max_message_bytes)")
    info = ErrorInfo()
    if not any(detail.Unpack(info) for detail in status.details if detail.Is(ErrorInfo.DESCRIPTOR)):
        info = ErrorInfo()
    is_known = info.domain == DOMAIN and info.reason in ERROR_BY_REASON
    error_type = (
        ERROR_BY_REASON[info.reason] if is_known else ERROR_BY_CODE.get(status.code, errors.ServiceError)
    )
    metadata = info.metadata
    message = metadata.get("message", status.message)
    if error_type is InvalidList:
        hypothesis = int(metadata["hypothesis"]) if "hypothesis" in metadata else None
        list_id, field = metadata.get("list_id", ""), metadata.get("field", "")
        return InvalidList(message, list_id=list_id, hypothesis=hypothesis, field=field)
    if error_type is errors.LimitExceeded:
        return errors.LimitExceeded(message, field=metadata.get("field", ""))
    if error_type is errors.Overloaded:
        delay = RetryInfo()
        any(detail.Unpack(delay) for detail in status.details if detail.Is(RetryInfo.DESCRIPTOR))
        return errors.Overloaded(message, retry_after_s=delay.retry_delay.ToMilliseconds() / 1e3)
    return error_type(message)


DECISION_KINDS: Mapping[int, DecisionKind] = {
    pb.DECISION_KIND_UNSPECIFIED: "maximum",
    **{pb.DecisionKind.Value(f"DECISION_KIND_{kind.upper()}"): kind for kind in get_args(DecisionKind)},
}
ERROR_UNITS: Mapping[int, ErrorUnit] = {
    pb.ERROR_UNIT_UNSPECIFIED: "word",
    **{pb.ErrorUnit.Value(f"ERROR_UNIT_{unit.upper()}"): unit for unit in get_args(ErrorUnit)},
}


PLAIN_WEIGHTS = ("word", "oov", "empty", "cache", "neural_cache")
"""The weights that are a single number with the default 0."""
NAMED_WEIGHTS = ("name", "streams", "lm", "mixture", "rerankers", "components", "tuned_on")


def weights_from_proto(message: pb.Weights) -> Weights:
    """Convert the weights of a request.

    Raises:
        ConfigError: a value is not a finite number.
    """
    from rescorer.weights import OPTIONAL_NUMBERS, parse_weights

    fields: dict[str, Any] = {name: getattr(message, name) for name in PLAIN_WEIGHTS}
    for name in (*NAMED_WEIGHTS, "flatness"):
        if value := getattr(message, name):
            # Maps have no order: sort them, so that the same request always gets the same total and error.
            fields[name] = dict(sorted(value.items())) if isinstance(value, Mapping) else value
    fields |= {name: getattr(message, name) for name in OPTIONAL_NUMBERS if message.HasField(name)}
    if message.HasField("decision"):
        fields["decision"] = decision_from_proto(message.decision)
    if message.HasField("calibration"):
        fields["calibration"] = {
            name: {
                "temperature": part.temperature,
                "posteriors": list(part.posteriors),
                "confidences": list(part.confidences),
            }
            for name, part in (
                ("utterance", message.calibration.utterance),
                ("word", message.calibration.word),
            )
            if message.calibration.HasField(name)
        }
    return parse_weights(fields)


def decision_from_proto(message: pb.DecisionRule) -> DecisionRule:
    """Convert a decision rule; absent fields get their default.

    Raises:
        ConfigError: a value is unknown, or the temperature is not a finite number above 0.
    """
    return DecisionRule(
        DECISION_KINDS.get(message.kind, str(message.kind)),  # type: ignore[arg-type]  # DecisionRule checks
        ERROR_UNITS.get(message.unit, str(message.unit)),  # type: ignore[arg-type]
        message.temperature or 1.0,
    )


def decision_to_proto(rule: DecisionRule) -> pb.DecisionRule:
    """Convert a decision rule, and set all fields, even to defaults."""
    return pb.DecisionRule(
        kind=f"DECISION_KIND_{rule.kind.upper()}",
        unit=f"ERROR_UNIT_{rule.unit.upper()}",
        temperature=rule.temperature,
    )


def weights_to_proto(weights: Weights) -> pb.Weights:
    def convert(part: ConfidenceMap | None) -> pb.ConfidenceMap | None:
        return None if part is None else pb.ConfidenceMap(**asdict(part))

    same = (*PLAIN_WEIGHTS, *NAMED_WEIGHTS, "phrases", "generated", "sound_match")
    fields: dict[str, Any] = {name: getattr(weights, name) for name in same}
    fields["lm"] = weights.lm or {"mixture": 0.0}  # an empty map would be read as {"mixture": 1}
    if weights.neural_cache:
        fields["flatness"] = weights.flatness
    if weights.decision != MAXIMUM:
        fields["decision"] = decision_to_proto(weights.decision)
    if (maps := weights.calibration) is not None:
        fields["calibration"] = pb.Calibration(utterance=convert(maps.utterance), word=convert(maps.word))
    return pb.Weights(**fields)


Unit = TypeVar("Unit", Base, Sign)

BASES: Mapping[int, Base] = {
    pb.LOG_BASE_E: "e",
    pb.LOG_BASE_2: "2",
    pb.LOG_BASE_10: "10",
    pb.LOG_BASE_1_0001: "1.0001",
    pb.LOG_BASE_BYTELOG: "bytelog",
}
DEGRADATIONS: Mapping[int, str] = {
    pb.DEGRADATION_NGRAM: "ngram",
    pb.DEGRADATION_FIRST_PASS: "first_pass",
    pb.DEGRADATION_LENGTH: LENGTH,
}
SIGNS: Mapping[int, Sign] = {pb.SCORE_SIGN_LOG_PROB: "log_prob", pb.SCORE_SIGN_COST: "cost"}


def list_from_proto(message: pb.NBestList) -> NBestList:
    """Convert a list; its streams are converted to nats.

    Raises:
        InvalidList: the base or sign of a stream is not declared, its name is empty or repeated, or a
            value is not a finite number.
    """
    streams: dict[str, tuple[float, ...]] = {}
    for index, stream in enumerate(message.streams):
        name = stream.name
        if not name or name in streams:
            reason = f"duplicate name {quote(name)}" if name else "empty; expected the name of the stream"
            raise InvalidList(reason, list_id=message.id, field=f"streams[{index}].name")
        field = f'streams["{name}"]'
        units = Units(
            _check_declared(BASES, stream.base, pb.LogBase, message.id, f"{field}.base"),
            _check_declared(SIGNS, stream.sign, pb.ScoreSign, message.id, f"{field}.sign"),
        )
        streams[name] = stream_to_nats(name, stream.values, units, list_id=message.id, field=field) or ()
    hypotheses = tuple(
        Hypothesis(hypothesis.text, _fields(hypothesis), hypothesis.partial)
        for hypothesis in message.hypotheses
    )
    previous = tuple(
        Utterance(part.text, part.speaker, part.confidence if part.HasField("confidence") else 1.0)
        for part in message.previous
    )
    fields = _fields(message)
    phrases = phrases_from_proto(message.phrases)
    return NBestList(
        message.id, hypotheses, streams, message.context, fields=fields, previous=previous, phrases=phrases
    )


def phrases_from_proto(messages: Iterable[pb.Phrase]) -> tuple[Phrase, ...]:
    """Convert phrases. Their weights are not checked here, but when the phrases are compiled."""
    return tuple(
        Phrase(part.text, part.weight if part.HasField("weight") else 1.0, tuple(part.spellings), part.slot)
        for part in messages
    )


def phrases_to_proto(phrases: Iterable[Phrase]) -> list[pb.Phrase]:
    """Convert phrases for sending; raises TypeError or ValueError if a phrase cannot be sent."""
    return [
        pb.Phrase(text=part.text, weight=part.weight, spellings=part.spellings, slot=part.slot)
        for part in phrases
    ]


def _fields(message: pb.NBestList | pb.Hypothesis) -> Any:
    """Return the user-defined fields as the ``Struct`` of the message, which can be read like a mapping."""
    return message.fields if message.HasField("fields") else {}


def _check_declared(known: Mapping[int, Unit], value: int, enum: Any, list_id: str, field: str) -> Unit:
    if value in known:
        return known[value]
    names = ", ".join(enum.Name(number) for number in known)
    reason = f"unknown value {value}" if value else "not declared"
    raise InvalidList(f"{reason}; expected one of {names}", list_id=list_id, field=field)


def list_to_proto(nbest: NBestList) -> pb.NBestList:
    """Convert a list for sending. Scores are sent in nats; user-defined fields are not sent.

    Raises:
        InvalidList: a value has the wrong type, a text has characters that UTF-8 cannot encode, or a score
            is too large.
    """
    check_types(nbest)
    try:
        return pb.NBestList(
            id=nbest.id,
            hypotheses=[
                pb.Hypothesis(text=hypothesis.text, partial=hypothesis.partial)
                for hypothesis in nbest.hypotheses
            ],
            streams=[
                pb.ScoreStream(name=name, base=pb.LOG_BASE_E, sign=pb.SCORE_SIGN_LOG_PROB, values=values)
                for name, values in nbest.streams.items()
            ],
            context=nbest.context,
            previous=[
                pb.Utterance(text=part.text, speaker=part.speaker, confidence=part.confidence)
                for part in nbest.previous
            ],
            phrases=phrases_to_proto(nbest.phrases),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidList(f"cannot be sent: {error}", list_id=nbest.id) from None


def write_ranking(ranking: Ranking, message: pb.RescoredList) -> None:
    """Write a ranked list to a message that has at most a degradation, with the status OK."""
    nbest = ranking.nbest
    message.id = nbest.id
    message.status.SetInParent()
    message.dropped_ranks.extend(i + 1 for i in ranking.dropped)
    message.previous_unread_by.extend(ranking.previous_unread_by)
    if ranking.degradation and not message.degradation:
        message.degradation = pb.DEGRADATION_LENGTH
    if nbest.fields:
        message.fields.CopyFrom(nbest.fields)  # type: ignore[arg-type]  # the request's Struct
    totals, log_posteriors = ranking.totals.tolist(), ranking.log_posteriors.tolist()
    errors = None if ranking.expected_errors is None else ranking.expected_errors.tolist()
    columns = [values.tolist() for values in ranking.components.values()]
    names, rows = list(ranking.components), list(zip(*columns, strict=True))
    for rank, i in enumerate(ranking.order, start=1):
        hypothesis = nbest.hypotheses[i]
        message.hypotheses.add(
            text=hypothesis.text,
            rank=rank,
            original_rank=i + 1,
            total=totals[i],
            log_posterior=log_posteriors[i],
            components=dict(zip(names, rows[i], strict=True)),
            merged_ranks=[member + 1 for member in ranking.members[i]],
            fields=_to_struct(hypothesis.fields),
            generated=_generated_to_proto(made) if (made := hypothesis.generated) else None,
            expected_errors=None if errors is None else errors[i],
        )
    for consensus_word in ranking.consensus:
        message.consensus.add(**asdict(consensus_word))
    if ranking.consensus_position is not None:
        message.consensus_rank = ranking.consensus_position + 1
    if ranking.confidence is not None:
        message.hypotheses[0].confidence = ranking.confidence
    for word in ranking.word_confidences:
        message.hypotheses[0].word_confidences.add(word=word.word, confidence=word.confidence)


def rescored_from_proto(
    message: pb.RescoredList, sent: NBestList, weights: Weights, model: str, decision: DecisionRule = MAXIMUM
) -> RescoredList:
    """Convert a rescored list. User-defined fields, which the server did not get, are copied from ``sent``.

    Args:
        decision: the rule in the response. It was not applied if the list has the order of the first pass.
    """
    hypotheses = tuple(
        RescoredHypothesis(
            text=hypothesis.text,
            original_rank=hypothesis.original_rank - 1,
            total=hypothesis.total,
            log_posterior=hypothesis.log_posterior,
            components=dict(sorted(hypothesis.components.items())),
            merged_ranks=tuple(rank - 1 for rank in hypothesis.merged_ranks),
            fields=_fields_as_sent(hypothesis, sent),
            confidence=_optional(hypothesis, "confidence"),
            word_confidences=tuple(
                WordConfidence(word.word, _optional(word, "confidence"))
                for word in hypothesis.word_confidences
            ),
            expected_errors=_optional(hypothesis, "expected_errors"),
            generated=_optional(hypothesis, "generated", _generated_from_proto),
        )
        for hypothesis in message.hypotheses
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
        tuple(rank - 1 for rank in message.dropped_ranks),
        None if message.degradation == pb.DEGRADATION_FIRST_PASS else decision,
        tuple(
            ConsensusWord(
                word.word,
                word.posterior,
                _optional(word, "start_s"),
                _optional(word, "duration_s"),
                word.text,
            )
            for word in message.consensus
        ),
        message.consensus_rank - 1 if message.consensus_rank else None,
        sent.previous,
        tuple(message.previous_unread_by),
    )


def _optional(message: Any, field: str, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return the value of a field; None if it is absent."""
    return convert(getattr(message, field)) if message.HasField(field) else None


def _to_struct(fields: Mapping[str, Any]) -> Struct | None:
    """Convert user-defined fields to a ``Struct``, unless they are one already, copied from the request."""
    if isinstance(fields, Struct) or not fields:
        return fields or None  # type: ignore[return-value]  # the request's Struct
    struct = Struct()
    struct.update(dict(fields))
    return struct


GENERATED_FIELDS = ("heard", "phrase", "distance", "phones")


def _generated_to_proto(made: Generated) -> pb.Generated:
    return pb.Generated(
        source_rank=made.source + 1,
        first_word=made.start + 1,
        last_word=made.end,
        further=map(_generated_to_proto, made.further),
        **{name: getattr(made, name) for name in GENERATED_FIELDS},
    )


def _generated_from_proto(made: pb.Generated) -> Generated:
    return Generated(
        source=made.source_rank - 1,
        start=made.first_word - 1,
        end=made.last_word,
        further=tuple(map(_generated_from_proto, made.further)),
        **{name: getattr(made, name) for name in GENERATED_FIELDS},
    )


def _fields_as_sent(message: pb.RescoredHypothesis, sent: NBestList) -> Mapping[str, Any]:
    """Return the user-defined fields of a hypothesis from the list ``sent``. Those of a generated hypothesis
    are made from the fields of the hypothesis that it was generated from."""
    if not message.HasField("generated"):
        return sent.hypotheses[message.original_rank - 1].fields
    made = _generated_from_proto(message.generated)
    source = sent.hypotheses[made.source]
    from rescorer.candidates import replace_spans  # imports numpy

    return replace_spans(source.text, source.fields, made)[1]


def text_score_to_proto(score: TextScore) -> pb.TextScore:
    log_probs = {name: pb.WordLogProbs(values=values) for name, values in score.log_probs.items()}
    return pb.TextScore(text=score.text, words=score.words, log_probs=log_probs, unknown=score.unknown)


def text_score_from_proto(message: pb.TextScore) -> TextScore:
    return TextScore(
        text=message.text,
        words=tuple(message.words),
        log_probs={name: tuple(words.values) for name, words in sorted(message.log_probs.items())},
        unknown=tuple(message.unknown),
    )

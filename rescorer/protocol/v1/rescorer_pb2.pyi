from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogBase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG_BASE_UNSPECIFIED: _ClassVar[LogBase]
    LOG_BASE_E: _ClassVar[LogBase]
    LOG_BASE_2: _ClassVar[LogBase]
    LOG_BASE_10: _ClassVar[LogBase]
    LOG_BASE_1_0001: _ClassVar[LogBase]
    LOG_BASE_BYTELOG: _ClassVar[LogBase]

class ScoreSign(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCORE_SIGN_UNSPECIFIED: _ClassVar[ScoreSign]
    SCORE_SIGN_LOG_PROB: _ClassVar[ScoreSign]
    SCORE_SIGN_COST: _ClassVar[ScoreSign]

class Fallback(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FALLBACK_UNSPECIFIED: _ClassVar[Fallback]
    FALLBACK_NGRAM: _ClassVar[Fallback]
    FALLBACK_FIRST_PASS: _ClassVar[Fallback]

class Degradation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEGRADATION_UNSPECIFIED: _ClassVar[Degradation]
    DEGRADATION_NGRAM: _ClassVar[Degradation]
    DEGRADATION_FIRST_PASS: _ClassVar[Degradation]
    DEGRADATION_LENGTH: _ClassVar[Degradation]

class DecisionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_KIND_UNSPECIFIED: _ClassVar[DecisionKind]
    DECISION_KIND_MAXIMUM: _ClassVar[DecisionKind]
    DECISION_KIND_MINIMUM_BAYES_RISK: _ClassVar[DecisionKind]
    DECISION_KIND_CONFUSION_NETWORK: _ClassVar[DecisionKind]

class ErrorUnit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_UNIT_UNSPECIFIED: _ClassVar[ErrorUnit]
    ERROR_UNIT_WORD: _ClassVar[ErrorUnit]
    ERROR_UNIT_CHARACTER: _ClassVar[ErrorUnit]
    ERROR_UNIT_MIXED: _ClassVar[ErrorUnit]
LOG_BASE_UNSPECIFIED: LogBase
LOG_BASE_E: LogBase
LOG_BASE_2: LogBase
LOG_BASE_10: LogBase
LOG_BASE_1_0001: LogBase
LOG_BASE_BYTELOG: LogBase
SCORE_SIGN_UNSPECIFIED: ScoreSign
SCORE_SIGN_LOG_PROB: ScoreSign
SCORE_SIGN_COST: ScoreSign
FALLBACK_UNSPECIFIED: Fallback
FALLBACK_NGRAM: Fallback
FALLBACK_FIRST_PASS: Fallback
DEGRADATION_UNSPECIFIED: Degradation
DEGRADATION_NGRAM: Degradation
DEGRADATION_FIRST_PASS: Degradation
DEGRADATION_LENGTH: Degradation
DECISION_KIND_UNSPECIFIED: DecisionKind
DECISION_KIND_MAXIMUM: DecisionKind
DECISION_KIND_MINIMUM_BAYES_RISK: DecisionKind
DECISION_KIND_CONFUSION_NETWORK: DecisionKind
ERROR_UNIT_UNSPECIFIED: ErrorUnit
ERROR_UNIT_WORD: ErrorUnit
ERROR_UNIT_CHARACTER: ErrorUnit
ERROR_UNIT_MIXED: ErrorUnit

class DecisionRule(_message.Message):
    __slots__ = ("kind", "unit", "temperature")
    KIND_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    kind: DecisionKind
    unit: ErrorUnit
    temperature: float
    def __init__(self, kind: _Optional[_Union[DecisionKind, str]] = ..., unit: _Optional[_Union[ErrorUnit, str]] = ..., temperature: _Optional[float] = ...) -> None: ...

class ScoreStream(_message.Message):
    __slots__ = ("name", "base", "sign", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    SIGN_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    base: LogBase
    sign: ScoreSign
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., base: _Optional[_Union[LogBase, str]] = ..., sign: _Optional[_Union[ScoreSign, str]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class Hypothesis(_message.Message):
    __slots__ = ("text", "fields", "partial")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    text: str
    fields: _struct_pb2.Struct
    partial: bool
    def __init__(self, text: _Optional[str] = ..., fields: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., partial: _Optional[bool] = ...) -> None: ...

class Utterance(_message.Message):
    __slots__ = ("text", "speaker", "confidence")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SPEAKER_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    text: str
    speaker: str
    confidence: float
    def __init__(self, text: _Optional[str] = ..., speaker: _Optional[str] = ..., confidence: _Optional[float] = ...) -> None: ...

class Phrase(_message.Message):
    __slots__ = ("text", "weight", "spellings", "slot")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SPELLINGS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    text: str
    weight: float
    spellings: _containers.RepeatedScalarFieldContainer[str]
    slot: str
    def __init__(self, text: _Optional[str] = ..., weight: _Optional[float] = ..., spellings: _Optional[_Iterable[str]] = ..., slot: _Optional[str] = ...) -> None: ...

class NBestList(_message.Message):
    __slots__ = ("id", "hypotheses", "streams", "context", "fields", "previous", "phrases")
    ID_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    PHRASES_FIELD_NUMBER: _ClassVar[int]
    id: str
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    streams: _containers.RepeatedCompositeFieldContainer[ScoreStream]
    context: str
    fields: _struct_pb2.Struct
    previous: _containers.RepeatedCompositeFieldContainer[Utterance]
    phrases: _containers.RepeatedCompositeFieldContainer[Phrase]
    def __init__(self, id: _Optional[str] = ..., hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., streams: _Optional[_Iterable[_Union[ScoreStream, _Mapping]]] = ..., context: _Optional[str] = ..., fields: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., previous: _Optional[_Iterable[_Union[Utterance, _Mapping]]] = ..., phrases: _Optional[_Iterable[_Union[Phrase, _Mapping]]] = ...) -> None: ...

class ConfidenceMap(_message.Message):
    __slots__ = ("temperature", "posteriors", "confidences")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    POSTERIORS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    posteriors: _containers.RepeatedScalarFieldContainer[float]
    confidences: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, temperature: _Optional[float] = ..., posteriors: _Optional[_Iterable[float]] = ..., confidences: _Optional[_Iterable[float]] = ...) -> None: ...

class Calibration(_message.Message):
    __slots__ = ("utterance", "word")
    UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    utterance: ConfidenceMap
    word: ConfidenceMap
    def __init__(self, utterance: _Optional[_Union[ConfidenceMap, _Mapping]] = ..., word: _Optional[_Union[ConfidenceMap, _Mapping]] = ...) -> None: ...

class Weights(_message.Message):
    __slots__ = ("name", "streams", "lm", "word", "oov", "mixture", "tuned_on", "decision", "calibration", "empty", "rerankers", "phrases", "generated", "sound_match", "cache", "neural_cache", "flatness", "components")
    class StreamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class LmEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class MixtureEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class RerankersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    LM_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    OOV_FIELD_NUMBER: _ClassVar[int]
    MIXTURE_FIELD_NUMBER: _ClassVar[int]
    TUNED_ON_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    RERANKERS_FIELD_NUMBER: _ClassVar[int]
    PHRASES_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    SOUND_MATCH_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    NEURAL_CACHE_FIELD_NUMBER: _ClassVar[int]
    FLATNESS_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    streams: _containers.ScalarMap[str, float]
    lm: _containers.ScalarMap[str, float]
    word: float
    oov: float
    mixture: _containers.ScalarMap[str, float]
    tuned_on: _containers.RepeatedScalarFieldContainer[str]
    decision: DecisionRule
    calibration: Calibration
    empty: float
    rerankers: _containers.ScalarMap[str, float]
    phrases: float
    generated: float
    sound_match: float
    cache: float
    neural_cache: float
    flatness: float
    components: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., streams: _Optional[_Mapping[str, float]] = ..., lm: _Optional[_Mapping[str, float]] = ..., word: _Optional[float] = ..., oov: _Optional[float] = ..., mixture: _Optional[_Mapping[str, float]] = ..., tuned_on: _Optional[_Iterable[str]] = ..., decision: _Optional[_Union[DecisionRule, _Mapping]] = ..., calibration: _Optional[_Union[Calibration, _Mapping]] = ..., empty: _Optional[float] = ..., rerankers: _Optional[_Mapping[str, float]] = ..., phrases: _Optional[float] = ..., generated: _Optional[float] = ..., sound_match: _Optional[float] = ..., cache: _Optional[float] = ..., neural_cache: _Optional[float] = ..., flatness: _Optional[float] = ..., components: _Optional[_Mapping[str, float]] = ...) -> None: ...

class RescoreRequest(_message.Message):
    __slots__ = ("lists", "weights", "weights_name", "merge", "model", "fallback", "drop_empty", "decision", "phrases", "phrase_lists", "generate")
    LISTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_NAME_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    DROP_EMPTY_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    PHRASES_FIELD_NUMBER: _ClassVar[int]
    PHRASE_LISTS_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    lists: _containers.RepeatedCompositeFieldContainer[NBestList]
    weights: Weights
    weights_name: str
    merge: bool
    model: str
    fallback: Fallback
    drop_empty: bool
    decision: DecisionRule
    phrases: _containers.RepeatedCompositeFieldContainer[Phrase]
    phrase_lists: _containers.RepeatedScalarFieldContainer[str]
    generate: bool
    def __init__(self, lists: _Optional[_Iterable[_Union[NBestList, _Mapping]]] = ..., weights: _Optional[_Union[Weights, _Mapping]] = ..., weights_name: _Optional[str] = ..., merge: _Optional[bool] = ..., model: _Optional[str] = ..., fallback: _Optional[_Union[Fallback, str]] = ..., drop_empty: _Optional[bool] = ..., decision: _Optional[_Union[DecisionRule, _Mapping]] = ..., phrases: _Optional[_Iterable[_Union[Phrase, _Mapping]]] = ..., phrase_lists: _Optional[_Iterable[str]] = ..., generate: _Optional[bool] = ...) -> None: ...

class RescoreResponse(_message.Message):
    __slots__ = ("lists", "weights", "model", "timing", "decision")
    LISTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    lists: _containers.RepeatedCompositeFieldContainer[RescoredList]
    weights: Weights
    model: str
    timing: Timing
    decision: DecisionRule
    def __init__(self, lists: _Optional[_Iterable[_Union[RescoredList, _Mapping]]] = ..., weights: _Optional[_Union[Weights, _Mapping]] = ..., model: _Optional[str] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., decision: _Optional[_Union[DecisionRule, _Mapping]] = ...) -> None: ...

class RescoreStreamRequest(_message.Message):
    __slots__ = ("lists", "weights", "weights_name", "merge", "model", "fallback", "drop_empty", "decision", "phrases", "phrase_lists", "generate")
    LISTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_NAME_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    DROP_EMPTY_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    PHRASES_FIELD_NUMBER: _ClassVar[int]
    PHRASE_LISTS_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    lists: _containers.RepeatedCompositeFieldContainer[NBestList]
    weights: Weights
    weights_name: str
    merge: bool
    model: str
    fallback: Fallback
    drop_empty: bool
    decision: DecisionRule
    phrases: _containers.RepeatedCompositeFieldContainer[Phrase]
    phrase_lists: _containers.RepeatedScalarFieldContainer[str]
    generate: bool
    def __init__(self, lists: _Optional[_Iterable[_Union[NBestList, _Mapping]]] = ..., weights: _Optional[_Union[Weights, _Mapping]] = ..., weights_name: _Optional[str] = ..., merge: _Optional[bool] = ..., model: _Optional[str] = ..., fallback: _Optional[_Union[Fallback, str]] = ..., drop_empty: _Optional[bool] = ..., decision: _Optional[_Union[DecisionRule, _Mapping]] = ..., phrases: _Optional[_Iterable[_Union[Phrase, _Mapping]]] = ..., phrase_lists: _Optional[_Iterable[str]] = ..., generate: _Optional[bool] = ...) -> None: ...

class RescoreStreamResponse(_message.Message):
    __slots__ = ("lists", "weights", "model", "timing", "decision")
    LISTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    lists: _containers.RepeatedCompositeFieldContainer[RescoredList]
    weights: Weights
    model: str
    timing: Timing
    decision: DecisionRule
    def __init__(self, lists: _Optional[_Iterable[_Union[RescoredList, _Mapping]]] = ..., weights: _Optional[_Union[Weights, _Mapping]] = ..., model: _Optional[str] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., decision: _Optional[_Union[DecisionRule, _Mapping]] = ...) -> None: ...

class RescoredList(_message.Message):
    __slots__ = ("id", "status", "hypotheses", "fields", "degradation", "dropped_ranks", "consensus", "consensus_rank", "previous_unread_by")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    DEGRADATION_FIELD_NUMBER: _ClassVar[int]
    DROPPED_RANKS_FIELD_NUMBER: _ClassVar[int]
    CONSENSUS_FIELD_NUMBER: _ClassVar[int]
    CONSENSUS_RANK_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_UNREAD_BY_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: _status_pb2.Status
    hypotheses: _containers.RepeatedCompositeFieldContainer[RescoredHypothesis]
    fields: _struct_pb2.Struct
    degradation: Degradation
    dropped_ranks: _containers.RepeatedScalarFieldContainer[int]
    consensus: _containers.RepeatedCompositeFieldContainer[ConsensusWord]
    consensus_rank: int
    previous_unread_by: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., hypotheses: _Optional[_Iterable[_Union[RescoredHypothesis, _Mapping]]] = ..., fields: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., degradation: _Optional[_Union[Degradation, str]] = ..., dropped_ranks: _Optional[_Iterable[int]] = ..., consensus: _Optional[_Iterable[_Union[ConsensusWord, _Mapping]]] = ..., consensus_rank: _Optional[int] = ..., previous_unread_by: _Optional[_Iterable[str]] = ...) -> None: ...

class ConsensusWord(_message.Message):
    __slots__ = ("word", "posterior", "start_s", "duration_s", "text")
    WORD_FIELD_NUMBER: _ClassVar[int]
    POSTERIOR_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    word: str
    posterior: float
    start_s: float
    duration_s: float
    text: str
    def __init__(self, word: _Optional[str] = ..., posterior: _Optional[float] = ..., start_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class RescoredHypothesis(_message.Message):
    __slots__ = ("text", "rank", "original_rank", "total", "log_posterior", "components", "merged_ranks", "fields", "confidence", "word_confidences", "expected_errors", "generated")
    class ComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_RANK_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOG_POSTERIOR_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    MERGED_RANKS_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    WORD_CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ERRORS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    text: str
    rank: int
    original_rank: int
    total: float
    log_posterior: float
    components: _containers.ScalarMap[str, float]
    merged_ranks: _containers.RepeatedScalarFieldContainer[int]
    fields: _struct_pb2.Struct
    confidence: float
    word_confidences: _containers.RepeatedCompositeFieldContainer[WordConfidence]
    expected_errors: float
    generated: Generated
    def __init__(self, text: _Optional[str] = ..., rank: _Optional[int] = ..., original_rank: _Optional[int] = ..., total: _Optional[float] = ..., log_posterior: _Optional[float] = ..., components: _Optional[_Mapping[str, float]] = ..., merged_ranks: _Optional[_Iterable[int]] = ..., fields: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., confidence: _Optional[float] = ..., word_confidences: _Optional[_Iterable[_Union[WordConfidence, _Mapping]]] = ..., expected_errors: _Optional[float] = ..., generated: _Optional[_Union[Generated, _Mapping]] = ...) -> None: ...

class Generated(_message.Message):
    __slots__ = ("source_rank", "first_word", "last_word", "heard", "phrase", "distance", "phones", "further")
    SOURCE_RANK_FIELD_NUMBER: _ClassVar[int]
    FIRST_WORD_FIELD_NUMBER: _ClassVar[int]
    LAST_WORD_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    PHRASE_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    PHONES_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    source_rank: int
    first_word: int
    last_word: int
    heard: str
    phrase: str
    distance: float
    phones: int
    further: _containers.RepeatedCompositeFieldContainer[Generated]
    def __init__(self, source_rank: _Optional[int] = ..., first_word: _Optional[int] = ..., last_word: _Optional[int] = ..., heard: _Optional[str] = ..., phrase: _Optional[str] = ..., distance: _Optional[float] = ..., phones: _Optional[int] = ..., further: _Optional[_Iterable[_Union[Generated, _Mapping]]] = ...) -> None: ...

class WordConfidence(_message.Message):
    __slots__ = ("word", "confidence")
    WORD_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    word: str
    confidence: float
    def __init__(self, word: _Optional[str] = ..., confidence: _Optional[float] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue_ms", "compute_ms", "phase_ms")
    class PhaseMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MS_FIELD_NUMBER: _ClassVar[int]
    PHASE_MS_FIELD_NUMBER: _ClassVar[int]
    queue_ms: float
    compute_ms: float
    phase_ms: _containers.ScalarMap[str, float]
    def __init__(self, queue_ms: _Optional[float] = ..., compute_ms: _Optional[float] = ..., phase_ms: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ScoreTextRequest(_message.Message):
    __slots__ = ("texts", "context", "weights", "weights_name", "model")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    context: str
    weights: Weights
    weights_name: str
    model: str
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., context: _Optional[str] = ..., weights: _Optional[_Union[Weights, _Mapping]] = ..., weights_name: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class ScoreTextResponse(_message.Message):
    __slots__ = ("scores", "weights", "model", "timing")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[TextScore]
    weights: Weights
    model: str
    timing: Timing
    def __init__(self, scores: _Optional[_Iterable[_Union[TextScore, _Mapping]]] = ..., weights: _Optional[_Union[Weights, _Mapping]] = ..., model: _Optional[str] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ...) -> None: ...

class TextScore(_message.Message):
    __slots__ = ("text", "words", "log_probs", "unknown")
    class LogProbsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: WordLogProbs
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[WordLogProbs, _Mapping]] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    text: str
    words: _containers.RepeatedScalarFieldContainer[str]
    log_probs: _containers.MessageMap[str, WordLogProbs]
    unknown: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, text: _Optional[str] = ..., words: _Optional[_Iterable[str]] = ..., log_probs: _Optional[_Mapping[str, WordLogProbs]] = ..., unknown: _Optional[_Iterable[bool]] = ...) -> None: ...

class WordLogProbs(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

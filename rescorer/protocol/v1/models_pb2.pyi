import datetime

from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from rescorer.protocol.v1 import rescorer_pb2 as _rescorer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_SERVING: _ClassVar[ModelState]
    MODEL_STATE_RETIRED: _ClassVar[ModelState]
    MODEL_STATE_REFUSED: _ClassVar[ModelState]
    MODEL_STATE_SHADOW: _ClassVar[ModelState]
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_SERVING: ModelState
MODEL_STATE_RETIRED: ModelState
MODEL_STATE_REFUSED: ModelState
MODEL_STATE_SHADOW: ModelState

class ModelSummary(_message.Message):
    __slots__ = ("model", "state", "reason", "is_default", "memory_bytes", "load_time", "missing_reason")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    MISSING_REASON_FIELD_NUMBER: _ClassVar[int]
    model: str
    state: ModelState
    reason: str
    is_default: bool
    memory_bytes: int
    load_time: _timestamp_pb2.Timestamp
    missing_reason: str
    def __init__(self, model: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., reason: _Optional[str] = ..., is_default: _Optional[bool] = ..., memory_bytes: _Optional[int] = ..., load_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., missing_reason: _Optional[str] = ...) -> None: ...

class LanguageModel(_message.Message):
    __slots__ = ("name", "kind", "vocabulary_size", "parameters", "backward")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    vocabulary_size: int
    parameters: int
    backward: bool
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., parameters: _Optional[int] = ..., backward: _Optional[bool] = ...) -> None: ...

class Measurement(_message.Message):
    __slots__ = ("name", "text", "tokens", "unknown_words", "perplexity")
    class PerplexityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_WORDS_FIELD_NUMBER: _ClassVar[int]
    PERPLEXITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    tokens: int
    unknown_words: int
    perplexity: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[int] = ..., unknown_words: _Optional[int] = ..., perplexity: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("summary", "language_models", "measurements", "weights", "normaliser", "training", "files", "rerankers")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_MODELS_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    NORMALISER_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    RERANKERS_FIELD_NUMBER: _ClassVar[int]
    summary: ModelSummary
    language_models: _containers.RepeatedCompositeFieldContainer[LanguageModel]
    measurements: _containers.RepeatedCompositeFieldContainer[Measurement]
    weights: _containers.RepeatedCompositeFieldContainer[_rescorer_pb2.Weights]
    normaliser: _struct_pb2.Struct
    training: _struct_pb2.Struct
    files: _containers.ScalarMap[str, str]
    rerankers: _containers.RepeatedCompositeFieldContainer[Reranker]
    def __init__(self, summary: _Optional[_Union[ModelSummary, _Mapping]] = ..., language_models: _Optional[_Iterable[_Union[LanguageModel, _Mapping]]] = ..., measurements: _Optional[_Iterable[_Union[Measurement, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[_rescorer_pb2.Weights, _Mapping]]] = ..., normaliser: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., training: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., files: _Optional[_Mapping[str, str]] = ..., rerankers: _Optional[_Iterable[_Union[Reranker, _Mapping]]] = ...) -> None: ...

class Reranker(_message.Message):
    __slots__ = ("name", "features", "streams", "hidden_units", "members", "transformer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_UNITS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TRANSFORMER_FIELD_NUMBER: _ClassVar[int]
    name: str
    features: _containers.RepeatedScalarFieldContainer[str]
    streams: _containers.RepeatedScalarFieldContainer[str]
    hidden_units: int
    members: int
    transformer: Transformer
    def __init__(self, name: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., streams: _Optional[_Iterable[str]] = ..., hidden_units: _Optional[int] = ..., members: _Optional[int] = ..., transformer: _Optional[_Union[Transformer, _Mapping]] = ...) -> None: ...

class Transformer(_message.Message):
    __slots__ = ("layers", "width", "heads", "encoder", "encoding_size")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    ENCODING_SIZE_FIELD_NUMBER: _ClassVar[int]
    layers: int
    width: int
    heads: int
    encoder: str
    encoding_size: int
    def __init__(self, layers: _Optional[int] = ..., width: _Optional[int] = ..., heads: _Optional[int] = ..., encoder: _Optional[str] = ..., encoding_size: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelSummary]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelSummary, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

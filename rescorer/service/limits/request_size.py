"""Check requests against the configured limits before any costly work is done for them."""

from __future__ import annotations

from itertools import chain

from rescorer.errors import LimitExceeded
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.settings import ServiceSettings


def check_request(request: pb.RescoreRequest | pb.RescoreStreamRequest, settings: ServiceSettings) -> None:
    """Raise LimitExceeded if a request has too many lists or phrases, or a name that is too long."""
    _check_count(len(request.lists), "lists", settings, "max_lists")
    phrases = chain(request.phrases, *(nbest.phrases for nbest in request.lists))
    n_phrases = sum(1 + len(phrase.spellings) for phrase in phrases)
    _check_count(n_phrases, "phrases", settings, "max_phrases")
    _check_names(request, settings.max_name_chars)
    for index, name in enumerate(request.phrase_lists):
        _check_name(name, settings.max_name_chars, f"phrase_lists[{index}]")


def check_list(nbest: pb.NBestList, settings: ServiceSettings) -> None:
    """Raise LimitExceeded if a list has too many hypotheses, one of its texts too many words, or
    if its id or the name of a stream is too long."""
    _check_count(len(nbest.hypotheses), "hypotheses", settings, "max_hypotheses")
    _check_name(nbest.id, settings.max_name_chars, "id")
    for index, stream in enumerate(nbest.streams):
        _check_name(stream.name, settings.max_name_chars, f"streams[{index}].name")
    for index, hypothesis in enumerate(nbest.hypotheses):
        _check_words(hypothesis.text, settings.max_words, f"hypotheses[{index}].text")
    _check_words(nbest.context, settings.max_words, "context")
    for index, utterance in enumerate(nbest.previous):
        _check_words(utterance.text, settings.max_words, f"previous[{index}].text")
        _check_name(utterance.speaker, settings.max_name_chars, f"previous[{index}].speaker")


def check_texts(request: pb.ScoreTextRequest, settings: ServiceSettings) -> None:
    """Raise LimitExceeded if a request has too many texts, one of them too many words, or too long a name."""
    _check_count(len(request.texts), "texts", settings, "max_hypotheses")
    _check_names(request, settings.max_name_chars)
    for index, text in enumerate(request.texts):
        _check_words(text, settings.max_words, f"texts[{index}]")
    _check_words(request.context, settings.max_words, "context")


def _check_count(count: int, field: str, settings: ServiceSettings, setting: str) -> None:
    limit = getattr(settings, setting)
    if count > limit:
        raise LimitExceeded(f"{count} {field}; expected at most {limit} ({setting})", field=field)


def _check_names(
    request: pb.RescoreRequest | pb.RescoreStreamRequest | pb.ScoreTextRequest, limit: int
) -> None:
    """Check the names of the model and of the weights."""
    _check_name(request.model, limit, "model")
    _check_name(request.weights_name, limit, "weights_name")
    if request.HasField("weights"):
        weights = request.weights
        _check_name(weights.name, limit, "weights.name")
        for field in ("streams", "lm", "mixture", "rerankers", "components", "tuned_on"):
            for name in getattr(weights, field):
                _check_name(name, limit, f"a name in weights.{field}")


def _check_name(name: str, limit: int, field: str) -> None:
    if len(name) > limit:
        raise LimitExceeded(f"{len(name)} characters; expected at most {limit} (max_name_chars)", field=field)


def _check_words(text: str, limit: int, field: str) -> None:
    if 2 * len(text) <= limit:  # the usual case, decided quickly: no character counts more than twice
        return
    # The normaliser may split words at hyphens and underscores: count them too, so that a long token cannot
    # get around the limit.
    words = len(text.split()) + text.count("-") + text.count("_")
    if words > limit:
        raise LimitExceeded(f"{words} words; expected at most {limit} (max_words)", field=field)

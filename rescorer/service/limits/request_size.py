"""Check requests against the configured limits before any costly work is done for them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from google.protobuf.struct_pb2 import Value

from rescorer.errors import LimitExceeded
from rescorer.phrases.finder import check_set_names
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.settings import ServiceSettings

NAMES_OF_WEIGHTS = ("streams", "lm", "mixture", "rerankers", "components", "tuned_on")
"""Fields of weights that are, or have, names."""
MAX_WEIGHT_NAMES = 131_072
"""Largest number of all these names, of which the fingerprints of the tuning lists are the most."""


def check_request(request: pb.RescoreRequest | pb.RescoreStreamRequest, settings: ServiceSettings) -> None:
    """Raise LimitExceeded if a request has too many elements in a repeated field, or a name that is too long.

    A message of a few megabytes can have millions of empty elements, which take far more memory and time than
    its size suggests. So they are counted before any of them is looked at.
    """
    _check_count(len(request.lists), "lists", settings, "max_lists")
    n_lists = settings.max_lists
    for field, setting in (("hypotheses", "max_hypotheses"), ("streams", "max_score_streams")):
        # a list with too many alone gets an error of its own, but the others wait with all of it in memory
        count = sum(len(getattr(nbest, field)) for nbest in request.lists)
        if count > (limit := n_lists * getattr(settings, setting)):
            expected = f"expected at most {limit} in {n_lists} lists ({setting}, max_lists)"
            raise LimitExceeded(f"{count} {field}; {expected}", field=field)
    n_previous = sum(len(nbest.previous) for nbest in request.lists)
    if n_previous > settings.max_previous:
        expected = f"expected at most {settings.max_previous} (max_previous); send the newest of each list"
        raise LimitExceeded(f"{n_previous} utterances; {expected}", field="previous")
    phrases = [request.phrases, *(nbest.phrases for nbest in request.lists)]
    n_phrases = sum(map(len, phrases))
    _check_count(n_phrases, "phrases", settings, "max_phrases")
    n_phrases += sum(len(phrase.spellings) for phrase in chain.from_iterable(phrases))
    _check_count(n_phrases, "phrases", settings, "max_phrases")
    check_set_names(request.phrase_lists)
    if (n_values := count_values(request, settings.max_field_values)) > settings.max_field_values:
        expected = f"expected at most {settings.max_field_values} (max_field_values)"
        raise LimitExceeded(f"at least {n_values} values in lists and hypotheses; {expected}", field="fields")
    _check_names(request, settings.max_name_chars)
    _check_each(request.phrase_lists, settings.max_name_chars, "phrase_lists[{}]")


def count_values(request: pb.RescoreRequest | pb.RescoreStreamRequest, limit: int) -> int:
    """Count the values in the clients' fields of lists and hypotheses, those within others too.

    Counting ends as soon as there are more than the limit.
    """
    hypotheses = chain.from_iterable(nbest.hypotheses for nbest in request.lists)
    owners: Iterable[pb.NBestList | pb.Hypothesis] = chain(request.lists, hypotheses)
    waiting: list[Iterable[Value]] = []
    count = 0
    for owner in owners:
        if owner.HasField("fields"):
            count += len(owner.fields.fields)
            waiting.append(owner.fields.fields.values())
        while waiting and count <= limit:
            for value in waiting.pop():
                kind = value.WhichOneof("kind")
                if kind == "struct_value":
                    count += len(value.struct_value.fields)
                    waiting.append(value.struct_value.fields.values())
                elif kind == "list_value":
                    count += len(value.list_value.values)
                    waiting.append(value.list_value.values)
        if count > limit:
            break
    return count


def check_list(nbest: pb.NBestList, settings: ServiceSettings) -> None:
    """Raise LimitExceeded if a list has too many hypotheses or streams, one of its texts too many words, or
    if its id or the name of a stream is too long."""
    _check_count(len(nbest.hypotheses), "hypotheses", settings, "max_hypotheses")
    _check_count(len(nbest.streams), "streams", settings, "max_score_streams")
    _check_name(nbest.id, settings.max_name_chars, "id")
    names, texts = settings.max_name_chars, settings.max_words
    _check_each((stream.name for stream in nbest.streams), names, "streams[{}].name")
    _check_texts((hypothesis.text for hypothesis in nbest.hypotheses), texts, "hypotheses[{}].text")
    _check_words(nbest.context, texts, "context")
    _check_texts((utterance.text for utterance in nbest.previous), texts, "previous[{}].text")
    _check_each((utterance.speaker for utterance in nbest.previous), names, "previous[{}].speaker")


def check_texts(request: pb.ScoreTextRequest, settings: ServiceSettings) -> None:
    """Raise LimitExceeded if a request has too many texts, one of them too many words, or too long a name."""
    _check_count(len(request.texts), "texts", settings, "max_hypotheses")
    _check_names(request, settings.max_name_chars)
    _check_texts(request.texts, settings.max_words, "texts[{}]")
    _check_words(request.context, settings.max_words, "context")


def _check_count(count: int, field: str, settings: ServiceSettings, setting: str) -> None:
    limit = getattr(settings, setting)
    if count > limit:
        raise LimitExceeded(f"{count} {field}; expected at most {limit} ({setting})", field=field)


def _check_names(
    request: pb.RescoreRequest | pb.RescoreStreamRequest | pb.ScoreTextRequest, limit: int
) -> None:
    """Check the names of the model and of the weights."""
    n_names = sum(len(getattr(request.weights, field)) for field in NAMES_OF_WEIGHTS)
    if n_names > MAX_WEIGHT_NAMES:
        raise LimitExceeded(f"{n_names} names; expected at most {MAX_WEIGHT_NAMES}", field="weights")
    _check_name(request.model, limit, "model")
    _check_name(request.weights_name, limit, "weights_name")
    if request.HasField("weights"):
        weights = request.weights
        _check_name(weights.name, limit, "weights.name")
        for field in NAMES_OF_WEIGHTS:
            _check_each(getattr(weights, field), limit, f"a name in weights.{field}")


def _check_name(name: str, limit: int, field: str) -> None:
    if len(name) > limit:
        raise LimitExceeded(f"{len(name)} characters; expected at most {limit} (max_name_chars)", field=field)


def _check_each(names: Iterable[str], limit: int, field: str) -> None:
    """Check names; ``field`` says where they are, with braces for the index."""
    for index, name in enumerate(names):
        if len(name) > limit:
            _check_name(name, limit, field.format(index))


def _check_texts(texts: Iterable[str], limit: int, field: str) -> None:
    """Check the words of texts; ``field`` says where they are, with braces for the index."""
    for index, text in enumerate(texts):
        if 2 * len(text) > limit:  # seldom; no character counts more than twice
            _check_words(text, limit, field.format(index))


def _check_words(text: str, limit: int, field: str) -> None:
    # The normaliser may split words at hyphens and underscores: count them too, so that a long token cannot
    # get around the limit.
    words = len(text.split()) + text.count("-") + text.count("_")
    if words > limit:
        raise LimitExceeded(f"{words} words; expected at most {limit} (max_words)", field=field)

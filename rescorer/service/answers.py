"""Owns the step from a request message to its response message: plain functions, run in the worker."""

from __future__ import annotations

from typing import TypeVar

from rescorer.errors import ConfigError, InputError, ModelNotFound
from rescorer.pipeline import Rescorer
from rescorer.service.convert import (
    list_from_proto,
    rescored_to_proto,
    text_score_to_proto,
    weights_from_proto,
    weights_to_proto,
)
from rescorer.service.faults import status_of
from rescorer.service.limits import check_list
from rescorer.service.settings import ServiceSettings
from rescorer.service.v1 import rescorer_pb2 as pb
from rescorer.types import Hypothesis, NBestList, Weights

RescoreAnswer = TypeVar("RescoreAnswer", pb.RescoreResponse, pb.RescoreStreamResponse)


class Answers:
    """Answers requests with one loaded bundle."""

    def __init__(self, rescorer: Rescorer, settings: ServiceSettings) -> None:
        self._rescorer = rescorer
        self._settings = settings

    def warm_up(self) -> None:
        """One real scoring, so that the first client does not pay for first-time work."""
        weights = self._rescorer.effective_weights(None)
        streams = dict.fromkeys(weights.streams, (0.0, 0.0))
        self._rescorer.rescore([NBestList("warm-up", (Hypothesis("warm up"), Hypothesis("")), streams)])

    def rescore(
        self, request: pb.RescoreRequest | pb.RescoreStreamRequest, response: RescoreAnswer
    ) -> RescoreAnswer:
        """Fills ``response`` with one answer a list.

        Raises:
            ConfigError: the weights do not fit the bundle.
            ModelNotFound: another model is asked for.
        """
        weights = self._weights(request)
        lists: list[NBestList | InputError] = [self._list(message) for message in request.lists]
        good = [each for each in lists if isinstance(each, NBestList)]
        rescored = iter(self._rescorer.rescore_each(good, weights, merge=request.merge))
        for index, (message, each) in enumerate(zip(request.lists, lists, strict=True)):
            answer = next(rescored) if isinstance(each, NBestList) else each
            if isinstance(answer, InputError):
                status = status_of(answer, path=f"lists[{index}]")
                response.lists.add(id=message.id, status=status)
                if message.HasField("fields"):
                    response.lists[index].fields.CopyFrom(message.fields)
            else:
                response.lists.append(rescored_to_proto(answer))
        response.weights.CopyFrom(weights_to_proto(weights))
        response.model = self._rescorer.bundle.label
        return response

    def score_text(self, request: pb.ScoreTextRequest) -> pb.ScoreTextResponse:
        """Raises as ``rescore`` does."""
        weights = self._weights(request)
        scores = self._rescorer.score_text(list(request.texts), request.context, weights)
        return pb.ScoreTextResponse(
            scores=[text_score_to_proto(each) for each in scores],
            weights=weights_to_proto(weights),
            model=self._rescorer.bundle.label,
        )

    def _list(self, message: pb.NBestList) -> NBestList | InputError:
        try:
            check_list(message, self._settings)
            return list_from_proto(message)
        except InputError as fault:
            return fault

    def _weights(self, request: pb.RescoreRequest | pb.RescoreStreamRequest | pb.ScoreTextRequest) -> Weights:
        """The weights that a request asks for, complete; also settles that its model is served."""
        bundle = self._rescorer.bundle
        if request.model not in ("", bundle.name, bundle.label):
            raise ModelNotFound(f"model {request.model!r} is not served; {bundle.label!r} is")
        weighting = request.WhichOneof("weighting")
        if weighting == "weights":
            return self._rescorer.effective_weights(weights_from_proto(request.weights))
        name = request.weights_name if weighting else "default"
        if name not in bundle.weights:
            have = ", ".join(sorted(bundle.weights))
            raise ConfigError(f"weights_name is {name!r}; the bundle has: {have}")
        return self._rescorer.effective_weights(bundle.weights[name])

"""Methods of ``ModelService`` (describe the loaded models) and ``AdminService`` (reload)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc

from rescorer.errors import MAX_QUOTED_CHARS, shorten
from rescorer.extensions.rerankers import needed_streams
from rescorer.protocol.messages import weights_to_proto
from rescorer.protocol.v1 import admin_pb2
from rescorer.protocol.v1 import models_pb2 as pb
from rescorer.protocol.v1.admin_pb2_grpc import AdminServiceServicer
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceServicer
from rescorer.reranking.reranker import Reranker
from rescorer.reranking.transformer import TransformerEnsemble
from rescorer.service.api.reload import Reloader
from rescorer.service.api.shadow import Shadow
from rescorer.service.models.repository import ModelRepository
from rescorer.service.models.versions import Version

MODEL_SERVICE = pb.DESCRIPTOR.services_by_name["ModelService"].full_name
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name


class ModelService(ModelServiceServicer):
    """Describe models from memory, without waiting for the queue or the disk.

    Args:
        shadow: the bundle that is compared with the default model, if any.
    """

    def __init__(self, repository: ModelRepository, shadow: Shadow | None = None) -> None:
        self._repository, self._shadow = repository, shadow

    async def ListModels(  # noqa: N802 (the name in the proto)
        self, request: pb.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListModelsResponse:
        models = [self._summarise(version) for version in self._repository.versions]
        models.sort(key=lambda summary: (summary.state, not summary.is_default, summary.model))
        models += self._summarise_refused(self._repository)
        if self._shadow is not None:
            shadow = self._shadow.models
            models += [self._summarise(version, shadow=True) for version in shadow.versions]
            models += self._summarise_refused(shadow)
        return pb.ListModelsResponse(models=models)

    async def GetModel(  # noqa: N802
        self, request: pb.GetModelRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetModelResponse:
        version = self._repository.version(request.model)
        manifest = version.bundle.manifest
        model = pb.Model(
            summary=self._summarise(version),
            language_models=[
                pb.LanguageModel(
                    name=facts.name,
                    kind=facts.kind,
                    vocabulary_size=facts.vocabulary_size,
                    parameters=facts.parameters,
                    backward=facts.backward,
                )
                for facts in version.facts
            ],
            measurements=read_measurements(manifest.get("measured", {})),
            weights=[weights_to_proto(weights) for weights in version.bundle.weights.values()],
            files=manifest["files"],
            rerankers=[
                describe_reranker(reranker, needed_streams(version.ranker.bundle, reranker))
                for reranker in version.bundle.rerankers.values()
            ],
        )
        model.normaliser.update(json.loads(version.bundle.normaliser.settings.to_json()))
        if isinstance(manifest.get("training"), Mapping):
            model.training.update(manifest["training"])
        return pb.GetModelResponse(model=model)

    def _summarise_refused(self, repository: ModelRepository) -> Iterator[pb.ModelSummary]:
        for label, reason in sorted(repository.refused.items()):
            yield pb.ModelSummary(model=label, state=pb.MODEL_STATE_REFUSED, reason=reason)

    def _summarise(self, version: Version, *, shadow: bool = False) -> pb.ModelSummary:
        state = pb.MODEL_STATE_SHADOW if shadow else pb.MODEL_STATE_SERVING
        summary = pb.ModelSummary(
            model=version.label,
            state=pb.MODEL_STATE_RETIRED if version.retired else state,
            is_default=self._repository.is_default(version),
            memory_bytes=version.memory_bytes,
            missing_reason="" if shadow else self._repository.missing.get(version.label, ""),
        )
        summary.load_time.FromMilliseconds(round(version.loaded_at * 1e3))
        return summary


def describe_reranker(reranker: Reranker, streams: Sequence[str]) -> pb.Reranker:
    """Describe a reranker, which needs some score streams."""
    ensemble, encoder = reranker.ensemble, reranker.encoder
    transformer = None
    if isinstance(ensemble, TransformerEnsemble):
        sizes = ensemble.sizes
        transformer = pb.Transformer(
            layers=sizes.layers,
            width=sizes.width,
            heads=sizes.heads,
            encoder="" if encoder is None else encoder.model,
            encoding_size=sizes.encoding,
        )
    return pb.Reranker(
        name=reranker.name,
        features=reranker.features,
        streams=streams,
        hidden_units=ensemble.hidden_units,
        members=ensemble.members,
        transformer=transformer,
    )


def read_measurements(measured: Any) -> Iterator[pb.Measurement]:
    """Yield the perplexities in a manifest's measurements; other entries and odd values are ignored."""
    if not isinstance(measured, Mapping):
        return
    for name, entry in measured.items():
        if isinstance(entry, Mapping) and isinstance(entry.get("perplexity"), Mapping):
            yield pb.Measurement(
                name=name,
                text=shorten(str(entry.get("text", "")), MAX_QUOTED_CHARS),
                tokens=read_count(entry.get("tokens")),
                unknown_words=read_count(entry.get("unknown_words")),
                perplexity={
                    model: value
                    for model, value in entry["perplexity"].items()
                    if type(value) in (int, float) and math.isfinite(value)
                },
            )


def read_count(value: Any) -> int:
    """Return a value of a manifest if it is a count, else 0 for not known."""
    return value if type(value) is int and 0 <= value < 1 << 63 else 0


class AdminService(AdminServiceServicer):
    """Administer the server; ``AuthInterceptor`` admits only callers with the role ``admin``."""

    def __init__(self, reloader: Reloader) -> None:
        self._reloader = reloader

    async def Reload(  # noqa: N802 (the name in the proto)
        self, request: admin_pb2.ReloadRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.ReloadResponse:
        return admin_pb2.ReloadResponse(**vars(await self._reloader.reload_all()))

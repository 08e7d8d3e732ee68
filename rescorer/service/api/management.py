"""Methods of ``ModelService`` and ``AdminService``, reloading, and the gRPC health service (grpc.health.v1).

The health service is our own, because that of grpcio-health-checking holds a lock while it writes to a
watching client: one client that does not read makes all later watches hang, and the server's shutdown too.
Here every watch compares the current status with the status that it has sent last, without a lock. A slow
reader misses the states in between.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
import structlog
from grpc_health.v1.health_pb2 import (  # type: ignore[attr-defined]  # the stubs lack List
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)
from grpc_health.v1.health_pb2_grpc import HealthServicer

from rescorer.errors import MAX_QUOTED_CHARS, ConfigError, Overloaded, RescorerError, shorten
from rescorer.extensions import needed_streams
from rescorer.protocol.messages import LIVENESS, MISSING_MODELS, encode_missing_models, weights_to_proto
from rescorer.protocol.v1 import admin_pb2
from rescorer.protocol.v1 import models_pb2 as pb
from rescorer.protocol.v1.admin_pb2_grpc import AdminServiceServicer
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceServicer
from rescorer.reranking.networks import TransformerSizes
from rescorer.reranking.reranker import Reranker
from rescorer.service.access import Authenticator
from rescorer.service.api.shadow import Shadow
from rescorer.service.engine.client_limits import StreamSlots
from rescorer.service.repository import Changes, ModelRepository, Version
from rescorer.service.settings import ServiceSettings

log = structlog.get_logger()

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


class Health(HealthServicer):
    """One status for the whole server, under several names; NOT_SERVING until it is set.

    Args:
        names: service names that clients may ask for, besides ``LIVENESS``.
        watches: limits the number of open watches.
    """

    def __init__(self, names: Sequence[str], watches: StreamSlots) -> None:
        self._names = (*names, LIVENESS)
        self._watches = watches
        self._status: int = NOT_SERVING
        self._shutting_down = False
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved and replaced by another future whenever the status changes."""
        self.missing_models: tuple[str, ...] = ()
        """Models that are served from memory, but missing on disk; ``Check`` sends them as metadata."""

    def set(self, status: int) -> None:
        """Set the status; ignored after ``begin_shutdown``."""
        if self._shutting_down or status == self._status:
            return
        self._status = status
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    def begin_shutdown(self) -> None:
        """Report NOT_SERVING from now on."""
        self.set(NOT_SERVING)
        self._shutting_down = True

    def _read(self, name: str) -> int:
        return SERVING if name == LIVENESS else self._status

    async def Check(  # type: ignore[override]  # noqa: N802 (the name in the proto; the stubs know threads only)
        self, request: HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> HealthCheckResponse:
        if request.service not in self._names:
            names = " or ".join(map(repr, self._names))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service; expected {names}")
        if self.missing_models:
            missing = encode_missing_models(self.missing_models)
            context.set_trailing_metadata(((MISSING_MODELS, missing),))
        return HealthCheckResponse(status=self._read(request.service))

    async def List(  # noqa: N802
        self, request: HealthListRequest, context: grpc.aio.ServicerContext
    ) -> HealthListResponse:
        statuses = {name: HealthCheckResponse(status=self._read(name)) for name in self._names}
        return HealthListResponse(statuses=statuses)

    async def Watch(  # type: ignore[override]  # noqa: N802
        self, request: HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[HealthCheckResponse]:
        """Send the status, and again whenever it has changed; for an unknown name, SERVICE_UNKNOWN once."""
        try:
            with self._watches.hold(context.peer()) as slot:
                known, sent = request.service in self._names, None
                while not slot.revoked.done():
                    changed = self._changed
                    status = self._read(request.service) if known else HealthCheckResponse.SERVICE_UNKNOWN
                    if status != sent:
                        yield HealthCheckResponse(status=status)
                        sent = status
                        continue  # it may have changed while it was written
                    await asyncio.wait((changed, slot.revoked), return_when=asyncio.FIRST_COMPLETED)
            raise Overloaded("this watch had to end in favour of another client's; try again later")
        except Overloaded as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))


class Reloader:
    """Reloads files that changed on disk. If a file is unusable, this is reported, and its old content stays.

    Args:
        settings: the settings that the server started with.
        read_settings: reads the settings from their sources again; None: the settings cannot change.
        on_reloaded: called after a reload that was requested or that changed something.
        shadow: the shadow, if any, whose bundle is reloaded too.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        repository: ModelRepository,
        authenticator: Authenticator,
        read_settings: Callable[[], ServiceSettings] | None = None,
        on_reloaded: Callable[[Changes], None] = lambda changes: None,
        shadow: Shadow | None = None,
    ) -> None:
        self._settings, self._read_settings = settings, read_settings
        self._on_reloaded, self._shadow = on_reloaded, shadow
        self._repository, self._authenticator = repository, authenticator
        self._refused_files: dict[str, str] = {}
        self._reloading: set[asyncio.Task[Changes]] = set()
        self.others: Callable[[], Awaitable[None]] | None = None
        """Reloads the other front ends of the server and waits for them; None: there are no others."""

    async def reload_all(self) -> Changes:
        """Reload all front ends and return the changes of this one."""
        if self.others is None:
            return await self.reload()
        changes, _ = await asyncio.gather(self.reload(), self.others())
        return changes

    async def reload(self, *, retry_refused: bool = True) -> Changes:
        """Reload, and return the changes; unusable files are in ``Changes.refused``.

        Args:
            retry_refused: whether to retry bundles that were refused and have not changed since.
        """
        refused = await self._reload_files()
        try:
            changes = await self._repository.reload(again=retry_refused)
        except RescorerError as error:  # no bundle is served yet
            changes = Changes(refused={"models": self._repository.reason(error)})
        changes.refused |= refused
        if self._shadow is not None:
            self._shadow.reload(retry_refused=retry_refused)
        if changes or retry_refused:
            self._on_reloaded(changes)
            log.info("reloaded", **vars(changes))
        return changes

    def request_reload(self) -> None:
        """Reload in the background; for signal handlers, which cannot wait."""
        task = asyncio.get_running_loop().create_task(self.reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def poll(self) -> None:
        """Look for changes every ``poll_s`` seconds, for ever."""
        while True:
            await asyncio.sleep(self._settings.poll_s)
            try:
                await self.reload(retry_refused=False)
            except Exception as error:  # otherwise this would be the last look
                log.error("looking for changes failed", exc_info=error)

    async def _reload_files(self) -> dict[str, str]:
        """Read settings and clients again. Return the reason why each is refused, and log new reasons."""
        refused: dict[str, str] = {}
        for name, read in (("settings", self._reload_settings), ("access", self._authenticator.reload)):
            try:
                await asyncio.to_thread(read)
            except ConfigError as error:
                refused[name] = reason = str(error)
                if reason != self._refused_files.get(name):
                    log.error("a file is refused, its former content stays in use", file=name, error=reason)
        self._refused_files = refused
        return refused

    def _reload_settings(self) -> None:
        if self._read_settings is not None:
            settings = self._read_settings()
            self._repository.models = settings.models
            changed = {name for name, value in settings if value != getattr(self._settings, name)} - {
                "models"
            }
            if changed:
                log.warning("changed settings need a restart", settings=sorted(changed))


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
    """Describe a reranker; ``streams`` are the score streams that it needs."""
    sizes, encoder = reranker.ensemble.sizes, reranker.encoder
    transformer = None
    if isinstance(sizes, TransformerSizes):
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
        hidden_units=sizes.units,
        members=reranker.ensemble.members,
        transformer=transformer,
    )


def read_measurements(measured: Any) -> Iterator[pb.Measurement]:
    """Yield the perplexities in a manifest's measurements. Other entries and wrong values are ignored."""
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
    """Return a value of a manifest if it is a count; else 0, which means unknown."""
    return value if type(value) is int and 0 <= value < 1 << 63 else 0


class AdminService(AdminServiceServicer):
    """Administer the server; ``CallInterceptor`` admits only callers with the role ``admin``."""

    def __init__(self, reloader: Reloader) -> None:
        self._reloader = reloader

    async def Reload(  # noqa: N802 (the name in the proto)
        self, request: admin_pb2.ReloadRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.ReloadResponse:
        return admin_pb2.ReloadResponse(**vars(await self._reloader.reload_all()))

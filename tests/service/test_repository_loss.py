"""A repository whose versions vanish: what is loaded keeps serving, and the loss is reported."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.cli import app
from rescorer.client import AsyncClient, Client
from rescorer.protocol.messages import (
    MAX_VALUE_CHARS,
    MISSING_MODELS,
    MORE,
    decode_missing_models,
    encode_missing_models,
)
from rescorer.protocol.v1 import models_pb2 as pb
from rescorer.protocol.v1 import rescorer_pb2
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from tests.support.prometheus import get_value, read_samples
from tests.support.repositories import add_version
from tests.support.servers import RunningServer, run_server, wait_until
from tests.support.stubs import SERVING, make_list_message
from tests.support.tiny_models import write_bundle

POLL_S = 0.05


def move_version(repository: Path) -> Callable[[], None]:
    away = (repository / "tiny" / "1").rename(repository / "tiny" / ".1")
    return lambda: move(away, repository / "tiny" / "1")


def move_model(repository: Path) -> Callable[[], None]:
    away = (repository / "tiny").rename(repository.with_name("tiny"))
    return lambda: move(away, repository / "tiny")


def unmount(repository: Path) -> Callable[[], None]:
    """Leave an empty mount point."""
    away = repository.rename(repository.with_name("unmounted"))
    repository.mkdir()

    def mount() -> None:
        repository.rmdir()
        away.rename(repository)

    return mount


def remove_repository(repository: Path) -> Callable[[], None]:
    away = repository.rename(repository.with_name("removed"))
    return lambda: move(away, repository)


def deny_access(repository: Path) -> Callable[[], None]:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    folder = repository / "tiny"
    folder.chmod(0)
    return lambda: folder.chmod(0o755)


def break_model_folder(repository: Path) -> Callable[[], None]:
    """Make listing the model's folder fail with an error other than its absence: too many symbolic links."""
    away = (repository / "tiny").rename(repository.with_name("tiny"))
    (repository / "tiny").symlink_to("tiny")

    def restore() -> None:
        (repository / "tiny").unlink()
        away.rename(repository / "tiny")

    return restore


def damage_manifest(repository: Path) -> Callable[[], None]:
    manifest = repository / "tiny" / "1" / "manifest.json"
    away = manifest.rename(repository.with_name("manifest.json"))
    manifest.write_text("{")
    return lambda: move(away, manifest)


def move(source: Path, target: Path) -> None:
    source.rename(target)


LOSSES = (
    move_version,
    move_model,
    unmount,
    remove_repository,
    deny_access,
    break_model_folder,
    damage_manifest,
)


class Observation(NamedTuple):
    """What a client, a health check and an operator see."""

    answered_by: str
    health: int
    ready: float
    missing_metric: float
    missing_reasons: dict[str, str]
    """Reasons by label of the models in service."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "models", neural=False)
    return tmp_path / "models"


@pytest.fixture
def server(repository: Path) -> Iterator[RunningServer]:
    with run_server(None, repository=repository, poll_s=POLL_S, metrics_port=0) as server:
        yield server


def observe(server: RunningServer) -> Observation:
    with grpc.insecure_channel(server.target) as channel:
        request = rescorer_pb2.RescoreRequest(lists=[make_list_message()])
        response = RescorerServiceStub(channel).Rescore(request, timeout=20)
        health = HealthStub(channel).Check(HealthCheckRequest(), timeout=20)
        models = ModelServiceStub(channel).ListModels(pb.ListModelsRequest(), timeout=20).models
    samples = read_samples(server.server.metrics_port)
    return Observation(
        response.model,
        health.status,
        get_value(samples, "ready"),
        get_value(samples, "model_versions_missing"),
        {model.model: model.missing_reason for model in models if model.state == pb.MODEL_STATE_SERVING},
    )


def read_missing(server: RunningServer) -> list[tuple[str, ...]]:
    """Return what the blocking and the asyncio client read from the metadata of a health check."""

    async def read() -> tuple[str, ...]:
        async with AsyncClient(server.target) as client:
            return await client.missing_models(20)

    with Client(server.target) as client:
        return [client.missing_models(20), asyncio.run(read())]


def test_health_command_names_missing_models(server, repository):
    def check() -> list[str]:
        result = CliRunner().invoke(app, ["health", server.target, "--timeout-s", "20"])
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    assert check() == [f"{server.target} serves"]
    move_version(repository)
    wait_until(lambda: server.server.health.missing_models)
    assert check()[1:] == ["from memory only, because they are missing on its disk: tiny/1"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100), max_size=20))
def test_missing_models_are_bounded_printable_metadata(labels):
    value = encode_missing_models(labels)
    assert len(value) <= MAX_VALUE_CHARS
    assert value.isascii()
    assert value.isprintable()
    decoded = decode_missing_models([("other", "x"), (MISSING_MODELS, value)] if labels else None)
    assert decoded == tuple(labels) or (
        decoded[-1] == MORE and decoded[:-1] == tuple(labels[: len(decoded) - 1])
    )


@pytest.mark.parametrize("lose", LOSSES)
def test_keeps_serving_what_is_loaded_and_reports_the_loss(server, repository, lose):
    restore = lose(repository)
    try:
        wait_until(lambda: server.server.models.missing)
        seen = observe(server)
        assert seen[:4] == ("tiny/1", SERVING, 1, 1)
        assert seen.missing_reasons["tiny/1"]
        assert str(repository.parent) not in seen.missing_reasons["tiny/1"]
        wait_until(lambda: read_missing(server) == [("tiny/1",)] * 2)
        assert server.run(server.server.reloader.reload()).refused
    finally:
        restore()
    wait_until(lambda: not server.server.models.missing)
    assert observe(server) == ("tiny/1", SERVING, 1, 0, {"tiny/1": ""})
    wait_until(lambda: read_missing(server) == [()] * 2)
    assert not server.server.models.refused


def test_other_models_are_still_updated_while_one_is_missing(server, repository):
    add_version(repository, "other/1")
    wait_until(lambda: len(server.server.models.versions) == 2)
    restore = break_model_folder(repository)
    try:
        add_version(repository, "other/2", original=repository.with_name("tiny") / "1")
        wait_until(
            lambda: [version.label for version in server.server.models.versions] == ["tiny/1", "other/2"]
        )
        assert list(server.server.models.missing) == ["tiny/1"]
    finally:
        restore()


def test_an_older_version_of_the_model_takes_over_from_a_removed_one(server, repository):
    add_version(repository, "tiny/2")
    wait_until(lambda: server.server.models.version().label == "tiny/2")
    shutil.rmtree(repository / "tiny" / "2")
    wait_until(lambda: server.server.models.version().label == "tiny/1")
    assert not server.server.models.missing


def test_polling_survives_unexpected_errors(server, repository, monkeypatch):
    failures = []

    async def fail(**_: object) -> None:
        failures.append(1)
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(server.server.models, "reload", fail)
        wait_until(lambda: len(failures) > 1)
    add_version(repository, "tiny/2")
    wait_until(lambda: server.server.models.version().label == "tiny/2")

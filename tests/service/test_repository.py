"""The versions in service: found, loaded, switched, drained, unloaded; broken ones are refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from rescorer import BundleError, ConfigError
from rescorer.bundle import read_bundle, seal
from rescorer.errors import ModelNotFound, ScoringError, Unavailable
from rescorer.service.models.metadata import read_model_facts
from rescorer.service.models.repository import ModelRepository
from tests.support.tiny_models import write_bundle


class RecordingHost:
    """A host that only records what is loaded and unloaded."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.log: list[str] = []
        self.fault: Exception | None = None

    async def load(self, label: str, folder: Path) -> None:
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        assert label not in self.held
        self.held.append(label)
        self.log.append(f"load {label}")

    async def unload(self, label: str) -> None:
        await asyncio.sleep(0)
        self.held.remove(label)
        self.log.append(f"unload {label}")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("original"), neural=False)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def add(original, folder):
    """Add a version to the repository."""

    def add(label: str) -> Path:
        name, version = label.split("/")
        path = folder / name / version
        shutil.copytree(original, path)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest |= {"name": name, "version": int(version)}
        (path / "manifest.json").write_text(json.dumps(manifest))
        return path

    return add


def repository(folder, **options) -> ModelRepository:
    return ModelRepository(RecordingHost(), folder, **({"single": False} | options))


def test_the_newest_serves_until_a_newer_one_is_loaded(folder, add):
    add("a/1")
    add("a/9")

    async def story():
        models = repository(folder)
        with pytest.raises(Unavailable):
            models.lease()
        await models.start()
        assert models.version().label == models.version("a").label == models.version("a/9").label == "a/9"
        add("a/10")
        lease = models.lease("a")
        with lease as ranker:
            changes = await models.reload()
            assert (changes.loaded, changes.retired, changes.refused) == (["a/10"], ["a/9"], {})
            assert models.version("a").label == "a/10"
            # A request that began with the old version ends with it.
            assert ranker.bundle.label == "a/9"
            await models.wait_for_unloads()
            assert models.host.held == ["a/9", "a/10"]
        await models.wait_for_unloads()
        assert models.host.held == ["a/10"]
        assert [each.label for each in models.versions] == ["a/10"]
        assert not await models.reload()

    asyncio.run(story())


def test_a_version_can_be_pinned_and_names_beside_each_other(folder, add):
    for label in ("a/1", "a/2", "b/5", "c/1"):
        add(label)

    async def story():
        models = repository(folder, models=("b", "a", "a/1"))
        await models.start()
        asked = ("", "a", "a/1", "a/2", "b", "b/5")
        assert [models.version(each).label for each in asked] == ["b/5", "a/2", "a/1", "a/2", "b/5", "b/5"]
        assert models.is_default(models.version("b"))
        for absent in ("c", "c/1", "a/3", "../a/1", "a/1/manifest.json"):
            with pytest.raises(ModelNotFound, match="'b/5', 'a/2', 'a/1' are"):
                models.lease(absent)
        models.models = ("a/1",)
        changes = await models.reload()
        assert sorted(changes.retired) == ["a/2", "b/5"]
        await models.wait_for_unloads()
        assert models.host.held == ["a/1"]

    asyncio.run(story())


def test_without_a_default_a_request_must_say_which(folder, add):
    add("a/1")
    add("b/1")

    async def story():
        models = repository(folder)
        await models.start()
        with pytest.raises(ModelNotFound, match="no model is named"):
            models.lease()
        assert models.lease("b").ranker.bundle.label == "b/1"

    asyncio.run(story())


def half(path: Path) -> None:
    (path / "manifest.json").unlink()


def damaged(path: Path) -> None:
    (path / "text.json").write_text("{}")


def misnamed(path: Path) -> None:
    path.rename(path.with_name("8"))


@pytest.mark.parametrize(
    ("harm", "part"),
    [
        (half, "a/7: not a bundle: it does not contain manifest.json"),
        (damaged, "a/7/text.json: corrupt"),
        (misnamed, "a/8: the manifest says a/7; expected a/8"),
    ],
)
def test_a_broken_version_is_refused_with_the_reason_while_the_old_one_serves(folder, add, harm, part):
    add("a/1")

    async def story():
        models = repository(folder)
        await models.start()
        harm(add("a/7"))
        changes = await models.reload()
        assert not changes
        ((label, reason),) = changes.refused.items()
        assert reason.startswith(part)
        assert models.version().label == "a/1"
        # A server that starts now serves the old one, too.
        other = repository(folder)
        await other.start()
        assert other.version().label == "a/1"
        shutil.rmtree(folder / label)
        assert not (await models.reload()).refused

    asyncio.run(story())


def test_what_was_refused_is_tried_again_when_it_has_changed_or_when_told(folder, add):
    add("a/1")

    async def story():
        models = repository(folder)
        await models.start()
        add("a/2")
        models.host.fault = ScoringError("not finite")
        assert (await models.reload()).refused == {"a/2": "not finite"}
        models.host.fault = None
        assert (await models.reload(again=False)).refused == {"a/2": "not finite"}
        assert (await models.reload()).loaded == ["a/2"]
        models.host.fault = RuntimeError("out of memory")
        add("a/3")
        reason = (await models.reload()).refused["a/3"]
        assert "unexpected error while loading; the server's log has the details" in reason
        assert "RuntimeError" not in reason
        models.host.fault = None
        (folder / "a/3/weights/other.json").write_text("{}")
        seal(folder / "a/3")
        assert (await models.reload(again=False)).loaded == ["a/3"]

    asyncio.run(story())


def test_weights_are_read_again_without_loading_models_and_models_are_immutable(folder, add):
    path = add("a/1")

    async def story():
        models = repository(folder)
        await models.start()
        with models.lease() as before:
            (path / "weights/other.json").write_text('{"word": 3.0}')
            refused = (await models.reload()).refused
            assert "weights/other.json: not part of the bundle" in refused["a/1"]
            assert models.version().label == "a/1"
            assert seal(path) == ["weights/other.json"]
            changes = await models.reload(again=False)
            assert (changes.loaded, changes.changed) == ([], ["a/1"])
            assert "other" not in before.bundle.weights
            assert models.version().bundle.weights["other"].word == 3.0
        assert models.host.log == ["load a/1"]
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "text.json").write_text("{}")
        manifest["files"]["text.json"] = hashlib.sha256(b"{}").hexdigest()
        (path / "manifest.json").write_text(json.dumps(manifest))
        assert "a/1: changed in place" in (await models.reload()).refused["a/1"]
        assert models.version().label == "a/1"

    asyncio.run(story())


def test_a_retired_version_that_is_still_in_use_can_serve_again(folder, add):
    add("a/1")

    async def story():
        models = repository(folder)
        await models.start()
        newer = add("a/2")
        with models.lease():
            assert (await models.reload()).retired == ["a/1"]
            shutil.rmtree(newer)
            changes = await models.reload()
            assert (changes.loaded, changes.retired) == (["a/1"], ["a/2"])
            assert models.version().label == "a/1"
        await models.wait_for_unloads()
        assert models.host.log == ["load a/1", "load a/2", "unload a/2"]

    asyncio.run(story())


def test_models_stay_within_their_memory(folder, add):
    path = add("a/1")
    size = sum(each.memory_bytes for each in read_model_facts(read_bundle(path)))

    async def story():
        models = repository(folder, max_bytes=2 * size)
        await models.start()
        add("b/1")
        add("c/1")
        changes = await models.reload()
        assert changes.loaded == ["b/1"]
        assert "max_model_bytes are taken" in changes.refused["c/1"]
        # Quota for the new version beside the old one is needed, too.
        add("a/2")
        assert set((await models.reload()).refused) == {"a/2", "c/1"}
        # Dropping a/1 and b/1 makes room for those that were refused.
        models.models = ("a", "c")
        assert (await models.reload()).loaded == ["a/2", "c/1"]

    asyncio.run(story())


def test_what_cannot_be_started_is_told_whole(folder, add):
    damaged(add("a/1"))
    damaged(add("b/1"))

    def fault(**options) -> str:
        with pytest.raises(BundleError) as caught:
            asyncio.run(repository(**({"folder": folder} | options)).start())
        return str(caught.value)

    told = fault()
    assert "a/1/text.json: corrupt" in told
    assert "b/1/text.json: corrupt" in told
    add("c/1")
    told = fault(models=("c", "d", "a"))
    assert "a/1/text.json: corrupt" in told
    assert "has no bundle d" in told
    assert "no bundles" in fault(folder=folder / "c" / "1")
    assert "cannot be read as a folder" in fault(folder=folder / "nowhere")
    assert "no such bundle folder" in fault(folder=folder / "nowhere", single=True)


def test_the_one_reason_is_raised_as_it_is(folder, add):
    add("a/1")
    models = repository(folder)
    models.host.fault = ConfigError("device is 'foo'")
    with pytest.raises(ConfigError, match="foo"):
        asyncio.run(models.start())


def test_only_the_setting_retires_a_model_and_only_if_another_one_serves(folder, add):
    for label in ("a/1", "a/2", "b/1"):
        add(label)

    async def story():
        models = repository(folder)
        await models.start()
        shutil.rmtree(folder / "b")
        assert (await models.reload()).refused == {"b/1": "b/1: no such bundle folder"}
        assert list(models.missing) == ["b/1"]
        # A newer version that cannot be used does not replace what has vanished.
        damaged(add("b/2"))
        assert not await models.reload()
        assert models.version("b").label == "b/1"
        models.models = ("typo",)
        assert not (await models.reload()).retired
        models.models = ("a",)
        assert (await models.reload()).retired == ["b/1"]
        assert not models.missing

    asyncio.run(story())


def test_one_bundle_or_its_versions_can_be_served_alone(folder, add):
    add("a/1")
    newest = add("a/2").rename(folder / "a" / "02")

    async def story():
        alone = repository(newest, single=True)
        await alone.start()
        assert alone.version("a").label == "a/2"
        versions = repository(folder / "a", single=True)
        await versions.start()
        assert versions.version().label == "a/2"
        # The disk is gone: what serves goes on.
        shutil.rmtree(folder)
        assert (await versions.reload()).refused == {"": "a: no such bundle folder"}
        assert versions.version().label == "a/2"

    asyncio.run(story())

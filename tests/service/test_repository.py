"""The versions in service: found, loaded, switched, drained, unloaded."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil

import pytest

from rescorer.errors import ModelNotFound, Unavailable
from rescorer.models.bundle import read_bundle, seal
from rescorer.service.repository import read_model_facts
from tests.support.repositories import make_repository


def test_the_newest_serves_until_a_newer_one_is_loaded(folder, add):
    add("a/1")
    add("a/9")

    async def story():
        models = make_repository(folder)
        with pytest.raises(Unavailable):
            models.version()
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
        models = make_repository(folder, models=("b", "a", "a/1"))
        await models.start()
        asked = ("", "a", "a/1", "a/2", "b", "b/5")
        assert [models.version(each).label for each in asked] == ["b/5", "a/2", "a/1", "a/2", "b/5", "b/5"]
        assert models.is_default(models.version("b"))
        for absent in ("c", "c/1", "a/3", "../a/1", "a/1/manifest.json"):
            with pytest.raises(ModelNotFound, match="'b/5', 'a/2', 'a/1' are"):
                models.version(absent)
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
        models = make_repository(folder)
        await models.start()
        with pytest.raises(ModelNotFound, match="no model is named"):
            models.version()
        with models.lease("b") as ranker:
            assert ranker.bundle.label == "b/1"

    asyncio.run(story())


def test_weights_are_read_again_without_loading_models_and_models_are_immutable(folder, add):
    path = add("a/1")

    async def story():
        models = make_repository(folder)
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
        (path / "phrases").mkdir()
        (path / "phrases/people.txt").write_text("Ada Lovelace\n")
        assert seal(path) == ["phrases/people.txt"]
        assert (await models.reload(again=False)).changed == ["a/1"]
        assert [p.text for p in models.version().bundle.phrases["people"].phrases] == ["Ada Lovelace"]
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
        models = make_repository(folder)
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
        models = make_repository(folder, max_bytes=2 * size)
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


def test_only_the_setting_retires_a_model_and_only_if_another_one_serves(folder, add):
    for label in ("a/1", "a/2", "b/1"):
        add(label)

    async def story():
        models = make_repository(folder)
        await models.start()
        shutil.rmtree(folder / "b")
        assert (await models.reload()).refused == {"b/1": "b/1: no such bundle folder"}
        assert list(models.missing) == ["b/1"]
        # A newer version that cannot be used does not replace what has vanished.
        (add("b/2") / "text.json").write_text("{}")
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
        alone = make_repository(newest, single=True)
        await alone.start()
        assert alone.version("a").label == "a/2"
        versions = make_repository(folder / "a", single=True)
        await versions.start()
        assert versions.version().label == "a/2"
        # The disk is gone: what serves goes on.
        shutil.rmtree(folder)
        assert (await versions.reload()).refused == {"": "a: no such bundle folder"}
        assert versions.version().label == "a/2"

    asyncio.run(story())

"""Versions that cannot be served are refused with the reason, and tried again."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from rescorer import BundleError, ConfigError
from rescorer.errors import ModelNotFound, ModelRefused, ScoringError, Unavailable
from rescorer.models.bundle import seal
from tests.support.repositories import make_repository


def remove_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def damage(path: Path) -> None:
    (path / "text.json").write_text("{}")


def raise_schema(path: Path) -> None:
    """Make a bundle as a newer release might, whose models old replicas cannot read during a roll-out."""
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"schema": 99}))


def rename(path: Path) -> None:
    path.rename(path.with_name("8"))


@pytest.mark.parametrize(
    ("harm", "part"),
    [
        (remove_manifest, "a/7: not a bundle: it does not contain manifest.json"),
        (damage, "a/7/text.json: corrupt"),
        (raise_schema, "a/7/manifest.json: schema is 99; expected"),
        (rename, "a/8: the manifest says a/7; expected a/8"),
    ],
)
def test_a_broken_version_is_refused_with_the_reason_while_the_old_one_serves(folder, add, harm, part):
    add("a/1")

    async def story():
        models = make_repository(folder)
        await models.start()
        harm(add("a/7"))
        changes = await models.reload()
        assert not changes
        ((label, reason),) = changes.refused.items()
        assert reason.startswith(part)
        assert models.version().label == "a/1"
        # A server that starts now serves the old one, too.
        other = make_repository(folder)
        await other.start()
        assert other.version().label == "a/1"
        shutil.rmtree(folder / label)
        assert not (await models.reload()).refused

    asyncio.run(story())


def test_a_refused_version_is_tried_again_when_it_has_changed_or_on_request(folder, add):
    add("a/1")

    async def story():
        models = make_repository(folder)
        await models.start()
        add("a/2")
        models.host.error = ScoringError("not finite")
        assert (await models.reload()).refused == {"a/2": "not finite"}
        models.host.error = None
        assert (await models.reload(again=False)).refused == {"a/2": "not finite"}
        assert (await models.reload()).loaded == ["a/2"]
        models.host.error = RuntimeError("out of memory")
        add("a/3")
        reason = (await models.reload()).refused["a/3"]
        assert "unexpected error while loading; the server's log has the details" in reason
        assert "RuntimeError" not in reason
        models.host.error = None
        (folder / "a/3/weights/other.json").write_text("{}")
        seal(folder / "a/3")
        assert (await models.reload(again=False)).loaded == ["a/3"]

    asyncio.run(story())


def test_requests_for_a_refused_model_are_told_the_reason(folder, add):
    for label in ("a/1", "b/1", "b/2"):
        add(label)
    damage(folder / "b/1")
    damage(folder / "b/2")

    async def story():
        models = make_repository(folder)
        await models.start()
        assert models.version("a").label == "a/1"
        for name in ("b", "b/1", "b/2"):
            with pytest.raises(ModelRefused, match=f"model '{name}' cannot be loaded: b/.*corrupt"):
                models.version(name)
        with pytest.raises(ModelNotFound):
            models.version("c")

        models.host.lost["a/1"] = f"{folder}/a/1: no such bundle folder"  # by all workers
        with pytest.raises(ModelRefused) as caught, models.lease("a"):
            pass
        assert str(caught.value) == "model 'a/1' cannot be loaded again: a/1: no such bundle folder"

    asyncio.run(story())


def test_a_model_that_is_still_being_loaded_is_neither_missing_nor_refused(folder, add):
    add("a/1")
    add("b/1")

    async def story():
        models = make_repository(folder)
        is_loading, goes_on, load = asyncio.Event(), asyncio.Event(), models.host.load

        async def load_slowly(label, path):
            if label == "b/1":
                is_loading.set()
                await goes_on.wait()
            await load(label, path)

        models.host.load = load_slowly
        starting = asyncio.create_task(models.start())
        await is_loading.wait()
        assert models.version("a").label == "a/1"
        with pytest.raises(Unavailable, match="'b' is being loaded"):
            models.version("b")
        goes_on.set()
        await starting
        assert models.version("b").label == "b/1"

    asyncio.run(asyncio.wait_for(story(), 20))


def test_start_reports_every_bundle_that_it_refuses(folder, add):
    damage(add("a/1"))
    damage(add("b/1"))

    def start_error(**options) -> str:
        with pytest.raises(BundleError) as caught:
            asyncio.run(make_repository(**({"folder": folder} | options)).start())
        return str(caught.value)

    message = start_error()
    assert "a/1/text.json: corrupt" in message
    assert "b/1/text.json: corrupt" in message
    add("c/1")
    message = start_error(models=("c", "d", "a"))
    assert "a/1/text.json: corrupt" in message
    assert "has no bundle d" in message
    assert "no bundles" in start_error(folder=folder / "c" / "1")
    assert "cannot be read as a folder" in start_error(folder=folder / "nowhere")
    assert "no such bundle folder" in start_error(folder=folder / "nowhere", single=True)


def test_a_single_reason_is_raised_unchanged(folder, add):
    add("a/1")
    models = make_repository(folder)
    models.host.error = ConfigError("device is 'foo'")
    with pytest.raises(ConfigError, match="foo"):
        asyncio.run(models.start())

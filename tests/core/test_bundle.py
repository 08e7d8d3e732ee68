"""Bundles on disk: verified before they serve, published whole or not at all."""

from __future__ import annotations

import json
import shutil

import pytest

from rescorer import Rescorer
from rescorer.bundle import newest_version, publish, read_bundle
from rescorer.errors import BundleError, ConfigError
from rescorer.lm.checkpoint import load_model, save_model
from rescorer.lm.ngram import NgramModel
from tests.support.tiny_models import random_network, write_bundle


@pytest.fixture
def folder(tmp_path):
    return write_bundle(tmp_path)


def test_a_bundle_comes_back_as_it_was(folder):
    rescorer = Rescorer.load(folder)
    bundle = rescorer.bundle
    assert (bundle.label, bundle.ngram, list(rescorer.models)) == ("tiny/1", "ngram", ["ngram", "neural"])
    assert bundle.model_kinds == {"ngram": "ngram", "neural": "neural"}


def test_a_bundle_is_never_overwritten_nor_left_half_made(folder):
    def broken(partial):
        (partial / "x").write_text("half")
        raise RuntimeError("killed")

    with pytest.raises(ConfigError, match="exists"):
        publish(folder, broken)
    with pytest.raises(RuntimeError):
        publish(folder.parent / "2", broken)
    assert [path.name for path in folder.parent.iterdir()] == ["1"]


def damage_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("neural/model.safetensors", damage_byte),
        ("neural/model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:100])),
        ("ngram/model.arpa", damage_byte),
        ("ngram/model.arpa", lambda path: path.unlink()),
        ("text.json", lambda path: path.write_text("{}")),
        ("manifest.json", lambda path: path.write_text("{")),
        ("manifest.json", lambda path: path.write_text('{"schema": 99}')),
        ("manifest.json", lambda path: path.unlink()),
        ("weights/default.json", lambda path: path.unlink()),
        (
            "weights/default.json",
            lambda path: path.write_text('{"lm": {"other": 1}, "mixture": {"ngram": 1}}'),
        ),
        ("weights/default.json", lambda path: path.write_text('{"lm": {"mixture": 1}}')),
    ],
)
def test_a_damaged_bundle_is_refused_with_its_reason(folder, file, harm):
    harm(folder / file)
    with pytest.raises(BundleError) as fault:
        read_bundle(folder)
    assert str(folder) in str(fault.value)


@pytest.mark.parametrize("forgotten", ["ngram/model.arpa", "text.json"])
def test_every_file_must_be_vouched_for(folder, forgotten):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][forgotten]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="does not name it"):
        read_bundle(folder)


def test_a_model_without_a_path_is_told(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["models"]["ngram"]["path"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="lacks its kind or path"):
        read_bundle(folder)


def test_a_manifest_cannot_reach_outside(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["../../../etc/passwd"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="outside"):
        read_bundle(folder)


def test_the_newest_version_serves_where_none_is_named(folder):
    shutil.copytree(folder, folder.parent / "10")
    shutil.copytree(folder, folder.parent / "9")
    (folder.parent / "11").mkdir()  # half copied: no manifest yet
    assert newest_version(folder.parent) == folder.parent / "10"
    assert read_bundle(folder.parent).label == "tiny/1"


def test_a_missing_folder_is_told(tmp_path):
    with pytest.raises(BundleError, match="no such bundle"):
        read_bundle(tmp_path / "nothing")


def test_a_device_that_is_not_here_is_told(folder):
    for device in ("foo", "", "meta", "cuda:99"):
        with pytest.raises(ConfigError, match=rf"device '{device}' is not available; torch has: cpu"):
            Rescorer.load(folder, device)
    assert Rescorer.load(folder, "cpu").models["neural"].device.type == "cpu"


@pytest.mark.parametrize("tied", [True, False])
def test_a_network_survives_the_disk(tmp_path, tied):
    model, vocabulary = random_network(tied=tied, layers=2)
    save_model(model, vocabulary, tmp_path)
    loaded, words = load_model(tmp_path)
    assert words == vocabulary
    assert all((a == b).all() for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_parts_that_do_not_fit_are_refused(tmp_path):
    model, vocabulary = random_network()
    save_model(model, vocabulary, tmp_path)
    with open(tmp_path / "vocabulary.txt", "a") as file:
        file.write("extra\n")
    with pytest.raises(BundleError):
        load_model(tmp_path)


def test_what_is_no_arpa_file_is_refused(tmp_path):
    (tmp_path / "x.arpa").write_text("hello\n")
    with pytest.raises(BundleError, match=r"x\.arpa"):
        NgramModel(tmp_path / "x.arpa")


def test_a_folder_of_bundles_is_told_from_one(folder):
    models = folder.parent.parent
    assert read_bundle(folder.parent).label == read_bundle(folder).label
    with pytest.raises(BundleError, match=rf"no bundle, .*; {folder} is one, and .*--repository {models}"):
        read_bundle(models)
    with pytest.raises(BundleError, match="holds no manifest"):
        read_bundle(folder / "ngram")
    with pytest.raises(BundleError, match="this is a file"):
        read_bundle(folder / "manifest.json")

"""Bundles on disk are verified when they are read, and published completely or not at all."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from rescorer import Rescorer
from rescorer.errors import BundleError, ConfigError
from rescorer.models.bundle import newest_version, publish, read_bundle
from rescorer.models.neural import load_model, save_model
from rescorer.models.ngram_files import read_ngram
from tests.support.tiny_models import random_network, write_bundle


@pytest.fixture
def folder(tmp_path):
    return write_bundle(tmp_path)


def test_reads_a_bundle(folder):
    rescorer = Rescorer.load(folder)
    bundle = rescorer.bundle
    assert (bundle.label, bundle.ngram, list(rescorer.models)) == ("tiny/1", "ngram", ["ngram", "neural"])
    assert bundle.model_kinds == {"ngram": "ngram", "neural": "neural"}


def test_publish_neither_overwrites_nor_leaves_partial_bundles(folder):
    def fail(partial):
        (partial / "x").write_text("half")
        raise RuntimeError("killed")

    with pytest.raises(ConfigError, match="exists"):
        publish(folder, fail)
    with pytest.raises(RuntimeError):
        publish(folder.parent / "2", fail)
    assert [path.name for path in folder.parent.iterdir()] == ["1"]


def test_of_two_processes_that_publish_one_bundle_the_second_fails(tmp_path):
    folder = tmp_path / "b" / "1"

    def fill(partial):
        (partial / "x").write_text("mine")
        if len(list(folder.parent.iterdir())) == 1:  # the first process is slow, and the second overtakes it
            publish(folder, fill)
        return {}

    with pytest.raises(ConfigError, match="another process"):
        publish(folder, fill)
    assert [path.name for path in folder.parent.iterdir()] == ["1"]
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "x"]


def test_partial_bundles_of_killed_processes_are_in_nobodys_way(folder):
    (folder.parent / ".2.partial").mkdir()
    (folder.parent / ".2.0123456789abcdef.partial").mkdir()
    (folder.parent / ".2.0123456789abcdef.partial" / "manifest.json").write_text("{")
    assert Rescorer.load(folder.parent).bundle.label == "tiny/1"
    publish(folder.parent / "2", lambda partial: {})
    assert (folder.parent / "2" / "manifest.json").exists()


def damage_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "damage"),
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
def test_rejects_a_damaged_bundle(folder, file, damage):
    damage(folder / file)
    with pytest.raises(BundleError) as caught:
        read_bundle(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("unlisted", ["ngram/model.arpa", "text.json"])
def test_rejects_a_file_that_the_manifest_does_not_list(folder, unlisted):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][unlisted]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="does not list it"):
        read_bundle(folder)


def test_rejects_a_model_without_a_path(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["models"]["ngram"]["path"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="'kind' or 'path' is missing"):
        read_bundle(folder)


def test_rejects_a_manifest_that_lists_files_outside_the_bundle(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["../../../etc/passwd"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="relative path inside"):
        read_bundle(folder)


def test_reads_the_newest_version_by_default(folder):
    shutil.copytree(folder, folder.parent / "10")
    shutil.copytree(folder, folder.parent / "9")
    (folder.parent / "11").mkdir()  # an incomplete copy, still without a manifest
    assert newest_version(folder.parent) == folder.parent / "10"
    assert read_bundle(folder.parent).label == "tiny/1"


def test_rejects_a_missing_folder(tmp_path):
    with pytest.raises(BundleError, match="no such bundle"):
        read_bundle(tmp_path / "nothing")


def test_rejects_an_unavailable_device(folder):
    for device in ("foo", "", "meta", "cuda:99"):
        with pytest.raises(ConfigError, match=rf"device '{device}' is not available; torch has: cpu"):
            Rescorer.load(folder, device)
    assert Rescorer.load(folder, "cpu").models["neural"].device.type == "cpu"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "gru", "elman"])
def test_loads_the_network_that_was_saved_without_drawing_weights(tmp_path, kind, tied):
    model, vocabulary = random_network(kind=kind, tied=tied, layers=2)
    save_model(model, vocabulary, tmp_path)
    random_state = torch.get_rng_state()
    loaded, words = load_model(tmp_path)
    assert words == vocabulary
    assert all((a == b).all() for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), random_state)


def test_rejects_a_vocabulary_that_does_not_fit_the_network(tmp_path):
    model, vocabulary = random_network()
    save_model(model, vocabulary, tmp_path)
    with open(tmp_path / "vocabulary.txt", "a") as file:
        file.write("extra\n")
    with pytest.raises(BundleError):
        load_model(tmp_path)


def test_rejects_a_file_that_is_not_in_arpa_format(tmp_path):
    (tmp_path / "x.arpa").write_text("hello\n")
    with pytest.raises(BundleError, match=r"x\.arpa"):
        read_ngram(tmp_path / "x.arpa")


def test_suggests_a_bundle_inside_a_repository(folder):
    models = folder.parent.parent
    assert read_bundle(folder.parent).label == read_bundle(folder).label
    with pytest.raises(BundleError, match=rf"not a bundle: .*; {folder} is one, and .*--repository {models}"):
        read_bundle(models)
    with pytest.raises(BundleError, match="does not contain manifest"):
        read_bundle(folder / "ngram")
    with pytest.raises(BundleError, match="this is a file"):
        read_bundle(folder / "manifest.json")

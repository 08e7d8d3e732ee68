"""A bundle that attacks its reader is refused within bounds of memory and time, and nothing is quoted."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from rescorer import Rescorer
from rescorer.errors import BundleError
from rescorer.models.bundle import read_bundle, seal
from rescorer.models.ngram_files import read_ngram
from rescorer.pipeline import load_bundle_models
from rescorer.safe_input import SealedFolder
from rescorer.service.repository import read_model_facts
from tests.support.bounds import bounded
from tests.support.hostile_bundles import PATH_ATTACKS, SECRET, SIZE_ATTACKS, write_hostile
from tests.support.tiny_models import write_bundle

MEMORY_BYTES = 256 << 20
SECONDS = 30
MAX_MESSAGE_CHARACTERS = 1500
SEEN_BY_THE_FRONT = (
    "ARPA header without end",
    "ARPA declares more than it has",
    "KenLM binary declares more than it has",
    "hidden size",
    "layers",
    "vocabulary",
    "shape in the header",
)
ATTACKS = PATH_ATTACKS | SIZE_ATTACKS


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = write_bundle(tmp_path_factory.mktemp("original"))
    Rescorer.load(folder)  # libraries take their memory before it is bounded
    return folder


@pytest.fixture
def hostile(request, original, tmp_path) -> Path:
    folder = tmp_path / "tiny" / "1"
    shutil.copytree(original, folder)
    write_hostile(folder, ATTACKS[request.param])
    return folder


@pytest.mark.parametrize(
    ("hostile", "name"), [(name, name) for name in ATTACKS], indirect=["hostile"], ids=ATTACKS
)
def test_refuses_a_hostile_bundle_within_bounds(hostile, name):
    with bounded(MEMORY_BYTES, SECONDS), pytest.raises(BundleError) as caught:
        Rescorer.load(hostile)
    message = str(caught.value)
    assert ATTACKS[name].reason in message
    assert SECRET not in message
    assert len(message) <= MAX_MESSAGE_CHARACTERS
    assert "Error" not in message


@pytest.mark.parametrize("name", SEEN_BY_THE_FRONT)
def test_front_end_sees_sizes_that_do_not_fit_before_a_worker_loads_them(original, tmp_path, name):
    folder = tmp_path / "tiny" / "1"
    shutil.copytree(original, folder)
    write_hostile(folder, SIZE_ATTACKS[name])
    with (
        bounded(MEMORY_BYTES, SECONDS),
        pytest.raises(BundleError, match=re.escape(SIZE_ATTACKS[name].reason)),
    ):
        read_model_facts(read_bundle(folder))


def test_notices_a_file_that_was_replaced_after_it_was_verified(original, tmp_path):
    folder = tmp_path / "tiny" / "1"
    shutil.copytree(original, folder)
    bundle = read_bundle(folder)
    (folder / "new").write_bytes((folder / "ngram" / "model.arpa").read_bytes().replace(b"cat", b"dog"))
    (folder / "new").rename(folder / "ngram" / "model.arpa")
    with pytest.raises(BundleError, match=r"ngram/model\.arpa: corrupt"):
        load_bundle_models(bundle)


def test_loads_the_file_that_was_opened_even_if_its_name_changes(original, tmp_path):
    folder = tmp_path / "tiny" / "1"
    shutil.copytree(original, folder)
    path = folder / "ngram" / "model.arpa"
    with SealedFolder(folder, read_bundle(folder).manifest["files"]).open("ngram/model.arpa") as stream:
        path.rename(folder / "elsewhere")
        path.write_text("no model")
        assert "zebra" in read_ngram(stream).vocabulary()


def test_a_bundle_may_be_reached_through_links(original, tmp_path):
    (tmp_path / "data").symlink_to(original.parent)
    (tmp_path / "current").symlink_to(tmp_path / "data" / original.name)
    assert Rescorer.load(tmp_path / "current").bundle.label == "tiny/1"


def test_seal_lists_new_weights_sets_and_nothing_that_has_changed(original, tmp_path, run):
    folder = tmp_path / "tiny" / "1"
    shutil.copytree(original, folder)
    (folder / "weights" / "mine.json").write_text('{"word": 2.0}')
    with pytest.raises(BundleError, match=f"rescorer seal {folder}"):
        read_bundle(folder)
    assert run("seal", folder) == (0, "weights/mine.json\n", "")
    assert read_bundle(folder).weights["mine"].word == 2.0
    assert run("seal", folder) == (0, "", "")
    (folder / "weights" / "mine.json").write_text('{"word": 3.0}')
    assert run("seal", folder) == (0, "weights/mine.json\n", "")
    (folder / "text.json").write_text("{}")
    code, _, message = run("seal", folder)
    assert code == 4
    assert "text.json: has changed since the bundle was published" in message


@pytest.mark.parametrize(
    "attack", ["weights set is a FIFO", "weights set is /dev/zero", "folder is a link out"]
)
def test_seal_refuses_what_is_not_a_regular_file(original, tmp_path, attack):
    folder = tmp_path / "tiny" / "1"
    shutil.copytree(original, folder)
    write_hostile(folder, PATH_ATTACKS[attack])
    with bounded(MEMORY_BYTES, SECONDS), pytest.raises(BundleError, match="expected a"):
        seal(folder)

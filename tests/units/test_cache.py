"""The cache of imported models: hits, changes, damage, races, permissions and size."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from rescorer.errors import BundleError, ConfigError, InvalidList
from rescorer.types import Hypothesis, ImportedModel, NBestList
from rescorer.units import cache as cache_module
from rescorer.units.cache import ENTRY, ImportCache, is_imported, use_imported
from rescorer.units.importing import (
    first_best_sentences,
    import_model,
    read_huggingface,
    read_licence,
)
from rescorer.units.toolkits import find_toolkit
from tests.support.unit_models import PEER_MODELS, write_joining_model, write_letter_model

pytest.importorskip("tokenizers")
SENTENCES = [("the", "cat", "sat"), ("a", "dog", "ran", "on"), ("the", "dog", "sat", "on", "the", "cat")]


@pytest.fixture
def source(tmp_path):
    return write_letter_model(tmp_path / "llama")


@pytest.fixture
def cache(tmp_path):
    """A cache whose steps and warnings are in ``seen``."""
    seen: list[str] = []
    made = ImportCache(tmp_path / "cache", on_step=seen.append, on_warning=seen.append)
    made.seen = seen
    return made


def entries(cache):
    return sorted(path.name for path in cache.folder.iterdir() if ENTRY.fullmatch(path.name))


def find(cache, source, recorded=None, sentences=SENTENCES):
    cache.seen.clear()
    return cache.find(source, lambda: sentences, recorded)


def test_imports_once_and_then_reads_what_it_wrote(cache, source):
    first = find(cache, source)
    assert first.is_new
    steps = ["choosing start and end", "scaling channels for int8", "checking its scores", "writing it"]
    assert cache.seen == ["reading it", *steps]
    again = find(cache, source)
    assert (again.is_new, cache.seen) == (False, [])
    assert again.added.identity == first.added.identity
    assert again.added.identity.source == again.config.source["sha256"]
    assert again.added.identity.source == read_huggingface(source).digest()
    assert again.describe().startswith(f"{source} (llama, 5,872 parameters): start ")
    assert first.describe() == f"imported {again.describe()}"
    assert "perplexity per word" in again.describe()


def test_weights_record_how_texts_are_divided(cache, tmp_path):
    source = write_joining_model(tmp_path / "joining")
    recorded = find(cache, source).added.identity
    assert recorded.whole
    shutil.rmtree(cache.folder)
    apart = [("cat",), ("dog", "ran")]
    again = find(cache, source, recorded, sentences=apart)
    assert (again.config.whole, again.added.identity) == (True, recorded)
    older = replace(recorded, whole=None)  # as versions wrote it that did not record it
    assert find(cache, source, older, sentences=SENTENCES).added.identity.fits(older)
    divided = use_imported(import_folder(source, tmp_path / "apart", apart))
    assert not divided.added.identity.whole
    with pytest.raises(ConfigError, match="its files, start or end differ, or how it divides texts"):
        use_imported(divided.source, replace(divided.added.identity, whole=True))


def import_folder(source, folder, sentences):
    import_model(read_huggingface(source), folder, sentences)
    return folder


def test_other_text_chooses_again_but_keeps_one_entry_for_one_choice(cache, source):
    found = find(cache, source)
    other = find(cache, source, sentences=SENTENCES[:2])
    assert "choosing start and end" in cache.seen
    same = other.added.identity == found.added.identity
    assert len(entries(cache)) == (1 if same else 2)


def test_recorded_choices_need_no_text(cache, source):
    found = find(cache, source)
    recorded = found.added.identity

    def read_sentences():
        raise AssertionError("read")

    for _ in range(2):  # the second time by its pointer
        again = cache.find(source, read_sentences, recorded)
        assert (again.is_new, again.added.identity) == (False, recorded)
    named = find(cache, source, replace(recorded, start=0, end=1))
    assert named.is_new
    assert (named.config.start, named.config.end) == ((0,), 1)
    assert "start '<s>', end '</s>'" in named.describe()
    assert "no start, no end" in find(cache, source, replace(recorded, start=None, end=None)).describe()
    assert len(entries(cache)) == 3


def test_a_changed_source_is_imported_again_and_is_not_the_recorded_model(cache, source):
    found = find(cache, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    with pytest.raises(ConfigError, match="the weights were tuned with another model"):
        find(cache, source, found.added.identity)
    again = find(cache, source)
    assert again.is_new
    assert again.added.identity.source != found.added.identity.source
    with pytest.raises(ConfigError, match="the weights were tuned with another model"):
        find(cache, source, found.added.identity)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "import.json"])
def test_a_damaged_entry_is_imported_again(cache, source, file):
    found = find(cache, source)
    path = found.added.folder.path / file
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    again = find(cache, source)
    assert again.is_new
    assert any("imported again" in line for line in cache.seen)
    assert path.read_bytes() == content
    path.unlink()
    assert find(cache, source).is_new
    assert entries(cache) == [found.added.folder.path.name]


def test_a_damaged_pointer_is_ignored(cache, source):
    find(cache, source)
    (pointer,) = cache.folder.glob("*.json")
    for content in ("{", '{"entry": "../../etc"}', '{"entry": 1}', "[]"):
        pointer.write_text(content)
        assert find(cache, source).added.folder.path.parent == cache.folder
        assert json.loads(pointer.read_text()) == {"entry": entries(cache)[0]}


def test_imports_at_once_agree(source, tmp_path):
    caches = [ImportCache(tmp_path / "cache") for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda cache: cache.find(source, lambda: SENTENCES), caches))
    (folder,) = {one.added.folder.path for one in found}
    assert sorted(one.name for one in folder.parent.iterdir() if one.is_dir()) == [folder.name]


def test_an_entry_that_another_process_adds_first_is_used(cache, source, monkeypatch):
    rename = os.rename

    def lose(old, new):
        shutil.copytree(old, new)
        rename(old, new)

    monkeypatch.setattr(cache_module.os, "rename", lose)
    assert find(cache, source).is_new
    assert len(list(cache.folder.iterdir())) == 2  # the entry and its pointer


def test_the_folder_is_private(cache, source, tmp_path):
    find(cache, source)
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    cache.folder.chmod(0o755)
    with pytest.raises(ConfigError, match="has the mode 755, not 700"):
        find(cache, source)
    cache.folder.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(cache.folder)
    with pytest.raises(ConfigError, match="is a symbolic link"):
        find(replace_folder(cache, link), source)


def replace_folder(cache, folder):
    made = ImportCache(folder)
    made.seen = cache.seen
    return made


def test_folders_of_others_are_refused(cache, source, monkeypatch):
    find(cache, source)
    monkeypatch.setattr(cache_module.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        find(cache, source)


def test_says_why_nothing_can_be_kept(cache, source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot keep imported models: Not a directory; .* --lm-cache"):
        find(replace_folder(cache, tmp_path / "file" / "cache"), source)


def test_the_least_recently_used_entries_go_but_not_those_in_use(cache, source, tmp_path):
    used = find(cache, source).added.folder.path
    other = write_letter_model(tmp_path / "qwen", "qwen2")
    second = find(cache, other).added.folder.path
    unused = cache.folder / ("0" * 64)  # not locked by this process
    shutil.copytree(used, unused)
    os.utime(unused, (0, 0))
    killed = cache.folder / ".killed.partial"
    killed.mkdir()
    os.utime(killed, (0, 0))
    stale = cache.folder / f"{'1' * 64}.json"
    stale.write_text(json.dumps({"entry": "0" * 64}))
    cache.max_bytes = 40_000
    find(cache, source)
    assert entries(cache) == sorted([used.name, second.name])
    assert not killed.exists()
    assert not stale.exists()


def test_a_model_that_is_larger_than_the_cache_is_refused_with_the_cure(cache, source):
    cache.max_bytes = 1000
    with pytest.raises(ConfigError, match="import it once by `rescorer-train import`"):
        find(cache, source)
    assert list(cache.folder.iterdir()) == []


def test_an_imported_folder_is_used_as_it_is(source, tmp_path):
    assert not is_imported(source)
    foreign = read_huggingface(source)
    import_model(foreign, tmp_path / "units", SENTENCES)
    assert is_imported(tmp_path / "units")
    found = use_imported(tmp_path / "units")
    assert found.cache is None
    assert found.added.identity.source == foreign.digest()
    assert use_imported(tmp_path / "units", found.added.identity).added.identity == found.added.identity
    with pytest.raises(ConfigError, match="tuned with another model"):
        use_imported(tmp_path / "units", ImportedModel("0", 0))
    (tmp_path / "units" / "tokenizer.json").unlink()
    with pytest.raises(BundleError, match="tokenizer"):
        use_imported(tmp_path / "units").describe()


def test_finds_out_what_wrote_a_model(source, tmp_path):
    (tmp_path / "exp").mkdir()
    for name in ("config.yaml", "9epoch.pth", "epoch-1.pt"):
        (tmp_path / "exp" / name).write_text("")
    (tmp_path / "asr").mkdir()
    (tmp_path / "asr" / "lm.ckpt").write_text("")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for path, toolkit in (
        (source, "hf"), (tmp_path / "m.gguf", "gguf"), (tmp_path / "asr", "speechbrain"),
        (tmp_path / "exp", "espnet"), (tmp_path / "exp" / "9epoch.pth", "espnet"),
        (tmp_path / "exp" / "epoch-1.pt", "icefall"),
    ):  # fmt: skip
        assert find_toolkit(path) == toolkit
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no language model was found in it"):
        find_toolkit(tmp_path / "empty")
    with pytest.raises(ConfigError, match="no such folder or file"):
        find_toolkit(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("espnet-lstm", "canonical"),
        ("espnet-transformer", "canonical"),
        ("speechbrain-lstm", "upper"),
        ("icefall/epoch-3.pt", "upper"),
    ],
)
def test_imports_models_of_other_toolkits(cache, name, text):
    pytest.importorskip("sentencepiece")
    source = PEER_MODELS / "toolkits" / name
    found = find(cache, source)
    assert found.config.text == text
    assert find(cache, source, found.added.identity).added.identity == found.added.identity
    assert cache.seen == ["reading it"]  # by its content
    assert name.partition("/")[0] in find(cache, source, found.added.identity).describe()
    assert cache.seen == []


def test_licences_are_kept(cache, source):
    assert read_licence(source) == ("", b"")
    (source / "README.md").write_text("---\ntags: [a]\nlicense: apache-2.0\n---\n# License: mine\n")
    (source / "LICENSE.txt").write_text("Apache License")
    found = find(cache, source)
    assert found.config.source["licence"] == "apache-2.0"
    assert "parameters, licence apache-2.0)" in found.describe()
    assert (found.added.folder.path / "LICENSE").read_text() == "Apache License"
    (source / "README.md").write_text("license: mit\n")
    assert read_licence(source)[0] == ""


def test_first_hypotheses_choose():
    lists = [
        NBestList(str(i), (Hypothesis(text), Hypothesis("x")))
        for i, text in enumerate(["a b", "", "a b", "c"])
    ]
    assert first_best_sentences(iter(lists), lambda text: tuple(text.split())) == [("a", "b"), ("c",)]
    with pytest.raises(ConfigError, match="have no words"):
        first_best_sentences(iter(lists[1:2]), lambda text: tuple(text.split()))
    with pytest.raises(InvalidList, match="broken"):
        first_best_sentences(iter([InvalidList("broken")]), lambda text: tuple(text.split()))

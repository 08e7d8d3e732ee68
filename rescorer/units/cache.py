"""Import a model of another toolkit for one command, and keep it in a private folder for the next.

An entry of the cache is an imported folder, named by a hash of the model that it comes from, of the units
that start and end sentences, and of how words are written. Finding that hash means reading the model, and
choosing start and end means running the model, so a small file by name, size and time of the source's files,
and by the text that chose, points to the entry. ``import.json`` of an entry has hashes of its files; a
damaged entry is imported again. Each process locks the entries that it uses. When the cache is too large, the
least recently used entries go, except locked ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

from safetensors import SafetensorError

from rescorer.errors import BundleError, ConfigError
from rescorer.models.bundle import AddedModel
from rescorer.models.network_files import CONFIG_FILE, LICENCE_FILE, TOKENIZER_FILES, WEIGHTS_FILE
from rescorer.safe_input import Folder, SealedFolder, parse_json, read_tensor_header
from rescorer.trie import Words
from rescorer.types import ImportedModel
from rescorer.units.automodel import AutoModelConfig
from rescorer.units.files import TextForm, UnitConfig
from rescorer.units.importing import (
    AUTO,
    NONE,
    ForeignModel,
    import_model,
    is_upper_case,
)
from rescorer.units.tokens import read_divider
from rescorer.units.toolkits import find_toolkit, read_source

VERSION = 2
"""Raised when the same files would be imported as something else."""
PRECISION = "float32"
MAX_CACHE_BYTES = 8 << 30
"""Largest size of the cache: two billion parameters."""
HASHES_FILE = "import.json"
ENTRY = re.compile(r"[0-9a-f]{64}")
POINTER = re.compile(r"[0-9a-f]{64}\.json")
MAX_LEFTOVER_AGE_S = 86_400
"""Age after which an unfinished entry belongs to a process that was killed."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """An imported model, and where it came from."""

    source: Path
    """The folder or file that the user named."""
    added: AddedModel
    config: UnitConfig
    cache: Path | None = None
    """Folder of the cache; None if the user named an imported folder, which is used as it is."""
    is_new: bool = False

    def describe(self) -> str:
        """Say in a sentence what the model is, and how it scores."""
        config, files = self.config, self.added.folder
        with files.open(WEIGHTS_FILE) as stream:
            n_parameters = sum(math.prod(tensor.shape) for tensor in read_tensor_header(stream).values())
        size = f"{n_parameters / 1e6:,.0f} M" if n_parameters >= 1e6 else f"{n_parameters:,}"
        source = config.source or {}
        licence = f", licence {source['licence']}" if "licence" in source else ""
        tokenizer = read_divider(files, config.text, config.units, whole=config.whole).tokenizer
        start, end = (
            f"no {role}" if unit is None else f"{role} {tokenizer.name(unit)!r}"
            for role, unit in (("start", self.added.identity.start), ("end", config.end))
        )
        perplexity = (config.check or {}).get("perplexity_per_word")
        measured = f", perplexity per word {perplexity:.4g}" if isinstance(perplexity, float) else ""
        run = f"; {config.decoder.describe()}" if isinstance(config.decoder, AutoModelConfig) else ""
        kept = f"; kept in {_shorten(self.cache)}" if self.cache else ""
        return (
            f"{'imported ' if self.is_new else ''}{self.source} ({source.get('architecture')}, {size} "
            f"parameters{licence}): {start}, {end}{measured}{run}{kept}"
        )


def list_source(path: Path) -> list[Path]:
    """The files of a model: those of its folder that are not hidden, or next to its checkpoint.

    Raises:
        ConfigError: there is no such file or folder.
    """
    if path.is_file() and path.suffix not in (".pt", ".pth"):
        return [path]
    try:
        folder = path.parent if path.is_file() else path
        return sorted(one for one in folder.iterdir() if one.is_file() and not one.name.startswith("."))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a language model") from None


def _shorten(path: Path) -> str:
    """Write a path below the user's home with ``~``."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def is_imported(path: Path) -> bool:
    """Whether a folder is one that ``rescorer-train import`` wrote."""
    if not (path / CONFIG_FILE).is_file():
        return False
    config = Folder(path).read_json(CONFIG_FILE)
    return isinstance(config.get("decoder"), dict) and "start" in config


def use_imported(path: Path, recorded: ImportedModel | None = None) -> FoundModel:
    """Use an imported folder as it is.

    Args:
        recorded: the model with which weights were tuned, if they were tuned with one.

    Raises:
        BundleError: a file is missing or damaged.
        ConfigError: it is another model than the recorded one.
    """
    files = SealedFolder(path.resolve())
    names = [CONFIG_FILE, WEIGHTS_FILE, *(name for name in TOKENIZER_FILES if (path / name).exists())]
    names += [LICENCE_FILE] * (path / LICENCE_FILE).exists()
    found = _describe_folder(path, files.seal(names))
    if recorded:
        _check_identity(path, found.added.identity.fits(recorded))
    return found


def _check_identity(source: Path, is_recorded: bool) -> None:
    """Raise ConfigError if a model is not the one with which weights were tuned."""
    if not is_recorded:
        raise ConfigError(
            f"{source}: the weights were tuned with another model: its files, start or end differ, or how it "
            "divides texts; give that model, or tune again"
        )


def _describe_folder(source: Path, folder: SealedFolder, **facts: Any) -> FoundModel:
    config = UnitConfig.from_dict(folder.read_json(CONFIG_FILE), str(folder.path / CONFIG_FILE))
    digest = (config.source or {}).get("sha256") or _hash(dict(folder.hashes))
    digest = _hash([digest, config.prompt.to_dict()]) if config.prompt else digest
    start = config.start[0] if config.start else None
    identity = ImportedModel(str(digest), start, config.end, config.text, config.whole)
    return FoundModel(source, AddedModel(folder, identity), config, **facts)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


class ImportCache:
    """Imported models in a folder that only the user can enter.

    Args:
        max_bytes: size of the cache above which entries are deleted.
        on_step: called with the name of each step of an import, before it begins.
        on_warning: called with a line about each entry that cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int = MAX_CACHE_BYTES,
        on_step: Callable[[str], object] = lambda step: None,
        on_warning: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._on_step, self._on_warning = on_step, on_warning

    def find(
        self,
        source: Path,
        read_sentences: Callable[[], Sequence[Words]],
        recorded: ImportedModel | None = None,
    ) -> FoundModel:
        """Return a model from the cache, or import it.

        Args:
            source: folder or file of the model.
            read_sentences: returns the sentences that choose start and end, and with which the model is
                checked.
            recorded: the model with which weights were tuned: no other one is taken, and it says start and
                end; None to choose them.

        Raises:
            BundleError: the model cannot be used.
            ConfigError: the source is another model than the recorded one; there is no model; it is larger
                than the cache; or the folder of the cache cannot be used.
        """
        files = [(file.name, *_state(file)) for file in list_source(source)]
        chosen: Any = list(asdict(recorded).values())[1:] if recorded else list(read_sentences())
        pointer = self.folder / f"{_hash([VERSION, str(source.resolve()), files, chosen, PRECISION])}.json"
        with self._explain():
            self._make_private()
            found = self._follow(pointer, source)
        if found is None:
            self._on_step("reading it")
            foreign = read_source(find_toolkit(source), source)
            if recorded:
                _check_identity(source, foreign.digest() == recorded.source)
                found = self._open(_name_entry(recorded), source)
            found = found or self._add(source, foreign, read_sentences(), recorded)
        if recorded:
            _check_identity(source, found.added.identity.fits(recorded))
        with self._explain():
            _replace_file(pointer, json.dumps({"entry": found.added.folder.path.name}))
            self._tidy()
        return found

    @contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                f"{self.folder}: cannot keep imported models: {reason}; name another folder by --lm-cache"
            ) from None

    def _make_private(self) -> None:
        """Make the folder of the cache; raise ConfigError if others could change what is in it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(self.folder)
        problem = ""
        if not stat.S_ISDIR(status.st_mode):
            problem = "is a symbolic link"
        elif status.st_uid != os.geteuid():
            problem = "belongs to another user"
        elif status.st_mode & 0o077:
            problem = f"has the mode {stat.S_IMODE(status.st_mode):o}, not 700"
        if problem:
            raise ConfigError(
                f"{self.folder}: {problem}; imported models are kept in a folder that only you can enter: "
                "name another one by --lm-cache"
            )

    def _follow(self, pointer: Path, source: Path) -> FoundModel | None:
        """Open the entry to which a pointer leads; return None if there is none."""
        try:
            name = parse_json(pointer.read_bytes()[:4096], str(pointer)).get("entry")
        except (FileNotFoundError, BundleError):
            return None
        return self._open(name, source) if isinstance(name, str) and ENTRY.fullmatch(name) else None

    def _open(self, name: str, source: Path, *, is_new: bool = False) -> FoundModel | None:
        """Lock and verify an entry; return None if there is none, or it was damaged and is removed."""
        path = self.folder / name
        if not _lock(path):
            return None
        try:
            hashes = SealedFolder(path).read_json(HASHES_FILE)
            if not all(isinstance(digest, str) for digest in hashes.values()):
                raise BundleError(f"{path / HASHES_FILE}: expected hashes by name")
            folder = SealedFolder(path, hashes)
            folder.verify()
            found = _describe_folder(source, folder, cache=self.folder, is_new=is_new)
        except BundleError as error:
            self._on_warning(f"{error}: imported again")
            _remove(path)
            return None
        with suppress(OSError):
            os.utime(path)  # least recently used entries are deleted first
        return found

    def _add(
        self,
        source: Path,
        foreign: ForeignModel,
        sentences: Sequence[Words],
        recorded: ImportedModel | None,
    ) -> FoundModel:
        """Import a model, and add it in one step; another process may add the same one first."""
        size = 4 * sum(tensor.numel() for tensor in foreign.tensors.values())
        if size > self.max_bytes:
            raise ConfigError(
                f"{source}: has {size / 2**30:,.1f} GiB in {PRECISION}, more than the cache of imported "
                f"models may ({self.max_bytes / 2**30:,.1f} GiB): import it once by `rescorer-train import`, "
                "and give --lm its folder"
            )
        units = (recorded.start, recorded.end) if recorded else (AUTO, AUTO)
        start, end = (NONE if unit is None else unit for unit in units)
        usual: TextForm = "upper" if is_upper_case(foreign.read_tokenizer()) else "canonical"
        text = cast(TextForm, recorded.text) if recorded else usual
        with self._explain():
            partial = Path(mkdtemp(prefix=".", suffix=".partial", dir=self.folder))
        try:
            with self._explain():
                whole = recorded.whole if recorded else None
                import_model(foreign, partial, sentences, start, end, text, self._on_step, whole=whole)
                sealed = SealedFolder(partial)
                sealed = sealed.seal([name for name, _ in sealed.list_files()])
                name = _name_entry(_describe_folder(source, sealed).added.identity)
                (partial / HASHES_FILE).write_text(json.dumps(dict(sealed.hashes)), encoding="utf-8")
            for _ in range(2):  # the second time if there was a damaged one
                with suppress(OSError):
                    os.rename(partial, self.folder / name)  # fails if there is one already
                if found := self._open(name, source, is_new=True):
                    return found
            raise ConfigError(f"{self.folder / name}: cannot be read back; is the disk full?")
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _tidy(self) -> None:
        """Delete the least recently used entries above the largest size, pointers to nothing, and leftovers
        of processes that were killed."""
        entries = []
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                if ENTRY.fullmatch(path.name):
                    size = sum(file.stat().st_size for file in path.iterdir())
                    entries.append((path.stat().st_mtime, size, path))
                elif path.name.startswith(".") and time.time() - path.stat().st_mtime > MAX_LEFTOVER_AGE_S:
                    shutil.rmtree(path, ignore_errors=True)
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total > self.max_bytes and _remove(path, unless_used=True):
                total -= size
        left = {path.name for path in self.folder.iterdir() if ENTRY.fullmatch(path.name)}
        for path in self.folder.iterdir():
            if POINTER.fullmatch(path.name):
                with suppress(FileNotFoundError, BundleError):
                    if parse_json(path.read_bytes()[:4096], str(path)).get("entry") not in left:
                        path.unlink()


def _name_entry(model: ImportedModel) -> str:
    return _hash([VERSION, *asdict(model).values(), PRECISION])


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _lock(path: Path) -> bool:
    """Lock an entry until this process ends, so that no other one deletes it; return whether it is there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"{path}: cannot be opened: {error.strerror}") from None
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return True
    except FileNotFoundError:  # deleted meanwhile
        pass
    os.close(descriptor)
    return False


def _remove(path: Path, *, unless_used: bool = False) -> bool:
    """Delete an entry in one step; return whether it is gone.

    Args:
        unless_used: leave it if a process has locked it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        if unless_used:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gone = Path(mkdtemp(prefix=".", suffix=".gone", dir=path.parent))
        os.rename(path, gone / path.name)
        shutil.rmtree(gone, ignore_errors=True)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _replace_file(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)

"""The option ``--lm``: a language model of another toolkit, used at once, beside or without a bundle.

Options come in. A ``Composition``, which is read like a bundle, goes out, and weights that know its models.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import typer

from rescorer.errors import ConfigError, quote
from rescorer.escapes import escape_controls
from rescorer.formats.io.text_io import is_stream
from rescorer.formats.nist import is_stm
from rescorer.models.bundle import (
    MAX_NAME_CHARACTERS,
    AddedModel,
    Bundle,
    BundleSource,
    Composition,
    check_model_name,
    read_bundle,
)
from rescorer.runtime import user_cache_folder
from rescorer.terminal.list_options import ListInputOptions, Lists, find_own_score
from rescorer.terminal.options import TextOptions, WeightOptions, option
from rescorer.terminal.program import running_command, warn
from rescorer.terminal.progress import progress_bar
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.trie import Words
from rescorer.types import NBestList, Weights


class ReadingOptions(Protocol):
    """Options of a command by which lists are read and weighted."""

    @property
    def text(self) -> TextOptions: ...

    @property
    def lists(self) -> ListInputOptions: ...

    @property
    def weights(self) -> WeightOptions: ...


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Language models of other toolkits, and the folder in which their imports are kept."""

    lm: list[str] | None = option(
        None,
        "Language model of another toolkit, beside or without a bundle: a folder of Hugging Face, ESPnet or "
        "SpeechBrain, a GGUF file, or a folder of `rescorer-train import`. Its weight is lm:NAME; default: "
        "the name of the folder. First hypotheses choose start and end. May be repeated.",
        metavar="[NAME=]DIR",
    )
    lm_cache: Path | None = option(
        None,
        "Folder for imported models, which only you can enter; default: rescorer/models in the user's cache "
        "folder.",
        metavar="DIR",
        envvar="RESCORER_LM_CACHE",
        show_envvar=True,
    )

    def compose(
        self, bundle: Path | None, files: Sequence[str], options: ReadingOptions, reference: str | None = None
    ) -> BundleSource:
        """Return what the models are read from: the bundle, or a bundle with the models of ``--lm``.

        Args:
            bundle: folder of the bundle, if any.
            files: the lists, whose first hypotheses choose start and end.
            options: their weights may be tuned with imported models, which are then used again.
            reference: file of references, which helps to read the lists.

        Raises:
            BundleError: a model or the bundle cannot be used.
            ConfigError: there is neither a bundle nor ``--lm``; names of models are invalid or collide; the
                cache cannot be used; or a model is not the one with which the weights were tuned.
        """
        if not self.lm:
            if bundle is None:
                raise ConfigError("no language models: give --bundle, --lm, or both")
            return bundle
        from rescorer.units.cache import ImportCache, is_imported, use_imported  # imports torch
        from rescorer.units.importing import first_best_sentences, split_words

        base = read_bundle(bundle) if bundle else None
        language = options.text.language
        normaliser = base.normaliser if base else Normaliser(NormaliserSettings(language=language))
        known = base.weights if base else {"default": Weights("default", lm={})}
        recorded = options.weights.find(known).imported

        def read_sentences(name: str) -> list[Words]:
            is_surface = name in recorded and recorded[name].text == "surface"
            words_of = split_words if is_surface else normaliser.normalise
            return first_best_sentences(read_first(files, options.lists, reference), words_of)

        found: dict[str, AddedModel] = {}
        for name, source in name_sources(self.lm, base.model_kinds if base else ()).items():
            with show_steps(f"importing {source}") as show:
                cache = ImportCache(
                    self.lm_cache or user_cache_folder("models"), on_step=show, on_warning=warn
                )
                model = (
                    use_imported(source, recorded.get(name))
                    if is_imported(source)
                    else cache.find(source, partial(read_sentences, name), recorded.get(name))
                )
            typer.echo(model.describe(), err=True)
            found[name] = model.added
        return Composition(found, bundle, language)


def name_sources(values: Sequence[str], taken: Collection[str] = ()) -> dict[str, Path]:
    """Read the values of ``--lm``. A model without a name is called like its folder or file.

    Args:
        taken: names of the bundle's models.

    Raises:
        ConfigError: two models have the same name, or a model cannot have its name.
    """
    models: dict[str, Path] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not equals or Path(value).exists():  # a path may contain "="
            path, stem = value, re.sub(r"\.gguf$", "", Path(value).resolve().name, flags=re.I)
            name = re.sub(r"[^\w-]+", "_", stem).strip("_-")[:MAX_NAME_CHARACTERS] or "lm"
        if name in models:
            raise ConfigError(f"--lm {value}: {models[name]} is named {quote(name)} too; write NAME={path}")
        if name in taken:
            raise ConfigError(f"--lm {value}: the bundle has a model {quote(name)}; write OTHER={path}")
        check_model_name(name, ())
        models[name] = Path(path)
    return models


def read_first(files: Sequence[str], options: ListInputOptions, reference: str | None) -> Lists:
    """Read lists for a first time, without warnings; they will be read again.

    Raises:
        ConfigError: a file is a pipe, which cannot be read twice.
    """
    for file in files:
        if is_stream(file):
            raise ConfigError(
                f"{file}: lists from a pipe cannot choose start and end of the model, because they are read "
                "only once; give a file, or import the model by `rescorer-train import` and give --lm its "
                "folder"
            )
        if reference and is_stm(reference):
            yield from options.read(file, warn=False)
        else:
            yield from options.read(file, reference=reference, warn=False)


@contextmanager
def show_steps(what: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal which step of something long is running, and since when."""
    with progress_bar(bar_format="{desc} {elapsed}", leave=False) as bar:

        def show(step: str) -> None:
            bar.set_description_str(escape_controls(f"{what}: {step}"))

        yield show


def find_unweighted(bundle: Bundle | None, weights: WeightOptions) -> list[str]:
    """The models of ``--lm`` to which weights give no weight, because they were not tuned with them."""
    if bundle is None or not bundle.imported:
        return []
    changes = [change.partition("=")[0] for change in weights.weight or ()]
    lm = weights.find(bundle.weights).lm
    return [name for name in bundle.imported if name not in lm and f"lm:{name}" not in changes]


def check_weighted(bundle: Bundle, weights: WeightOptions) -> None:
    """Raise ConfigError, with the command that finds the weights, if a model of ``--lm`` has none."""
    if names := find_unweighted(bundle, weights):
        raise ConfigError(
            f"no weight is known for {', '.join(names)}; find it on lists with references, then give it by "
            f"--weights {name_weights(names)}: {tune_command(names)}"
        )


def complete_weights(
    bundle: Bundle, weights: Weights, lists: Sequence[NBestList], first_pass: Weights | None = None
) -> Weights:
    """Complete weights from which tuning starts, and record the models of ``--lm`` in them.

    Models without a weight get 0. Weights without streams get those of the first pass or, if these are not
    known, weights that explain the order of the hypotheses.

    Raises:
        ConfigError: a model has the name of a stream of the lists.
    """
    if not bundle.imported:
        return weights
    streams = set.intersection(*(set(nbest.streams) for nbest in lists)) if lists else set()
    for name in bundle.imported:
        if name in streams:
            raise ConfigError(
                f"--lm: a model is named {quote(name)}, as a score of the lists is; write --lm OTHER=DIR"
            )
    names = [name for name in bundle.imported if name not in weights.lm]
    if not weights.streams:
        if first_pass is None and streams:
            own = find_own_score(lists, sorted(streams))
            first_pass = Weights(streams={own.stream: 1.0})
            if own.share < 1.0:
                from rescorer.evaluation.tuning import explain_order  # imports much

                first_pass = explain_order(lists, own.stream, bundle.normaliser.normalise)
        if first_pass:
            weights = replace(weights, streams=first_pass.streams, word=first_pass.word)
    value = 0.0 if any(weights.streams.values()) or any(weights.lm.values()) else 1.0
    return record_models(bundle, replace(weights, lm={**weights.lm, **dict.fromkeys(names, value)}))


def record_models(bundle: Bundle, weights: Weights) -> Weights:
    """Record in weights which models of ``--lm`` they are used with."""
    return replace(weights, imported={**bundle.imported, **weights.imported})


def tune_command(names: Sequence[str]) -> str:
    """The command that finds weights for models of ``--lm``, with the inputs of the running command."""
    return shlex.join([*running_command("tune"), "-o", name_weights(names)])


def name_weights(names: Sequence[str]) -> str:
    """Name of the file for weights of models."""
    return f"{'-'.join(names)}.json"

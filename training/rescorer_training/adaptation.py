"""Adapt a bundle to a domain by text alone: its n-gram, its networks, its models in pieces of words, and the
weights of its mixture.

A bundle and a text come in; a new bundle comes out, with perplexities and error rates before and after.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rescorer.errors import MAX_QUOTED_CHARS, BundleError, ConfigError, FormatError, InvalidList, shorten
from rescorer.evaluation.list_errors import gain_to_dict
from rescorer.evaluation.scored_lists import order_by_decision, order_by_first_pass, score_lists
from rescorer.evaluation.significance import Result, Significance, judge_rows
from rescorer.evaluation.statistics import Gain
from rescorer.evaluation.systems import FIRST_PASS, Comparison, build_row
from rescorer.formats.io.text_io import check_target
from rescorer.models.bundle import (
    TEXT,
    WEIGHTS,
    Bundle,
    list_model_files,
    list_phrase_files,
    publish,
    read_bundle,
)
from rescorer.models.language_model import LanguageModel
from rescorer.models.network_files import LICENCE_FILE, NETWORK_FILES
from rescorer.models.neural import load_model
from rescorer.models.ngram_files import contains_words
from rescorer.models.ngrams import align_vocabularies
from rescorer.pipeline import Rescorer, load_bundle_models, load_ngram
from rescorer.progress import track
from rescorer.safe_input import Folder
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.types import NBestList, Weights
from rescorer.units.files import read_unit_config
from rescorer.weights import MIXTURE, weights_to_dict
from rescorer_training.corpus import read_lines, read_sentences
from rescorer_training.evaluation.perplexity import (
    ModelSet,
    choose_name,
    fit_mixture,
    measure,
    open_ngram,
    score_tokens,
)
from rescorer_training.finetuning import (
    MAX_JUDGED_WORDS,
    Finetuned,
    FinetuningOptions,
    FinetuningPlaces,
    FinetuningTexts,
    finetune,
    per_word_perplexity,
    take_words,
)
from rescorer_training.neural.checkpoint import find_precision, quantise
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.prepare import RunInputs, perplexity, print_status
from rescorer_training.neural.train import prepare_run, train
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.ngram.prune import interpolate_files

MIN_TRAINING_SENTENCES = 100
MIN_HELD_OUT_SENTENCES = 20
HELD_OUT_SHARE = 0.1
MAX_HELD_OUT_SENTENCES = 10_000
"""Largest number of held-out sentences. More would cost time and text, and hardly make figures more exact."""
MAX_BLOCK_SENTENCES = 50
"""Largest number of consecutive sentences held out as a block, so that most dialogues stay on one side."""
MAX_UNKNOWN_SHARE = 0.5


@dataclass(frozen=True)
class DomainText:
    """The parts of a domain's text, each written to a file with one sentence per line."""

    name: str
    train: Path
    fitting: Path
    """Held-out half for fitting interpolation weights, and for stopping the training of networks early."""
    judging: Path
    """Held-out half that is used only to measure perplexities."""
    held_out_name: str
    """Name of the file from which both halves were held out."""
    n_sentences: int
    """Number of sentences to learn from."""
    counts: Counter[str]
    """Occurrences of each normalised word in the text to learn from."""

    @property
    def n_words(self) -> int:
        return self.counts.total()

    def count_unknown(self, known: Collection[str]) -> tuple[int, int]:
        """Count the distinct words to learn from that ``known`` lacks, and all occurrences of these."""
        unknown = [count for word, count in self.counts.items() if word not in known]
        return len(unknown), sum(unknown)


def divide_text(
    text: Path, validation: Path | None, normaliser: Normaliser, seed: int, folder: Path
) -> DomainText:
    """Read a text, hold out blocks of consecutive sentences, and write the parts into ``folder``.

    Args:
        validation: held-out text; None holds out a tenth of ``text``.

    Raises:
        ConfigError: there are too few sentences, or both texts are the same file.
        FormatError: a file cannot be read.
    """
    if validation is not None and validation.exists() and text.exists() and validation.samefile(text):
        raise ConfigError(
            f"--valid {validation} is the text to learn from; give another text, or leave it out"
        )
    learnt = held_out = _read_sentences(text, normaliser)
    if validation is None:
        purpose = f"{MIN_TRAINING_SENTENCES} to learn from and {MIN_HELD_OUT_SENTENCES} held out"
        _check_count(text, len(learnt), MIN_TRAINING_SENTENCES + MIN_HELD_OUT_SENTENCES, purpose)
        fitting, judging = choose_held_out(len(learnt), seed)
        excluded = {*fitting, *judging}
        learnt = [sentence for i, sentence in enumerate(held_out) if i not in excluded]
    else:
        held_out = _read_sentences(validation, normaliser)
        _check_count(text, len(learnt), MIN_TRAINING_SENTENCES, "to learn from")
        _check_count(validation, len(held_out), MIN_HELD_OUT_SENTENCES, "held out")
        fitting, judging = divide_blocks(cut_into_blocks(len(held_out)))
    files = (folder / "train.txt", folder / "fitting.txt", folder / "judging.txt")
    parts = (learnt, [held_out[i] for i in fitting], [held_out[i] for i in judging])
    for file, part in zip(files, parts, strict=True):
        file.write_text("".join(f"{line}\n" for line, _ in part), encoding="utf-8")
    counts = Counter(word for _, words in learnt for word in words)
    return DomainText(text.name, *files, (validation or text).name, len(learnt), counts)


def choose_held_out(n_sentences: int, seed: int) -> tuple[list[int], list[int]]:
    """Choose blocks of sentences to hold out; return the sentence numbers for fitting and for judging."""
    wanted = min(max(HELD_OUT_SHARE * n_sentences, MIN_HELD_OUT_SENTENCES), MAX_HELD_OUT_SENTENCES)
    blocks = cut_into_blocks(n_sentences)
    n_blocks = max(2, round(wanted / len(blocks[0])))
    chosen = np.random.default_rng(seed).choice(len(blocks), n_blocks, replace=False)
    return divide_blocks([blocks[number] for number in sorted(chosen.tolist())])


def cut_into_blocks(n_sentences: int) -> list[range]:
    """Cut a text into at least 20 blocks of at most ``MAX_BLOCK_SENTENCES`` consecutive sentences."""
    size = max(1, min(MAX_BLOCK_SENTENCES, n_sentences // 20))
    return [range(begin, min(begin + size, n_sentences)) for begin in range(0, n_sentences, size)]


def divide_blocks(blocks: Sequence[range]) -> tuple[list[int], list[int]]:
    """Put blocks on two sides in turn; return the sentence numbers of each side."""
    return [i for block in blocks[0::2] for i in block], [i for block in blocks[1::2] for i in block]


def _check_count(path: Path, n_sentences: int, least: int, purpose: str) -> None:
    if n_sentences < least:
        found = f"{n_sentences:,} sentence{'s' * (n_sentences != 1)} with words"
        raise ConfigError(f"{path} has {found}; expected at least {least} ({purpose})")


def check_known(text: DomainText, known: Collection[str], bundle: str) -> None:
    """Raise ConfigError if a bundle does not know most words of a text, which may be in another language."""
    n_unknown, uses = text.count_unknown(known)
    if uses > MAX_UNKNOWN_SHARE * text.n_words:
        examples = ", ".join(repr(word) for word, _ in text.counts.most_common() if word not in known)
        share = 100 * uses / text.n_words
        raise ConfigError(
            f"{text.name}: {share:.0f} % of its words are unknown to {bundle} ({n_unknown:,} distinct ones, "
            f"such as {shorten(examples, MAX_QUOTED_CHARS)}); expected at most "
            f"{100 * MAX_UNKNOWN_SHARE:.0f} %: check language and spelling, and whether lines have ids or "
            "markup; a bundle of another language has to be trained"
        )


def _read_sentences(path: Path, normaliser: Normaliser) -> list[tuple[str, Words]]:
    """Return the lines of a text, each with its normalised words, leaving out lines without any."""
    sentences: list[tuple[str, Words]] = []
    with track(f"reading {path.name}", "lines") as task:
        for line in read_lines(path):
            task.advance()
            if words := normaliser.normalise(line):
                sentences.append((line, words))
    return sentences


SOURCE, DOMAIN = "source", "domain"
"""Names for the bundle's n-gram and the domain's n-gram. An n-gram added as a model has the second."""
DEFAULT_ORDER, MAX_ORDER = 4, 6
MIN_SOURCE_SHARE = 0.01
"""Least interpolation weight of the bundle's n-gram, which knows words that the domain's text lacks.

On a text just like the domain's, this weight costs at most 0.01 nats per word."""


@dataclass(frozen=True)
class AdaptedNgram:
    """An n-gram model to put into the adapted bundle."""

    model: str
    """Name in the bundle: the name of the model that this one replaces, or a new name."""
    file: Path
    order: int
    shares: Mapping[str, float] = field(default_factory=dict)
    """Interpolation weights of ``SOURCE`` and ``DOMAIN``; empty if the n-grams are not interpolated."""
    reason: str = ""
    """Reason for adding the domain's n-gram as a separate model; empty if it is interpolated."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        facts: dict[str, Any] = {"model": self.model, "order": self.order}
        if self.shares:
            return facts | {"interpolation": {name: round(share, 4) for name, share in self.shares.items()}}
        return facts | {"beside_because": self.reason}


def adapt_ngram(bundle: Bundle, text: DomainText, folder: Path) -> AdaptedNgram:
    """Estimate a Kneser-Ney model of the domain's text, and interpolate the bundle's n-gram with it.

    The interpolation weights are fitted by EM on held-out text. If the bundle's n-gram cannot be read back,
    for example because it is a KenLM binary, the domain's model is added to the mixture as a further model.

    Raises:
        ConfigError: the text has special words, such as ``<unk>``.
    """
    name = next((name for name, kind in bundle.model_kinds.items() if kind == "ngram"), None)
    entry = bundle.manifest["models"].get(name, {})
    source = None if name is None else load_ngram(bundle.files, name, entry)
    order = min(source.order, MAX_ORDER) if source else DEFAULT_ORDER
    file = folder / "domain.arpa.gz"
    train_ngram([text.train], bundle.normaliser, file, NGramOptions(order))
    beside = choose_name(DOMAIN, bundle.model_kinds)
    if name is None or source is None:
        return AdaptedNgram(beside, file, order, reason="the bundle has no n-gram")
    path = bundle.files.path / entry["path"]
    if not contains_words(path):
        return AdaptedNgram(beside, file, order, reason="the bundle's n-gram is a KenLM binary")
    models = {SOURCE: source, DOMAIN: open_ngram(file, DOMAIN)}
    try:
        align_vocabularies(list(models.values()))
        sentences = list(read_sentences([text.fitting], bundle.normaliser))
        fitted = fit_mixture(score_tokens(models, sentences, "fitting the n-grams").log_probs)
        domain = min(fitted[DOMAIN], 1 - MIN_SOURCE_SHARE)
        shares = {SOURCE: 1 - domain, DOMAIN: domain}
        mixture = interpolate_files([path, file], list(models.values()), list(shares.values()))
        mixture.save(folder / "ngram.arpa.gz")
    except (FormatError, BundleError) as error:
        return AdaptedNgram(beside, file, order, reason=str(error))
    return AdaptedNgram(name, folder / "ngram.arpa.gz", max(source.order, order), shares)


LONGEST_SENTENCE = 200
"""Maximum number of words per training sentence; longer sentences are truncated."""


@dataclass(frozen=True)
class AdaptedNetwork:
    """A network that was trained further on the text of a domain."""

    folder: Path
    """Model for the adapted bundle: the unchanged one if training did not improve it."""
    perplexity_before: float
    """Perplexity on ``DomainText.fitting`` before training; unknown words count as ``<unk>``."""
    perplexity_after: float
    epochs: int
    seconds: float
    unknown_words: int
    """Number of distinct words of the training text that the network does not know."""
    unknown_uses: int
    """Number of times that these words occur."""

    @property
    def is_improved(self) -> bool:
        return self.perplexity_after < self.perplexity_before

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "improved": self.is_improved,
            "fitting_perplexity": [round(self.perplexity_before, 3), round(self.perplexity_after, 3)],
            "epochs": self.epochs,
            "seconds": round(self.seconds, 1),
            "unknown_words": self.unknown_words,
            "unknown_uses": self.unknown_uses,
        }


def adapt_network(
    source: Path,
    text: DomainText,
    normaliser: Normaliser,
    options: TrainingOptions,
    folder: Path,
    run_options: RunOptions,
) -> AdaptedNetwork:
    """Continue the training of a network on the domain's text, with early stopping on held-out text.

    The vocabulary stays the same, and all other words are trained as ``<unk>``. The result is stored in the
    same precision as the source.

    Args:
        source: folder of the model in the bundle.
        folder: folder for the training run.

    Raises:
        FormatError: the network knows none of the words.
        ConfigError: the device is not available.
    """
    start = folder / "start" / "best"
    start.mkdir(parents=True)
    for name in NETWORK_FILES:
        shutil.copyfile(source / name, start / name)
    run = folder / "run"
    inputs = RunInputs([text.train], text.fitting, run, normaliser, LONGEST_SENTENCE, start.parent)
    prepared = prepare_run(inputs, None, 0)
    model, vocabulary = load_model(start)
    before = perplexity(model, prepared.validation)
    network = NetworkOptions(dropout=model.config.dropout)
    facts = train(inputs, prepared, network, options, run_options)
    after = facts["validation_perplexity"]
    adapted = source
    if after < before:
        adapted = folder / "adapted"
        quantise(run / "best", adapted, find_precision(source))
    unknown = text.count_unknown(frozenset(vocabulary.words))
    return AdaptedNetwork(adapted, before, after, facts["epochs"], facts["seconds"], *unknown)


@dataclass(frozen=True)
class UnitAdaptation:
    """How models in pieces of words are trained further."""

    options: FinetuningOptions
    replay: Path | None = None
    """Text of the kind that the models were trained on, which is mixed in so that less is forgotten."""
    states: Path | None = None
    """Folder for the states of the runs, of each model one; None: they are not saved."""


def adapt_units(
    bundle: Bundle, inputs: AdaptationInputs, adaptation: UnitAdaptation, text: DomainText, folder: Path
) -> dict[str, Finetuned]:
    """Train the models in pieces of words of a bundle further, each in its form of texts, by name.

    Args:
        folder: existing folder in which the results are written.

    Raises:
        ConfigError: a model cannot be trained, or a text has nothing to score.
    """
    options, found = adaptation.options, dict[str, Finetuned]()
    for name in sorted(bundle.open_vocabulary):
        source = bundle.files.path / bundle.manifest["models"][name]["path"]
        state = adaptation.states / f"{name}.safetensors" if adaptation.states else None
        places = FinetuningPlaces(source, folder / name, state, inputs.run.device)
        replay = read_replay(source, adaptation.replay, bundle.normaliser, options.words)
        share = 1.0 if options.before else options.words / text.n_words  # sentences before others are kept
        texts = FinetuningTexts(
            sample_words(read_form(source, text.train, bundle.normaliser), share, options.seed),
            list(read_form(source, text.fitting, bundle.normaliser)),
            replay,
        )
        note = {"text": text.name} | ({"replay": adaptation.replay.name} if adaptation.replay else {})
        found[name] = finetune(name, places, texts, options, note)
    return found


def read_form(source: Path, file: Path, normaliser: Normaliser) -> Iterator[Words]:
    """The sentences of a file, in the form in which the model in pieces of words of a folder reads texts."""
    if read_unit_config(Folder(source)).text == "surface":
        return filter(None, (tuple(line.split()) for line in read_lines(file)))
    return read_sentences([file], normaliser)


def read_replay(source: Path, file: Path | None, normaliser: Normaliser, n_words: int) -> list[Words]:
    """The first words of a text to replay, in the form in which a model reads texts; none without a text.

    Raises:
        ConfigError: the text has no words.
    """
    if file is None:
        return []
    sentences = list(take_words(read_form(source, file, normaliser), n_words))
    if not sentences:
        raise ConfigError(f"--replay {file} has no words; expected one sentence per line")
    return sentences


def sample_words(sentences: Iterable[Words], share: float, seed: int) -> list[Words]:
    """Each sentence with the probability ``share``, so that no more of a text is kept than training reads."""
    random = np.random.default_rng(seed)
    return [words for words in sentences if random.random() < share]


BEFORE, AFTER = "before", "after"


class Change(NamedTuple):
    """A figure of a model in the bundle and in the adapted bundle; None where a bundle lacks the model."""

    before: float | None
    after: float | None

    def to_list(self, decimals: int) -> list[float | None]:
        """Convert to JSON data."""
        return [None if value is None else round(value, decimals or None) for value in self]


@dataclass(frozen=True)
class MeasuredText:
    """Perplexities on a text from which nothing was learnt."""

    file: str
    tokens: int
    """Number of words and sentence ends."""
    unknown: Change
    """Number of words that no model knows."""
    perplexity: Mapping[str, Change]
    """Perplexity by model, and that of the ``mixture``."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; pairs are before and after."""
        perplexity = {name: change.to_list(3) for name, change in self.perplexity.items()}
        return {
            "text": self.file,
            "tokens": self.tokens,
            "unknown_words": self.unknown.to_list(0),
            "perplexity": perplexity,
        }

    def to_measurement(self) -> dict[str, Any]:
        """Convert to the entry for the manifest of the adapted bundle."""
        perplexity = {
            name: round(figure.after, 3) for name, figure in self.perplexity.items() if figure.after
        }
        return self.to_dict() | {"unknown_words": self.unknown.after, "perplexity": perplexity}


@dataclass(frozen=True)
class AdaptedModels:
    """The adapted models, and what they were made from."""

    source: str
    """Name and version of the bundle that was adapted."""
    text: DomainText
    seed: int
    ngram: AdaptedNgram | None
    """None: all models of the bundle read pieces of words."""
    networks: Mapping[str, AdaptedNetwork]
    """By the name of the model."""
    units: Mapping[str, Finetuned]
    """Models in pieces of words, by name."""

    @property
    def folders(self) -> dict[str, Path]:
        """Folder of each network and each model in pieces of words, by the name of the model."""
        networks = {name: network.folder for name, network in self.networks.items()}
        return networks | {name: model.folder for name, model in self.units.items()}


@dataclass(frozen=True)
class AdaptationReport:
    """Report of an adaptation: what was changed in the bundle, and the figures before and after."""

    adapted: AdaptedModels
    shares: Mapping[str, Change]
    """Interpolation weight λ of each model in the mixture."""
    texts: Mapping[str, MeasuredText]
    """Measurements on the ``domain`` and on the ``general`` text."""
    per_word: Mapping[str, Mapping[str, Change]]
    """Perplexity per word of each model in pieces of words, by its name and that of the text."""
    stale_weights: Sequence[str]
    """Names of the sets of weights without the values that were learnt with the source's models; see
    ``write_settings``."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data, as the manifest has it; pairs are before and after."""
        adapted = self.adapted
        return {
            "source": adapted.source,
            "text": adapted.text.name,
            "sentences": adapted.text.n_sentences,
            "words": adapted.text.n_words,
            "seed": adapted.seed,
            **({"ngram": adapted.ngram.to_dict()} if adapted.ngram else {}),
            "networks": {name: network.to_dict() for name, network in adapted.networks.items()},
            "units": {
                name: model.to_dict()
                | {"perplexity_per_word": {text: c.to_list(3) for text, c in self.per_word[name].items()}}
                for name, model in adapted.units.items()
            },
            "mixture": {name: change.to_list(4) for name, change in self.shares.items()},
            "texts": {name: text.to_dict() for name, text in self.texts.items()},
            "stale_weights": list(self.stale_weights),
        }


JudgedText = tuple[str, Sequence[Words]]
"""A text to measure perplexities on: the name to report, and its sentences."""


def measure_texts(
    before: ModelSet, after: ModelSet, texts: Mapping[str, JudgedText]
) -> dict[str, MeasuredText]:
    """Measure perplexities on each text.

    So that the perplexities are comparable, all models spread probability 1 over the same words. Words
    that only the adapted models know count as unknown words of the models before.
    """
    vocabulary = frozenset().union(*(model.vocabulary() for model in after.models.values()))
    align_vocabularies(list(before.models.values()), vocabulary)
    align_vocabularies(list(after.models.values()))
    measured: dict[str, MeasuredText] = {}
    for name, (file, sentences) in texts.items():
        old, new = (
            measure(score_tokens(mixed.models, sentences, f"scoring {name} text, {label}"), mixed.shares)
            for label, mixed in ((BEFORE, before), (AFTER, after))
        )
        unknown = Change(old.models[MIXTURE].n_unknown, new.models[MIXTURE].n_unknown)
        perplexities = pair_up(
            *({model: figures.shared for model, figures in found.models.items()} for found in (old, new))
        )
        measured[name] = MeasuredText(file, new.n_tokens, unknown, perplexities)
    return measured


def pair_up(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Change]:
    """Pair the figures of the same model, the mixture last."""
    names = [name for name in dict.fromkeys([*before, *after]) if name != MIXTURE]
    ends = [MIXTURE] if MIXTURE in after else []
    return {name: Change(before.get(name), after.get(name)) for name in [*names, *ends]}


@dataclass(frozen=True)
class ListComparison:
    """Comparison of the error rates of the first pass, the bundle and the adapted bundle on lists."""

    results: Sequence[Result]
    """Results of the first pass, the bundle and the adapted bundle, with intervals."""
    gain: Gain
    """Reduction of the error rate from the bundle to the adapted bundle."""
    unit: str
    """Unit that the bootstrap draws: ``list`` or ``group``."""
    n_units: int
    n_lists: int
    rejected: Sequence[InvalidList]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent."""
        return {
            "systems": [{"name": result.row.name, **result.to_dict()} for result in self.results],
            "after_over_before": gain_to_dict(self.gain),
            "lists": self.n_lists,
            "drawn": self.unit,
            "units": self.n_units,
            "rejected_lists": [str(error) for error in self.rejected],
        }


def compare_bundles(
    before: Rescorer, after: Rescorer, lists: Sequence[NBestList], weights: Weights
) -> ListComparison:
    """Rank lists that have references by both bundles, and compare the errors with a paired bootstrap.

    Args:
        weights: weights for both bundles. The adapted bundle replaces λ by the λ fitted with its models.

    Raises:
        FormatError: no list can be evaluated.
    """
    adapted = replace(weights, mixture=after.bundle.weights["default"].mixture)
    scored, rejected = score_lists(before, lists, weights)
    scored_after, _ = score_lists(after, lists, adapted)
    if not scored:
        raise FormatError("no list could be evaluated" + (f": {rejected[0]}" if rejected else ""))
    first = build_row(FIRST_PASS, "first pass", scored, map(order_by_first_pass, scored))
    rows = [
        build_row(name, "model", items, (order_by_decision(item, chosen) for item in items))
        for name, items, chosen in ((BEFORE, scored, weights), (AFTER, scored_after, adapted))
    ]
    comparison = Comparison(scored, first, [first, *rows])
    significance = Significance(comparison)
    drawn = significance.bootstrap
    return ListComparison(
        judge_rows(comparison, significance), significance.gain(rows[1], rows[0]), drawn.unit, drawn.n_units,
        len(scored), rejected,
    )  # fmt: skip


NGRAM_FILE = "model.arpa.gz"
DEFAULT = "default"
"""The weights set that every bundle has."""


def copy_models(
    bundle: Bundle, ngram: AdaptedNgram | None, folders: Mapping[str, Path], folder: Path
) -> dict[str, Any]:
    """Copy the adapted models and the unchanged ones into an unfinished bundle.

    Args:
        folders: folder of each model that has one, by the name of the model.

    Returns:
        The models' manifest entries: those of the source in their order, then that of a new model.
    """
    entries: dict[str, Any] = {**bundle.manifest["models"]}
    if ngram:
        slots = sorted(bundle.slots.get(ngram.model, ()))  # interpolation keeps all words
        new = {"kind": "ngram", "path": f"{ngram.model}/{NGRAM_FILE}", "order": ngram.order}
        entries[ngram.model] = new | ({"slots": slots} if slots else {})
    for name, entry in entries.items():
        licence = f"{entry['path']}/{LICENCE_FILE}"
        for file in [*list_model_files(entry), *([licence] if licence in bundle.manifest["files"] else [])]:
            source = bundle.files.path / file
            if ngram and name == ngram.model:
                source = ngram.file
            elif name in folders:
                source = folders[name] / Path(file).name
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / file)
    return entries


def write_settings(bundle: Bundle, folder: Path, change: Callable[[Weights], Weights]) -> list[str]:
    """Write the normaliser, the lists of phrases and the weights sets of the adapted bundle.

    Everything that was learnt with the models of the source is left out: rerankers, sets other than
    ``default`` that use rerankers, confidences, and held-out error rates.

    Args:
        change: changes what is left of a set.

    Returns:
        The names of the sets from which something was left out.
    """
    for file in (TEXT, *list_phrase_files(bundle.manifest).values()):
        (folder / file).parent.mkdir(exist_ok=True)
        shutil.copyfile(bundle.files.path / file, folder / file)
    (folder / WEIGHTS).mkdir()
    for name, weights in bundle.weights.items():
        if weights.rerankers and name != DEFAULT:
            continue
        adapted = change(replace(weights, calibration=None, held_out={}, rerankers={}))
        text = json.dumps(weights_to_dict(adapted), indent=2)
        (folder / WEIGHTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return [
        name
        for name, weights in bundle.weights.items()
        if weights.calibration or weights.held_out or weights.rerankers
    ]


@dataclass(frozen=True)
class AdaptationInputs:
    """The bundle, the texts and the place of the result."""

    bundle: Path
    text: Path
    output: Path
    """Folder of the new bundle, NAME/VERSION."""
    validation: Path | None = None
    """Held-out text of the domain; None holds out a tenth of ``text``."""
    general: Path | None = None
    """Text of another kind, to measure what the models forget."""
    run: RunOptions = field(default_factory=RunOptions)
    """Device and threads."""


def load_mixed_models(bundle: Bundle, device: str) -> dict[str, LanguageModel]:
    """Load the models of a bundle that are mixed word by word, by name: all models of words, and those in
    pieces of words that have a λ."""
    apart = bundle.open_vocabulary.difference(mixed_units(bundle))
    return {name: model for name, model in load_bundle_models(bundle, device).items() if name not in apart}


def mixed_units(bundle: Bundle) -> list[str]:
    """Names of the models in pieces of words that have a λ in the weights ``default``."""
    return [name for name in sorted(bundle.open_vocabulary) if bundle.weights[DEFAULT].mixture.get(name)]


def adapt_bundle(
    inputs: AdaptationInputs, options: TrainingOptions, units_by: UnitAdaptation
) -> AdaptationReport:
    """Publish an adapted bundle, and report perplexities before and after.

    Args:
        options: options for networks.
        units_by: options for models in pieces of words.

    Raises:
        ConfigError: the output exists or has no version, or the text is too short or mostly unknown words.
        BundleError: the bundle cannot be read.
        FormatError: a text cannot be read.
    """
    check_output(inputs.output)
    bundle = read_bundle(inputs.bundle)
    if bundle.backward:
        raise ConfigError(
            f"{bundle.label} has the backward model {min(bundle.backward)!r}, and only forward ones can be "
            "adapted; train models on the domain's text, and make a bundle of them"
        )
    models = load_mixed_models(bundle, inputs.run.device)
    with tempfile.TemporaryDirectory(prefix="rescorer-adapt-") as name:
        folder = Path(name)
        text = divide_text(inputs.text, inputs.validation, bundle.normaliser, options.seed, folder)
        texts = read_judged_texts(inputs, text, bundle)
        has_words = len(bundle.open_vocabulary) < len(bundle.model_kinds)
        if has_words:
            known = frozenset().union(*(model.vocabulary() for model in models.values()))
            check_known(text, known, bundle.label)
        print_status(f"{text.n_words:,} words in {text.n_sentences:,} sentences to learn from")
        ngram = adapt_ngram(bundle, text, folder) if has_words else None
        networks = {
            name: adapt_network(
                bundle.files.path / entry["path"], text, bundle.normaliser, options, folder / "runs" / name,
                inputs.run,
            )
            for name, entry in bundle.manifest["models"].items()
            if entry["kind"] == "neural"
        }  # fmt: skip
        (folder / "units").mkdir()
        units = adapt_units(bundle, inputs, units_by, text, folder / "units")
        adapted = AdaptedModels(bundle.label, text, options.seed, ngram, networks, units)
        return publish_adapted(inputs, bundle, models, adapted, texts, units_by.options.before)


def check_output(output: Path) -> None:
    """Raise ConfigError unless a new bundle can be written to a path, NAME/VERSION, that does not exist."""
    if not output.name.isdecimal():
        raise ConfigError(f"{output}: the last part of the path must be a version number, such as {output}/1")
    if output.exists():
        raise ConfigError(f"{output} exists, and bundles are immutable; choose another one with --output")
    ancestor = next(parent for parent in output.absolute().parents if parent.exists())
    try:
        check_target(ancestor / output.name)
    except FormatError as error:
        raise ConfigError(f"--output {output}: {error}; choose another folder") from None


def read_measured(file: Path, bundle: Bundle) -> list[Words]:
    """The sentences of a text with which the mixture is fitted or judged; with models in pieces of words in
    the mixture, which are slow, the first ones only."""
    most = MAX_JUDGED_WORDS if mixed_units(bundle) else sys.maxsize
    return list(take_words(read_sentences([file], bundle.normaliser), most))


def read_judged_texts(inputs: AdaptationInputs, text: DomainText, bundle: Bundle) -> dict[str, JudgedText]:
    """Read the texts to measure perplexities on; raises ConfigError if one has no words."""
    files = {"domain": (text.held_out_name, text.judging)}
    if inputs.general:
        files["general"] = inputs.general.name, inputs.general
    texts: dict[str, JudgedText] = {}
    for name, (file, path) in files.items():
        texts[name] = file, read_measured(path, bundle)
        if not texts[name][1]:
            raise ConfigError(f"the {name} text {file} has no words; expected one sentence per line")
    return texts


def measure_units(
    bundle: Bundle, inputs: AdaptationInputs, adapted: AdaptedModels, before_each: int
) -> dict[str, dict[str, Change]]:
    """Perplexities per word of models in pieces of words, by the name of the model and that of the text.

    Args:
        before_each: see ``FinetuningOptions.before``.
    """
    files = {"domain": adapted.text.judging} | ({"general": inputs.general} if inputs.general else {})
    found: dict[str, dict[str, Change]] = {}
    for name, model in adapted.units.items():
        source = bundle.files.path / bundle.manifest["models"][name]["path"]
        found[name] = {}
        for text, file in files.items():
            sentences = list(take_words(read_form(source, file, bundle.normaliser), MAX_JUDGED_WORDS))
            before = per_word_perplexity(
                source, name, sentences, f"{text} text, {name} {BEFORE}", before_each
            )
            after = before
            if model.is_improved:
                purpose = f"{text} text, {name} {AFTER}"
                after = per_word_perplexity(model.folder, name, sentences, purpose, before_each)
            found[name][text] = Change(before, after)
    return found


def publish_adapted(
    inputs: AdaptationInputs,
    bundle: Bundle,
    before: Mapping[str, LanguageModel],
    adapted: AdaptedModels,
    texts: Mapping[str, JudgedText],
    before_each: int,
) -> AdaptationReport:
    """Fit λ on held-out text, measure, and publish the bundle.

    Args:
        before: models of ``bundle``.
        texts: texts to measure perplexities on, by name.
        before_each: see ``FinetuningOptions.before``.
    """
    reports: list[AdaptationReport] = []

    def fill(partial: Path) -> dict[str, Any]:
        entries = copy_models(bundle, adapted.ngram, adapted.folders, partial)
        shares: Mapping[str, float] = {}
        measured: dict[str, MeasuredText] = {}
        old_shares = bundle.weights["default"].mixture
        if before:
            unfinished = replace(bundle, files=Folder(partial), manifest={"models": entries})
            after = load_mixed_models(unfinished, inputs.run.device)
            fitting = read_measured(adapted.text.fitting, bundle)
            shares = fit_mixture(score_tokens(after, fitting, "fitting λ").log_probs)
            measured = measure_texts(
                ModelSet(before, bundle.normaliser, old_shares),
                ModelSet(after, bundle.normaliser, shares),
                texts,
            )
        per_word = measure_units(bundle, inputs, adapted, before_each)
        stale = write_settings(
            bundle, partial, lambda one: replace(one, mixture=shares if one.mixture else {})
        )
        reports.append(AdaptationReport(adapted, pair_up(old_shares, shares), measured, per_word, stale))
        return {
            "name": inputs.output.absolute().parent.name,
            "version": int(inputs.output.name),
            "models": entries,
            "measured": {name: item.to_measurement() for name, item in measured.items()},
            "training": {**bundle.manifest.get("training", {}), "adaptation": reports[0].to_dict()},
        }

    publish(inputs.output, fill)
    return reports[0]

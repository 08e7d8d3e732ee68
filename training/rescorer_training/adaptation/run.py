"""Adapt a bundle: its n-gram, its networks and the weights of its mixture, published as a new bundle."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rescorer.bundle import Bundle, publish, read_bundle
from rescorer.errors import ConfigError, FormatError
from rescorer.formats.io.targets import check_target
from rescorer.lm.base import LanguageModel
from rescorer.model_loading import load_bundle_models
from rescorer.safe_input.files import Folder
from rescorer.text import Normaliser
from rescorer_training.adaptation.network import AdaptedNetwork, adapt_network
from rescorer_training.adaptation.ngram import adapt_ngram
from rescorer_training.adaptation.publishing import copy_models, write_settings
from rescorer_training.adaptation.report import (
    AdaptationReport,
    AdaptedModels,
    JudgedText,
    MixedModels,
    measure_texts,
    pair_up,
)
from rescorer_training.adaptation.text import DomainText, check_known, divide_text
from rescorer_training.data.corpus import read_sentences
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.progress import print_status


@dataclass(frozen=True)
class AdaptationInputs:
    """The bundle, the texts and where the result goes."""

    bundle: Path
    text: Path
    output: Path
    """Folder of the new bundle, NAME/VERSION."""
    validation: Path | None = None
    """Held-out text of the domain; None holds out a tenth of ``text``."""
    general: Path | None = None
    """Text of another kind, on which to measure what was forgotten."""
    device: str = "cpu"
    threads: int | None = None


def adapt_bundle(inputs: AdaptationInputs, options: TrainingOptions) -> AdaptationReport:
    """Publish an adapted bundle, and report perplexities before and after.

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
    models = load_bundle_models(bundle, inputs.device)
    with tempfile.TemporaryDirectory(prefix="rescorer-adapt-") as name:
        folder = Path(name)
        text = divide_text(inputs.text, inputs.validation, bundle.normaliser, options.seed, folder)
        texts = read_judged_texts(inputs, text, bundle.normaliser)
        check_known(text, frozenset().union(*(model.vocabulary() for model in models.values())), bundle.label)
        print_status(f"{text.n_words:,} words in {text.n_sentences:,} sentences to learn from")
        ngram = adapt_ngram(bundle, text, folder)
        networks = adapt_networks(bundle, text, inputs, options, folder)
        adapted = AdaptedModels(bundle.label, text, options.seed, ngram, networks)
        return publish_adapted(inputs, bundle, models, adapted, texts)


def check_output(output: Path) -> None:
    """Raise ConfigError unless a bundle that does not exist yet can be written to a path, NAME/VERSION."""
    if not output.name.isdecimal():
        raise ConfigError(f"{output}: the last part of the path must be a version number, such as {output}/1")
    if output.exists():
        raise ConfigError(f"{output} exists, and bundles are immutable; choose another one with --output")
    ancestor = next(parent for parent in output.absolute().parents if parent.exists())
    try:
        check_target(ancestor / output.name)
    except FormatError as error:
        raise ConfigError(f"--output {output}: {error}; choose another folder") from None


def adapt_networks(
    bundle: Bundle, text: DomainText, inputs: AdaptationInputs, options: TrainingOptions, folder: Path
) -> dict[str, AdaptedNetwork]:
    """Finish each network of a bundle on the domain's text; returns them by model name."""
    networks: dict[str, AdaptedNetwork] = {}
    for name, entry in bundle.manifest["models"].items():
        if entry["kind"] == "neural":
            networks[name] = adapt_network(
                bundle.files.path / entry["path"], text, bundle.normaliser, options, folder / "runs" / name,
                device=inputs.device, threads=inputs.threads,
            )  # fmt: skip
    return networks


def read_judged_texts(
    inputs: AdaptationInputs, text: DomainText, normaliser: Normaliser
) -> dict[str, JudgedText]:
    """Read the texts to measure perplexities on; raises ConfigError if one has no words."""
    files = {"domain": (text.held_out_name, text.judging)}
    if inputs.general:
        files["general"] = inputs.general.name, inputs.general
    texts = {
        name: JudgedText(file, tuple(read_sentences([path], normaliser)))
        for name, (file, path) in files.items()
    }
    for name, judged in texts.items():
        if not judged.sentences:
            raise ConfigError(f"the {name} text {judged.file} has no words; expected one sentence per line")
    return texts


def publish_adapted(
    inputs: AdaptationInputs,
    bundle: Bundle,
    before: Mapping[str, LanguageModel],
    adapted: AdaptedModels,
    texts: Mapping[str, JudgedText],
) -> AdaptationReport:
    """Fit λ on held-out text, measure, and publish the bundle.

    Args:
        before: models of ``bundle``.
        texts: texts to measure perplexities on, by name.
    """
    reports: list[AdaptationReport] = []

    def fill(partial: Path) -> dict[str, Any]:
        networks = {name: network.folder for name, network in adapted.networks.items()}
        entries = copy_models(bundle, adapted.ngram, networks, partial)
        unfinished = replace(bundle, files=Folder(partial), manifest={"models": entries})
        after = load_bundle_models(unfinished, inputs.device)
        fitting = list(read_sentences([adapted.text.fitting], bundle.normaliser))
        shares = fit_mixture(score_tokens(after, fitting, "fitting λ").log_probs)
        stale = write_settings(bundle, shares, partial)
        old_shares = bundle.weights["default"].mixture
        measured = measure_texts(MixedModels(before, old_shares), MixedModels(after, shares), texts)
        reports.append(AdaptationReport(adapted, pair_up(old_shares, shares), measured, stale))
        return {
            "name": inputs.output.absolute().parent.name,
            "version": int(inputs.output.name),
            "models": entries,
            "measured": {name: item.to_measurement() for name, item in measured.items()},
            "training": {**bundle.manifest.get("training", {}), "adaptation": reports[0].to_dict()},
        }

    publish(inputs.output, fill)
    return reports[0]

"""The groups in which the help of ``rescorer-train`` shows options."""

from __future__ import annotations

from typing import ClassVar

from rescorer.terminal.help import GENERAL, GROUPS, GroupedCommand, Groups

TRAINING_GROUPS: dict[str, tuple[str, ...]] = {
    GENERAL: (
        "--network", "--hidden", "--layers", "--embedding", "--epochs", "--vocabulary-size", "--order",
        "--smoothing", "--prune", "--model", "--number", "--temperature", "--dictionary", "--run",
        "--resume", "--seed",
    ),
    "Text and vocabulary": (
        "--validation-share", "--paragraphs", "--vocabulary", "--count-unk", "--longest", "--prompt",
        "--previous", "--start", "--end", "--tokenizer", "--general", "--valid", "--exclude", "--like",
        "--min-words", "--max-words",
    ),
    "Network": (
        "--start-from", "--activation", "--gru-reset", "--window", "--heads", "--residual", "--tied",
        "--carried", "--backward", "--bidirectional", "--pooling",
    ),
    "Output layer": (
        "--output-layer", "--softmaxes", "--classes", "--class-by", "--class-file", "--tree", "--overlap",
    ),
    "Inputs of the network": (
        "--vectors", "--embeddings", "--freeze-embeddings", "--unknown-rows", "--rescale-embeddings",
        "--class-inputs", "--pos-tags", "--topics", "--topic-decay", "--shuffle-topics",
    ),
    "Steps of training": (
        "--batch-words", "--batch-rows", "--bptt", "--accumulate", "--learning-rate", "--final-learning-rate",
        "--warmup-steps", "--schedule", "--plateau-gain", "--plateau-factor", "--optimiser", "--momentum",
        "--gradient-clip", "--validations-an-epoch", "--patience", "--average", "--average-decay",
        "--average-from", "--rank", "--alpha", "--units-rate", "--units-words", "--units-before", "--replay",
    ),
    "Regularisation": (
        "--dropout", "--embedding-dropout", "--locked-dropout", "--weight-dropout", "--weight-decay",
        "--activation-penalty", "--change-penalty",
    ),
    "Objective": (
        "--objective", "--noise-samples", "--noise-power", "--noise-per", "--hypotheses", "--likelihood",
        "--negatives", "--noise-exponent", "--subsample",
    ),
    "Teacher": ("--teacher", "--teacher-weight", "--teacher-words", "--teacher-file"),
}  # fmt: skip
"""The groups of the options that only ``rescorer-train`` has."""
RESOURCES: tuple[str, ...] = (
    *GROUPS["Resources"], "--bfloat16", "--memory", "--memory-mb", "--block-words", "--block-cells",
    "--timeout", "--engine",
)  # fmt: skip


def join_groups() -> Groups:
    """Return the groups of training, then those that it shares with ``rescorer``; training's take precedence
    where both have an option."""
    own = {name for names in TRAINING_GROUPS.values() for name in names}
    shared = {
        title: [name for name in names if name not in own]
        for title, names in {**GROUPS, "Resources": RESOURCES}.items()
        if title not in ("Shards", "Forecast")
    }
    return {
        GENERAL: [*shared.pop(GENERAL), *TRAINING_GROUPS[GENERAL]],
        **{title: names for title, names in TRAINING_GROUPS.items() if title != GENERAL},
        **shared,
        "Output": [*shared["Output"], "--tensorboard"],
    }


class TrainingCommand(GroupedCommand):
    """A command of ``rescorer-train``."""

    groups: ClassVar[Groups] = join_groups()

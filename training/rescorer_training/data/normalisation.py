"""Choose the normaliser that text passes through, and record it with every trained model.

A model is right only for text that is normalised as its training text was. Commands that use models therefore
take the recorded normaliser unless they are given another one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from rescorer.bundle import TEXT, read_normaliser
from rescorer.errors import ConfigError
from rescorer.formats.io.text_io import write_text
from rescorer.text import Normaliser, NormaliserSettings


def choose_normaliser(choice: str | None, models: Iterable[Path] = ()) -> Normaliser:
    """Return the normaliser for ``choice``; say on stderr if the models were trained with another one.

    Args:
        choice: ``raw`` for a normaliser that only splits at blanks, or the path of a JSON file of normaliser
            settings. None: the one recorded with the models, or the default one.
        models: ARPA files, KenLM binaries, and folders of networks or of their runs.

    Raises:
        BundleError: a file cannot be read or is not a JSON object.
        ConfigError: a file has unknown or invalid settings, or no choice is given and the models were trained
            with different normalisers.
    """
    recorded = recorded_normalisers(models)
    if choice is None:
        return common_normaliser(recorded) or Normaliser()
    if choice != "raw" and not Path(choice).exists():
        raise ConfigError(
            f"normaliser {choice}: no such file; expected 'raw' for text that is already normalised, or a "
            "JSON file of normaliser settings, such as the text.json of a bundle; leave it out for the "
            "normaliser recorded with the models, or lower case"
        )
    chosen = Normaliser(NormaliserSettings.raw()) if choice == "raw" else read_normaliser(Path(choice))
    for path, normaliser in recorded.items():
        if normaliser.settings != chosen.settings:
            message = f"note: {path} was trained with another normaliser than --normaliser {choice}"
            print(message, file=sys.stderr)
    return chosen


def common_normaliser(recorded: dict[Path, Normaliser]) -> Normaliser | None:
    """Return the normaliser that models share, by the models' paths; None if there are no models.

    Raises:
        ConfigError: the models were trained with different normalisers.
    """
    chosen: tuple[Path, Normaliser] | None = None
    for path, normaliser in recorded.items():
        if chosen is None:
            chosen = path, normaliser
        elif normaliser.settings != chosen[1].settings:
            raise ConfigError(
                f"{chosen[0]} and {path} were trained with different normalisers; train them with the same "
                "one, or choose one with --normaliser"
            )
    return chosen and chosen[1]


def record_normaliser(model: Path, normaliser: Normaliser) -> None:
    """Write the normaliser of a model's training text next to the model."""
    write_text(record_file(model), normaliser.settings.to_json() + "\n")


def recorded_normalisers(models: Iterable[Path]) -> dict[Path, Normaliser]:
    """Return the recorded normalisers by model; raises the errors of ``recorded_normaliser``."""
    return {path: found for path in models if (found := recorded_normaliser(path)) is not None}


def recorded_normaliser(model: Path) -> Normaliser | None:
    """Return the normaliser recorded with a model; None if there is none, as with models of other tools.

    Raises:
        BundleError: the record cannot be read or is not a JSON object.
        ConfigError: the record has unknown or invalid settings.
    """
    files = [record_file(model)]
    if model.name == "best":  # the record of the run counts until the training has ended
        files.append(record_file(model.parent))
    return next((read_normaliser(file) for file in files if file.exists()), None)


def record_file(model: Path) -> Path:
    """The file of the normaliser of a model: in the folder of a network, next to an n-gram model."""
    return model / TEXT if model.is_dir() else model.with_name(f"{model.name}.{TEXT}")

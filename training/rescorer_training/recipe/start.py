"""Start a recipe: check that its files exist, make the output folder and divide its texts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rescorer.errors import ConfigError
from rescorer.formats.io.targets import make_folder
from rescorer.text import Normaliser
from rescorer_training.data.corpus import read_lines
from rescorer_training.neural.progress import print_status
from rescorer_training.recipe.config import Recipe
from rescorer_training.recipe.report import check_plotting

NETWORKS_FOLDER = "networks"


@dataclass(frozen=True)
class RecipeRun:
    """A recipe with its texts, its output folder and the settings of this run."""

    recipe: Recipe
    data: Path
    folder: Path
    device: str
    threads: int | None
    normaliser: Normaliser
    train: tuple[Path, ...]
    validation: Path

    @property
    def tests(self) -> tuple[Path, ...]:
        """Texts to measure perplexities on."""
        return tuple(self.data / name for name in self.recipe.text.tests)

    def training_text(self, name: str) -> Path:
        """Return the path of a training text, without its held-out lines and those after its first share."""
        names = self.recipe.text.train
        return self.train[names.index(name)] if name in names else self.data / name

    def network_folder(self, name: str) -> Path:
        """Return the folder of a network's training run."""
        return self.folder / NETWORKS_FOLDER / name

    def log(self, message: str) -> None:
        """Print a status line that begins with the recipe's name."""
        print_status(f"{self.recipe.name}: {message}")


def start_run(recipe: Recipe, data: Path, folder: Path, device: str, threads: int | None) -> RecipeRun:
    """Check that all texts exist, make the output folder, and take the lines to use of the training texts."""
    text = recipe.text
    network_texts = chain.from_iterable(network.run.train for network in recipe.networks.values())
    vector_texts = chain.from_iterable(vectors.train for vectors in recipe.vectors.values())
    names = [
        *text.train,
        text.validation,
        *text.tests,
        *recipe.vocabulary.all_of,
        *network_texts,
        *vector_texts,
    ]
    missing = sorted({name for name in names if name and not (data / name).exists()})
    if missing:
        raise ConfigError(f"{data} has no {', '.join(missing)}; give the folder of the texts with --data")
    recipe.list_weight_sets()  # raises an error now rather than after hours of training
    made = (*folder.glob("*.arpa.gz"), *folder.glob("ngrams/*"), *folder.glob(f"{NETWORKS_FOLDER}/*"))
    normaliser = recipe.load_normaliser(sorted(made))
    if recipe.networks:
        check_plotting()  # now rather than after hours of training
    make_folder(folder)
    train, validation = tuple(data / name for name in text.train), data / text.validation
    if text.held_out_lines:
        train, validation = split_held_out(train, text.held_out_lines, folder / "text")
    if text.first_share < 1:
        train = tuple(
            take_first(path, text.first_share, folder / "text" / f"{number}-first.txt")
            for number, path in enumerate(train, start=1)
        )
    return RecipeRun(recipe, data, folder, device, threads, normaliser, train, validation)


def split_held_out(train: tuple[Path, ...], n_lines: int, folder: Path) -> tuple[tuple[Path, ...], Path]:
    """Split the last lines off the first training text, writing both parts to ``folder``.

    Returns:
        The training texts and the validation text.
    """
    kept, held_out = folder / f"{train[0].name.split('.')[0]}-kept.txt", folder / "held-out.txt"
    if not held_out.exists():
        lines = list(read_lines(train[0]))
        if len(lines) <= n_lines:
            raise ConfigError(f"{train[0]} has {len(lines)} lines, but held_out_lines is {n_lines}")
        folder.mkdir(exist_ok=True)
        kept.write_text("".join(f"{line}\n" for line in lines[:-n_lines]), encoding="utf-8")
        held_out.write_text("".join(f"{line}\n" for line in lines[-n_lines:]), encoding="utf-8")
    return (kept, *train[1:]), held_out


def take_first(path: Path, share: float, first: Path) -> Path:
    """Write the first lines of a text to the file ``first``, and return that.

    Raises:
        ConfigError: the share is less than a line.
    """
    if not first.exists():
        lines = list(read_lines(path))
        n_lines = int(share * len(lines))
        if not n_lines:
            raise ConfigError(f"{path} has {len(lines)} lines, of which first_share {share} is not even one")
        first.parent.mkdir(exist_ok=True)
        first.write_text("".join(f"{line}\n" for line in lines[:n_lines]), encoding="utf-8")
    return first

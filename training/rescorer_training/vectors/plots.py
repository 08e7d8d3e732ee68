"""Draw word vectors as points of a plane: as a PNG, or as one HTML page with search and zoom.

Vectors are projected by principal components or by t-SNE, with scikit-learn. They are scaled to length 1
before, because neighbours, analogies and similarities compare only their directions.

The page loads nothing and needs no server. No word can run or load anything: words are escaped, and the
Content-Security-Policy of the page forbids everything except the page's style and script.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rescorer.errors import ConfigError, FormatError, quote
from rescorer.escapes import LINE_END, escape_controls
from rescorer.evaluation.report.pages import source_hash
from rescorer.formats.io import text_io
from rescorer_training.vectors.files import WordVectors

MAX_GROUPS = 7
"""Maximum number of groups. People with any colour vision can tell so many colours apart."""
MIN_WORDS = 4
"""Smallest number of words in a picture."""
MAX_WORDS = 20_000
"""Largest number of words in a picture. The time to make it grows with the square of the number."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The words to draw in a picture."""

    rows: tuple[int, ...]
    """Row of each word in the vectors."""
    groups: tuple[str, ...]
    """Names of the groups of words, which differ in colour; a single empty name if there are no groups."""
    group_of: tuple[int, ...]
    """Index of the group of each word."""
    missing: tuple[str, ...] = ()
    """Words of the file that have no vector."""


def select_most_frequent(vectors: WordVectors, n: int) -> Selection:
    """Choose the first words of the vectors; raises ConfigError if these are too few or too many."""
    rows = range(min(n, len(vectors)))
    return _check(Selection(tuple(rows), ("",), (0,) * len(rows)))


def select_from_file(vectors: WordVectors, path: Path) -> Selection:
    """Choose the words of a file with one word per line, optionally followed by a tab and the word's group.

    Words without a vector and repeated words are left out.

    Raises:
        FormatError: the file cannot be read, or has too many groups.
        ConfigError: too few words have vectors, or too many.
    """
    chosen: dict[int, int] = {}
    groups: dict[str, int] = {}
    missing = []
    for number, line in text_io.read_lines_strict(path):
        word, _, group = (part.strip() for part in line.partition("\t"))
        if not word:
            continue
        if word not in vectors.index:
            missing.append(word)
            continue
        place = groups.setdefault(group, len(groups))
        if len(groups) > MAX_GROUPS:
            message = f"{quote(group)} is group {len(groups)}; expected at most {MAX_GROUPS}, one per colour"
            raise FormatError(message, file=str(path), line=number)
        chosen.setdefault(vectors.index[word], place)
    return _check(Selection(tuple(chosen), tuple(groups), tuple(chosen.values()), tuple(missing)))


def _check(selection: Selection) -> Selection:
    if len(selection.rows) < MIN_WORDS:
        without = f"; {len(selection.missing)} have no vector" if selection.missing else ""
        raise ConfigError(f"{len(selection.rows)} words to draw{without}; expected at least {MIN_WORDS}")
    if len(selection.rows) > MAX_WORDS:
        raise ConfigError(f"{len(selection.rows):,} words to draw; expected at most {MAX_WORDS:,}")
    return selection


class Projection(StrEnum):
    """Ways to turn vectors into points."""

    PCA = "PCA"
    TSNE = "t-SNE"


MAX_PERPLEXITY = 30.0
"""Approximate number of neighbours that t-SNE keeps together, the default of scikit-learn."""
TSNE_START = 1e-4
"""Size of the principal components from which t-SNE starts."""


def check_libraries() -> None:
    """Raise ConfigError if scikit-learn or matplotlib is not installed."""
    for module, name in (("sklearn", "scikit-learn"), ("matplotlib", "matplotlib")):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"pictures of word vectors need {name}: pip install 'rescorer[vectors]'")


def project(unit_rows: np.ndarray, projection: Projection, seed: int) -> np.ndarray:
    """Project vectors of length 1, (N, D), to points with coordinates in -1 … 1, (N, 2) float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about equal vectors, which have no spread
        if projection is Projection.PCA:
            points = project_to_components(unit_rows)
        else:
            from sklearn.manifold import TSNE  # van der Maaten and Hinton 2008

            start = project_to_components(unit_rows) * TSNE_START
            perplexity = min(MAX_PERPLEXITY, (len(unit_rows) - 1) / 3)
            model = TSNE(perplexity=perplexity, init=start, random_state=seed)
            points = np.asarray(model.fit_transform(unit_rows.astype(np.float32)))
    points = points.astype(np.float64) - points.mean(axis=0)
    largest = np.abs(points).max()
    return np.asarray(points / largest if largest > 0 else points)


def project_to_components(unit_rows: np.ndarray) -> np.ndarray:
    """Return the first two principal components, (N, 2). If vectors have one value, the second is zero."""
    from sklearn.decomposition import PCA

    n_components = min(2, unit_rows.shape[1])
    points = PCA(n_components, svd_solver="full").fit_transform(unit_rows.astype(np.float64))
    return np.pad(points, ((0, 0), (0, 2 - n_components)))


N_NEIGHBOURS = 8
MAX_COSINES = 1 << 22
"""Largest number of cosines in memory at once."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#808080")
"""Colours that people with any colour vision can tell apart (Okabe and Ito 2008), and a grey."""


@dataclass(frozen=True, eq=False)
class Picture:
    """Words as points of a plane, in one or several projections."""

    title: str
    words: tuple[str, ...]
    groups: tuple[str, ...]
    group_of: tuple[int, ...]
    points: dict[Projection, np.ndarray]
    """(N, 2) coordinates in -1 … 1."""
    neighbours: np.ndarray
    """(N, K) For each word, the indices of the other drawn words with the highest cosines, best first."""
    cosines: np.ndarray
    """(N, K) cosines of these words."""


def make_picture(
    vectors: WordVectors, selection: Selection, projections: Sequence[Projection], seed: int, title: str
) -> Picture:
    """Project the selected words, and find for each the nearest among the others."""
    rows = list(selection.rows)
    unit_rows = WordVectors(tuple(vectors.words[row] for row in rows), vectors.matrix[rows]).normalised()
    neighbours, cosines = find_nearest(unit_rows, min(N_NEIGHBOURS, len(rows) - 1))
    return Picture(
        title,
        tuple(vectors.words[row] for row in rows),
        selection.groups,
        selection.group_of,
        {projection: project(unit_rows, projection, seed) for projection in projections},
        neighbours,
        cosines,
    )


def find_nearest(unit_rows: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest other rows of each row, best first: their indices and cosines, both (N, n)."""
    places, cosines = [], []
    size = max(MAX_COSINES // len(unit_rows), 1)
    for start in range(0, len(unit_rows), size):
        block = unit_rows[start : start + size] @ unit_rows.T
        block[np.arange(len(block)), np.arange(start, start + len(block))] = -np.inf
        best = np.argsort(-block, axis=1, kind="stable")[:, :n]
        places.append(best)
        cosines.append(np.take_along_axis(block, best, axis=1))
    return np.concatenate(places), np.concatenate(cosines)


MARKERS = "os^DvPX"
SIZE_INCHES = (10.0, 8.0)
DOTS_PER_INCH = 150
LABEL_POINTS = 8.0
LABEL_PLACES = ((4, 3, "left"), (-4, 3, "right"), (4, -8, "left"), (-4, -8, "right"))
"""Places that are tried for a label: offset from the word in points, and horizontal alignment."""


def draw_png(picture: Picture, projection: Projection, stream: BinaryIO) -> int:
    """Write a PNG; return the number of words that have a label. Frequent words get labels first."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    points, group_of = picture.points[projection], np.array(picture.group_of)
    size = 22.0 if len(points) <= 300 else 8.0
    for place, group in enumerate(picture.groups):
        chosen = points[group_of == place]
        axes.scatter(
            chosen[:, 0], chosen[:, 1], s=size, c=COLOURS[place], marker=MARKERS[place], alpha=0.75,
            linewidths=0, label=_escape(group),
        )  # fmt: skip
    axes.set_title(f"{_escape(picture.title)}: {len(points):,} words, {projection}", fontsize=11, loc="left")
    axes.set(xticks=[], yticks=[])
    axes.margins(0.04)
    axes.spines[:].set_color("#cccccc")
    if any(picture.groups):
        axes.legend(frameon=True, fontsize=9, loc="best")
    canvas.draw()
    n_labels = _label(picture, points, figure, axes)
    figure.savefig(stream, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return n_labels


def _label(picture: Picture, points: np.ndarray, figure: Any, axes: Any) -> int:
    """Write each word at the first free place around its point, if any; return the number of labels."""
    figure.set_layout_engine("none")  # what has been measured must not move
    scale = 72 / figure.dpi
    pixels = axes.transData.transform(points) * scale
    frame = axes.get_window_extent()
    left, bottom, right, top = (value * scale for value in (frame.x0, frame.y0, frame.x1, frame.y1))
    taken: list[tuple[float, float, float, float]] = []
    if legend := axes.get_legend():
        box = legend.get_window_extent()
        taken.append((box.x0 * scale, box.y0 * scale, box.x1 * scale, box.y1 * scale))
    n_labels = 0
    for word, point, (x, y) in zip(picture.words, points, pixels, strict=True):
        width = 0.58 * LABEL_POINTS * len(word) + 1
        for dx, dy, alignment in LABEL_PLACES:
            start = x + dx - (width if alignment == "right" else 0)
            box = (start, y + dy - 1, start + width, y + dy + LABEL_POINTS)
            is_inside = box[0] > left and box[1] > bottom and box[2] < right and box[3] < top
            if is_inside and not any(
                box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
                for other in taken
            ):
                axes.annotate(
                    _escape(word), point, (dx, dy), textcoords="offset points", ha=alignment,
                    fontsize=LABEL_POINTS, color="#222222",
                )  # fmt: skip
                taken.append(box)
                n_labels += 1
                break
    return n_labels


def _escape(text: str) -> str:
    """Escape dollar signs, between which matplotlib would read a formula."""
    return text.replace("$", r"\$")


PACKAGE = "rescorer_training.vectors"
TEMPLATES = "templates"


def render_page(picture: Picture) -> str:
    """Render a picture as an HTML page."""
    folder = importlib.resources.files(PACKAGE).joinpath(TEMPLATES)
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    environment = Environment(
        loader=PackageLoader(PACKAGE, TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    data = {
        "words": [*map(escape_controls, picture.words)],
        "groups": [*map(escape_controls, picture.groups)],
        "groupOf": picture.group_of,
        "colours": COLOURS,
        "points": {name.value: points.round(4).tolist() for name, points in picture.points.items()},
        "neighbours": picture.neighbours.tolist(),
        "cosines": [[round(value, 3) for value in row] for row in picture.cosines.tolist()],
    }
    policy = f"default-src 'none'; style-src {source_hash(style)}; script-src {source_hash(script)}; "
    page = environment.get_template("page.html.j2").render(
        title=picture.title,
        n_words=len(picture.words),
        projections=[name.value for name in picture.points],
        data=data,
        policy=Markup(policy + "base-uri 'none'; form-action 'none'"),
        style=Markup(style),
        script=Markup(script),
    )
    return escape_controls(page, LINE_END)

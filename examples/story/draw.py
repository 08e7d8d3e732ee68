"""Draw the pictures of docs/story.md from the files that its commands write; needs matplotlib.

python examples/story/draw.py list rescored.jsonl u117 -o list.svg
python examples/story/draw.py vectors lbl-vectors.txt -o vectors.svg
python examples/story/draw.py agreements agreements.json -o agreements.svg
python examples/story/draw.py models "A made-up world=evaluation.json" -o models.svg
python examples/story/draw.py scale docs/results/networks.md -o scale.svg
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from world import N_PAIRS, TOPICS

COLOURS = {"sea": "#1f77b4", "farm": "#d98b1e", "town": "#a03c8c", "wood": "#2e8b57"}
STYLES = {
    "kn2": ("2-gram", "#b8b8b8"),
    "kn3": ("3-gram", "#8c8c8c"),
    "kn4": ("4-gram", "#5e5e5e"),
    "lbl": ("log-bilinear", "#d98b1e"),
    "nnlm": ("NNLM", "#c2543c"),
    "elman": ("Elman", "#2e8b57"),
    "lstm": ("LSTM", "#1f77b4"),
    "topics": ("LSTM, topics", "#4b3fa7"),
    "mixture": ("all mixed", "#222222"),
}
"""Name and colour of each model, in the order of the story."""


def draw_list(figure: Figure, rescored: str, name: str) -> None:
    """Draw how far each hypothesis is behind the best in sound, in language, and in both."""
    nbest = next(one for one in read_lines(rescored) if one["id"] == name)
    hypotheses = sorted(nbest["hypotheses"], key=lambda one: one["original_rank"])
    shown = [one for one in hypotheses if one["original_rank"] <= 6 or one["rank"] == 1]
    axes, left = figure.subplots(), np.zeros(len(shown))
    for part, label in (("acoustic", "in sound"), ("mixture", "in language")):
        best = max(one["components"][part] for one in hypotheses)
        behind = best - np.array([one["components"][part] for one in shown])
        axes.barh(range(len(shown)), behind, left=left, label=label, height=0.42)
        left = left + behind
    for place, one in enumerate(shown):
        is_right = one["text"] == nbest["reference"]
        text = f"{one['original_rank']}.  {one['text']}" + ("   (what was said)" if is_right else "")
        weight = "bold" if is_right else "normal"
        axes.annotate(text, (0.05, place - 0.26), fontsize=9, weight=weight, va="bottom")
    axes.set(xlabel="nats behind the best", ylim=(len(shown) - 0.6, -0.8), yticks=[])
    figure.legend(loc="outside upper right", ncols=2, frameon=False)


def draw_vectors(figure: Figure, vectors: str) -> None:
    """Draw the words of the topics by the two directions in which their vectors differ most."""
    lines = [line.split() for line in Path(vectors).read_text(encoding="utf-8").splitlines()]
    by_word = {line[0]: np.array(line[1:], dtype=float) for line in lines if len(line) > 2}
    both = figure.subplots(1, 2)
    for axes, title, part in zip(both, ("nouns", "verbs"), (0, 1), strict=True):
        stems = {stem: topic for topic, words in TOPICS.items() for stem in words[part].split()}
        words = [word for word in by_word if word.removesuffix("s") in stems]
        matrix = np.array([by_word[word] / np.linalg.norm(by_word[word]) for word in words])
        matrix -= matrix.mean(axis=0)
        places = keep_apart(matrix @ np.linalg.svd(matrix, full_matrices=False)[2][:2].T)
        for word, (x, y) in zip(words, places, strict=True):
            colour = COLOURS[stems[word.removesuffix("s")]]
            weight = "bold" if word.endswith("s") else "normal"
            axes.annotate(word, (x, y), color=colour, ha="center", va="center", fontsize=9, weight=weight)
        reach = 1.25 * np.abs(places).max(axis=0)
        axes.set(title=title, xlim=(-reach[0], reach[0]), ylim=(-reach[1], reach[1]), xticks=[], yticks=[])
    for topic, colour in COLOURS.items():
        both[0].plot([], [], "s", color=colour, label=topic)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)


def keep_apart(places: np.ndarray) -> np.ndarray:
    """Move labels up or down until none covers another, (n, 2) in units of the picture."""
    places = 2 * places / np.ptp(places, axis=0)
    for _ in range(200):
        gaps = places[:, None] - places[None]  # (n, n, 2)
        covers = (np.abs(gaps[:, :, 0]) < 0.3) & (np.abs(gaps[:, :, 1]) < 0.11)
        np.fill_diagonal(covers, val=False)
        above = np.where(
            gaps[:, :, 1] == 0, np.arange(len(places))[:, None] > np.arange(len(places)), gaps[:, :, 1] > 0
        )
        places[:, 1] += 0.01 * (covers * np.where(above, 1, -1)).sum(axis=1)
    return places


def draw_agreements(figure: Figure, scores: str) -> None:
    """Draw how often each model prefers the verb that agrees, by the number of words in between."""
    log_probs = [one["log_prob"] for one in read_lines(scores)[:-1]]  # the last line has totals
    axes = figure.subplots()
    for name in (name for name in STYLES if name in log_probs[0] and name != "mixture"):
        values = np.array([one[name] for one in log_probs]).reshape(-1, N_PAIRS, 2)
        shares = 100 * (values[:, :, 0] > values[:, :, 1]).mean(axis=1)
        label, colour = STYLES[name]
        axes.plot(3 * np.arange(len(shares)), shares, marker="o", label=label, color=colour, linewidth=2)
    axes.axhline(50, color="#999999", linewidth=0.8, linestyle=":")
    axes.annotate("a coin", (0, 51), color="#777777", fontsize=9)
    axes.set(xlabel="words between noun and verb", ylabel="right verb preferred, %", ylim=(-3, 103))
    axes.set_xticks(3 * np.arange(len(shares)))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def draw_models(figure: Figure, *evaluations: str) -> None:
    """Draw the word accuracy of each model between that of the first pass and the oracle's."""
    panels = figure.subplots(1, len(evaluations), squeeze=False)[0]
    for axes, evaluation in zip(panels, evaluations, strict=True):
        title, _, file = evaluation.rpartition("=")
        systems = {one["name"]: one for one in json.loads(Path(file).read_text())["systems"]}
        first, oracle = (systems[name]["word_accuracy"] for name in ("first pass", "oracle"))
        names = [name for name in STYLES if name in systems]
        for place, name in enumerate(names):
            label, colour = STYLES[name]
            accuracy = systems[name]["word_accuracy"]
            axes.barh(place, accuracy - first, left=first, color=colour, height=0.62)
            side = "left" if accuracy >= first else "right"
            axes.annotate(f" {accuracy:.1f} ", (accuracy, place), va="center", ha=side, fontsize=9)
        for value, label in ((first, "first pass"), (oracle, "oracle")):
            axes.axvline(value, color="#555555", linewidth=1, linestyle="--")
            axes.annotate(f"{label}\n{value:.1f}", (value, -0.7), ha="center", va="bottom", fontsize=9,
                          annotation_clip=False)  # fmt: skip
        axes.set_yticks(range(len(names)), [STYLES[name][0] for name in names])
        lowest = min(first, *(systems[name]["word_accuracy"] for name in names))
        axes.set(xlabel="word accuracy, %", ylim=(len(names) - 0.5, -0.6), xlim=(lowest - 2, oracle + 2))
        axes.set_title(title, pad=32)


def draw_scale(figure: Figure, page: str) -> None:
    """Draw perplexity against time for the output layers in the table of a results page."""
    text = (
        Path(page)
        .read_text(encoding="utf-8")
        .partition("| output layer, objective |")[2]
        .partition("\n\n")[0]
    )
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) s \|", text, re.M)
    axes = figure.subplots()
    for kind, colour in (("k =", "lstm"), ("classes", "lbl"), ("full", "kn4"), ("tree", "elman")):
        points = [(label, float(seconds), float(value)) for label, value, seconds in rows if kind in label]
        points.sort(key=lambda point: point[1])
        axes.plot([x for _, x, _ in points], [y for _, _, y in points], "o-", color=STYLES[colour][1])
        for label, x, y in points[-1:] if kind == "classes" else points:
            text = re.search(r"k = \d+|full softmax|classes|tree", label)[0]
            axes.annotate(text, (x, y), xytext=(6, 6), textcoords="offset points", color=STYLES[colour][1])
    axes.set(xlabel="training, seconds of one core", ylabel="test perplexity", xscale="log", xlim=(18, 480))
    axes.set_xticks([20, 50, 100, 200, 400], ["20", "50", "100", "200", "400"])
    axes.minorticks_off()


def read_lines(file: str) -> list[dict]:
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


PICTURES: dict[str, tuple[Callable[..., None], tuple[float, float]]] = {
    "list": (draw_list, (7, 4)),
    "vectors": (draw_vectors, (8, 4)),
    "agreements": (draw_agreements, (7, 3.6)),
    "models": (draw_models, (8, 4)),
    "scale": (draw_scale, (7, 3.8)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("picture", choices=PICTURES)
    parser.add_argument("source", nargs="+", help="file to draw from, and what the picture is of")
    parser.add_argument("-o", "--output", required=True, help="file to write, .svg or .png")
    arguments = parser.parse_args()
    draw, size = PICTURES[arguments.picture]
    mpl.rcParams |= {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": mpl.cycler(color=["#1f77b4", "#d98b1e"]),
        "svg.hashsalt": "story",  # the same figures give the same file
    }
    figure = Figure(figsize=size, layout="constrained")
    draw(figure, *arguments.source)
    figure.savefig(arguments.output, dpi=120, metadata={"Date": None} if ".svg" in arguments.output else None)


if __name__ == "__main__":
    main()

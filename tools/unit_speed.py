"""Compare the speed of an imported language model with transformers, which reads each hypothesis by itself.

    python -m tools.unit_speed IMPORTED LISTS --peer FOLDER

``IMPORTED`` was imported from ``FOLDER``, or from a GGUF file. The hypotheses of a list are scored in several
ways: by transformers one at a time, by transformers in batches that are sorted by length and padded, and by
the rescorer over the list's trie. The ways take turns, list by list, so that other load on the machine
affects all of them. Times are processor times in one thread. It needs the packages transformers and, for GGUF
files, accelerate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from rescorer.terminal.list_options import ListInputOptions
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer.text import Normaliser
from rescorer.trie import Words, build_trie
from rescorer.types import NBestList
from rescorer.units.files import load_unit_model
from rescorer.units.model import DecoderScorer, UnitLanguageModel

Score = Callable[[Sequence[Words]], np.ndarray]
"""Returns ln P of each hypothesis of a list, (H,) float64."""
DTYPES = ("float32", "int8")


def load_peer(path: Path) -> Any:
    """Load a causal language model by transformers, in float32."""
    from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]

    folder, files = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **files).eval()


class Peer:
    """Scores hypotheses by transformers.

    Args:
        model: the imported model, which divides texts and says which units come before and after them.
        batch: number of hypotheses that are padded to one length; 1: one at a time.
    """

    def __init__(self, peer: Any, model: UnitLanguageModel, batch: int) -> None:
        self._peer, self._model, self._batch = peer, model, batch
        scorer = model.scorer
        assert isinstance(scorer, DecoderScorer)
        self._before = [*([] if scorer.start is None else [scorer.start]), *model.opening]
        self._after = [] if scorer.end is None else [scorer.end]

    @torch.inference_mode()
    def __call__(self, hypotheses: Sequence[Words]) -> np.ndarray:
        divide = self._model.divider.divide_text
        texts = [[*self._before, *divide(words), *self._after] for words in hypotheses]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        log_probs = np.zeros(len(texts))
        for first in range(0, len(order), self._batch):
            rows = order[first : first + self._batch]
            log_probs[rows] = self._score([texts[i] for i in rows])
        return log_probs

    def _score(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        longest = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        lengths = torch.tensor([len(text) for text in texts])
        seen = torch.arange(longest) < lengths.unsqueeze(1)  # (B, T)
        logits = self._peer(input_ids=ids, attention_mask=seen.long()).logits[:, :-1]
        chosen = logits.log_softmax(dim=-1).gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2).double()
        scored = seen[:, 1:].clone()
        scored[:, : max(len(self._before) - 1, 0)] = False
        return (chosen * scored).sum(dim=1).numpy()


class Trie:
    """Scores hypotheses by the rescorer."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.model = load_unit_model(folder, dtype=dtype, context_cache_bytes=0)

    def __call__(self, hypotheses: Sequence[Words]) -> np.ndarray:
        trie = build_trie(hypotheses)
        return self.model.score(trie).sum_paths(trie)


def measure(ways: Mapping[str, Score], lists: Sequence[Sequence[Words]]) -> FoldingTable:
    """Score all lists in all ways, and make a table of their speeds and differences."""
    seconds = dict.fromkeys(ways, 0.0)
    furthest = dict.fromkeys(ways, 0.0)
    names, n_words = list(ways), sum(len(words) for hypotheses in lists for words in hypotheses)
    for score in ways.values():  # the first call of each is slower
        score(lists[0][:2])
    for number, hypotheses in enumerate(lists):
        found: dict[str, np.ndarray] = {}
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            began = time.process_time()
            found[name] = ways[name](hypotheses)
            seconds[name] += time.process_time() - began
        lengths = np.array([len(words) + 1 for words in hypotheses])
        for name, log_probs in found.items():
            difference = float((np.abs(log_probs - found[names[0]]) / lengths).max())
            furthest[name] = max(furthest[name], difference)
    title = f"{len(lists)} lists, {n_words:,} words"
    table = FoldingTable("way", "words/s", "s a list", "ratio", "difference per word", title=title)
    for name in names:
        table.add_row(
            name,
            f"{n_words / seconds[name]:,.0f}",
            f"{seconds[name] / len(lists):.3f}",
            f"{seconds[names[0]] / seconds[name]:.2f}",
            f"{furthest[name]:.1e}",
        )
    return table


def main(
    imported: Annotated[Path, typer.Argument(help="Folder that rescorer-train import wrote.")],
    file: Annotated[Path, typer.Argument(help="Lists.")],
    peer: Annotated[Path, typer.Option(help="Folder or GGUF file that transformers loads.")],
    fields: Annotated[str, typer.Option(help="Fields of the lists, as for rescorer rescore.")] = "",
    lists: Annotated[int, typer.Option(help="Number of lists to score.")] = 20,
    batches: Annotated[str, typer.Option(help="Numbers of hypotheses per padded batch.")] = "16,100",
) -> None:
    """Compare the speed of an imported language model with transformers."""
    torch.set_num_threads(1)
    normalise = Normaliser().normalise
    read = ListInputOptions([fields] if fields else []).read(str(file))
    chosen = [item for item in islice(read, lists) if isinstance(item, NBestList)]
    if not chosen:
        raise typer.BadParameter(f"{file}: no lists were read; name their fields by --fields")
    texts = [[normalise(one.text) for one in nbest.hypotheses] for nbest in chosen]
    network = load_peer(peer)
    tries = {f"rescorer, {dtype}": Trie(imported, dtype) for dtype in DTYPES}
    model = next(iter(tries.values())).model
    ways: dict[str, Score] = {"transformers, one at a time": Peer(network, model, 1)}
    for size in map(int, batches.split(",")):
        ways[f"transformers, sorted, padded, {size}"] = Peer(network, model, size)
    print_out(measure({**ways, **tries}, texts))


if __name__ == "__main__":
    typer.run(main)

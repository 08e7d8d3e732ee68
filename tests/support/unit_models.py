"""Small models in pieces of words, and a tokenizer that needs no library."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from rescorer.text import Normaliser
from rescorer.types import Weights
from rescorer.units.decoders import Decoder
from rescorer.units.files import UnitConfig, make_model
from rescorer.units.huggingface import read_folder
from rescorer.units.importing import import_model
from rescorer.units.model import UnitLanguageModel
from rescorer.units.prompts import Prompt
from rescorer.units.tokens import Tokenizer
from rescorer.units.toolkits import read_source
from rescorer_training.recipe.bundles import BundleParts, make_bundle

PEER_MODELS = Path(__file__).parents[1] / "golden" / "units"
PEER_NAMES = tuple(json.loads((PEER_MODELS / "scores.json").read_text())["models"])
START, END = 1, 2


class LetterTokenizer:
    """Units are pairs of letters, as far as a word has them, then single ones; a space begins a word."""

    size = 61

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See ``Tokenizer``."""
        return [[unit for part in self._words(text) for unit in self._divide(part)] for text in texts]

    def _words(self, text: str) -> list[str]:
        first, *rest = text.split(" ")
        return [first, *(f" {word}" for word in rest)]

    def _divide(self, word: str) -> list[int]:
        pieces = [word[i : i + 2] for i in range(0, len(word), 2)]
        return [3 + (sum(map(ord, piece)) * 7 + len(piece)) % (self.size - 3) for piece in pieces]

    def find(self, unit: str) -> int | None:
        """See ``Tokenizer``."""
        return {"<s>": START, "</s>": END}.get(unit)

    def name(self, number: int) -> str:
        """See ``Tokenizer``."""
        return {START: "<s>", END: "</s>"}.get(number, f"<{number}>")


class MarkedTokenizer(LetterTokenizer):
    """Units are letters; those that begin a word after a space are other ones, with a mark."""

    letters = "abcdefghijklmnopqrstuvwxyzé'-"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See ``Tokenizer``."""
        n, found = len(self.letters), []
        for text in texts:
            letters = [[3 + max(0, self.letters.find(letter)) for letter in word] for word in text.split(" ")]
            later = [unit + n * (i == 0) for word in letters[1:] for i, unit in enumerate(word)]
            found.append(letters[0] + later)
        return found

    def name(self, number: int) -> str:
        """See ``Tokenizer``."""
        if number < 3:
            return super().name(number)
        mark, letter = divmod(number - 3, len(self.letters))
        return "Ġ" * mark + self.letters[letter]


class SentenceTokenizer(LetterTokenizer):
    """Divides the letters of a whole text, so that words cannot be divided by themselves."""

    def _words(self, text: str) -> list[str]:
        return [text]


def write_letter_bundle(folder: Path, weights: Weights, prompt: Prompt | None = None) -> Path:
    """Write a bundle, toy/1, whose only model, ``llm``, is one of letters that can read 200 of them."""
    source = write_letter_model(folder / "llama")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 200}))
    (source / "LICENSE").write_text("Do with it what you like.\n")
    import_model(read_source("hf", source), folder / "units", [("the", "old", "man")], prompt=prompt)
    (folder / "valid.txt").write_text("the old man\n")
    parts = {
        "ngrams": {}, "networks": {}, "units": {"llm": folder / "units"}, "tests": {}, "weights": weights,
        "validation": folder / "valid.txt", "normaliser": Normaliser(),
    }  # fmt: skip
    make_bundle(BundleParts("toy", 1, **parts), folder / "toy" / "1")
    return folder / "toy" / "1"


LETTERS = [*"abcdefghijklmnopqrstuvwxyz'", "Ġ", "Ċ"]


def write_letter_model(folder: Path, name: str = "llama") -> Path:
    """Write a folder that transformers saved, with a tokenizer of letters in the form of ``tokenizers``."""
    shutil.copytree(PEER_MODELS / name, folder)
    (folder / "tokenizer.json").write_text(letters_json())
    return folder


def write_joining_model(folder: Path) -> Path:
    """Write a model whose tokenizer joins ``e`` and the space after it: texts are divided as a whole."""
    write_letter_model(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"eĠ": 40}
    tokenizer["model"]["merges"] = [["e", "Ġ"]]
    tokenizer["pre_tokenizer"]["use_regex"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def letters_json() -> str:
    """A ``tokenizer.json`` whose units are letters, a space and a line end."""
    units = ["<s>", "</s>", *LETTERS]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    splitting = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": name, "special": True, **flags} for number, name in enumerate(units[:2])
        ],
        "pre_tokenizer": {"type": "ByteLevel", **splitting},
        "model": {"type": "BPE", "vocab": {unit: i for i, unit in enumerate(units)}, "merges": []},
    }
    return json.dumps(tokenizer)


def peer_decoder(name: str) -> Decoder:
    """A decoder that transformers wrote."""
    return Decoder(*read_folder(PEER_MODELS / name))


def unit_model(
    name: str = "llama",
    *,
    end: int | None = END,
    cache_bytes: int = 0,
    opening: tuple[int, ...] = (),
    whole: bool = False,
    has_start: bool = True,
    tokenizer: Tokenizer | None = None,
) -> tuple[UnitLanguageModel, UnitConfig]:
    """A model that transformers wrote, and its configuration.

    Its units are those of ``LetterTokenizer``, or those of ``SentenceTokenizer`` if texts are divided as a
    whole.
    """
    decoder = peer_decoder(name)
    config = UnitConfig(decoder.config, (START, *opening) if has_start else (), end, whole=whole)
    tokenizer = tokenizer or (SentenceTokenizer() if whole else LetterTokenizer())
    return make_model(config, decoder.tensors, tokenizer, context_cache_bytes=cache_bytes), config

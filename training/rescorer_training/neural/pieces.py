"""Pieces of words as the units of a network: their tokenizer, and texts as numbers of its units.

A tokenizer is trained on the words of the training text and their counts. It writes a word as a space and the
bytes of its letters, so that every word has units, and the same ones wherever it stands. The first two units
are ``</s>``, which begins and ends every text, and ``<unk>``, which no text has.

- ``bpe``: the most frequent pairs of neighbouring units are joined, one after another (Sennrich et al. 2016).
- ``unigram``: a word gets the most probable of its divisions. Of all frequent substrings, those stay without
  which the text would be least probable (Kudo 2018).
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rescorer.errors import ConfigError
from rescorer.models.network_files import (
    END,
    SPECIAL_TOKENS,
    START,
    TOKENIZER_FILE,
    UNKNOWN,
    WINDOWED_KINDS,
    Vocabulary,
)
from rescorer.units.tokens import Chains, JsonTokenizer, import_library
from rescorer_training.corpus import iterate_blocks, read_encoded
from rescorer_training.neural.options import NetworkOptions

KINDS = ("bpe", "unigram")
SMALLEST, LARGEST = 300, 100_000
"""Numbers of units; every tokenizer has the 256 bytes among them."""
LEARNT_WORDS = 20_000_000
"""Number of words of text, repetitions included, from which a tokenizer learns; counts are scaled down to
it."""
CHUNK = 10_000  # words of one text that the library is given


@dataclass(frozen=True, slots=True)
class UnitKind:
    """Kind and number of units."""

    kind: str
    size: int

    @classmethod
    def parse(cls, text: str) -> UnitKind:
        """Parse ``bpe:8000`` or ``unigram:8000``.

        Raises:
            ConfigError: the kind is unknown, or the number is out of range.
        """
        kind, _, size = text.partition(":")
        if kind not in KINDS or not size.isdecimal() or not SMALLEST <= int(size) <= LARGEST:
            raise ConfigError(
                f"--units is {text!r}; expected bpe:N or unigram:N, with N from {SMALLEST} to {LARGEST:,}"
            )
        return cls(kind, int(size))


def check_pieces(options: NetworkOptions, units: str | None = None) -> None:
    """Refuse networks for which models in pieces of words have no form.

    Args:
        units: kind and number of the pieces; None or empty for those of another run.

    Raises:
        ConfigError: an option does not fit; the message says why.
    """
    if units:
        UnitKind.parse(units)
    reasons = {
        "--network feedforward, lbl and nlbl see a few units only, which is less than as many words; choose "
        "lstm, gru, elman or transformer": options.kind in (*WINDOWED_KINDS, "nlbl"),
        "the output layer is a full softmax over the units, which are few; leave out --output-layer, --tree, "
        "--classes, --class-by and --softmaxes": (
            options.output not in (None, "full")
            or any((options.tree, options.n_classes, options.class_by, options.softmaxes))
        ),
        "--backward, --carried, --residual, --topics, --pos-tags, --tags, --class-inputs and --embeddings "
        "are for networks over words; leave them out": any(
            (options.backward, options.carried, options.residual, options.topics, options.pos_tags)
        )
        or bool(options.class_inputs or options.embeddings or options.tags),
        "--gru-reset of a network over units is after": options.gru_reset not in (None, "after"),
        "--activation of a network over units is tanh or relu": options.activation
        not in (None, "tanh", "relu"),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ConfigError(f"--units: {reason}")


def train_tokenizer(units: UnitKind, counts: Mapping[str, int]) -> bytes:
    """Train a tokenizer; the same words and counts always give the same one.

    Args:
        counts: the words of the training text, and how often each occurs.

    Returns:
        The file ``tokenizer.json``.

    Raises:
        ConfigError: the library is not installed.
    """
    library = import_library("tokenizers")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    factor = min(1.0, LEARNT_WORDS / max(1, sum(counts.values())))
    scaled = {word: math.ceil(count * factor) for word, count in counts.items() if word not in SPECIAL_TOKENS}
    if units.kind == "unigram":
        tokenizer = _make(library, library.models.Unigram(*_learn_unigrams(library, units.size, scaled)))
        tokenizer.add_special_tokens([END, UNKNOWN])
    else:
        tokenizer = _make(library, library.models.BPE())
        trainer = library.trainers.BpeTrainer(
            vocab_size=units.size,
            special_tokens=[END, UNKNOWN],
            initial_alphabet=_alphabet(library),
            show_progress=False,
        )
        tokenizer.train_from_iterator(_repeat(scaled), trainer)
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, 0)]
    )  # for other programs, which ask it for the unit before texts
    return str(tokenizer.to_str()).encode()


def _make(library: Any, model: Any) -> Any:
    """A tokenizer that writes words as a space and bytes, and divides each by a model."""
    tokenizer, steps = library.Tokenizer(model), library.pre_tokenizers
    tokenizer.normalizer = library.normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = steps.Sequence(
        [
            steps.Split(" ", "merged_with_next"),
            steps.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _alphabet(library: Any) -> list[str]:
    """The letters that stand for bytes."""
    return sorted(library.pre_tokenizers.ByteLevel.alphabet())


def _repeat(counts: Mapping[str, int]) -> Iterator[str]:
    """Texts that have each word as often as it is counted."""
    for word, count in counts.items():
        for begin in range(0, count, CHUNK):
            yield " ".join([word] * min(CHUNK, count - begin))


def make_vocabulary(tokenizer: JsonTokenizer) -> Vocabulary:
    """The vocabulary of a network that predicts the units of a tokenizer, in their order."""
    return Vocabulary((*map(tokenizer.name, range(tokenizer.size)), START))


def read_tokenizer(folder: Path) -> JsonTokenizer:
    """Read the tokenizer of a run."""
    return JsonTokenizer((folder / TOKENIZER_FILE).read_bytes(), str(folder / TOKENIZER_FILE))


def encode_pieces(path: Path, words: Sequence[str], tokenizer: JsonTokenizer, end_id: int) -> float:
    """Replace the numbers of words in a file that ``number_words`` wrote by the units of these words.

    Args:
        words: the words in the order of their numbers.
        end_id: unit that ends sentences.

    Returns:
        Mean number of units per word, ends of sentences included in both.
    """
    chains = Chains.join([[end_id], *tokenizer.encode(words)])
    numbers, n_units = read_encoded(path), 0
    partial = path.with_suffix(".partial")
    with partial.open("wb") as stream:
        for block in iterate_blocks(numbers):
            lengths = chains.lengths[block]
            within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            units = chains.units[np.repeat(chains.first[block], lengths) + within]
            stream.write(units.astype(np.int32).tobytes())
            n_units += len(units)
    n_words = len(numbers)
    del numbers  # unmap the file before it is replaced
    partial.replace(path)
    return n_units / n_words


SEEDS = 4  # number of candidate units per unit that stays
SEED_WORDS = 100_000  # largest number of distinct words whose substrings become units
LONGEST_UNIT = 12  # letters of a unit, which are bytes
KEPT_SHARE = 0.75  # of the units, after each round
ROUNDS = 2  # of expectation and maximisation before units are removed
LEAST_COUNT = 0.5  # of a byte that does not occur, since each must stay
NEVER = -1000.0  # log-probability of units that no text has


def _learn_unigrams(
    library: Any, size: int, counts: Mapping[str, int]
) -> tuple[list[tuple[str, float]], int]:
    """Units and their log-probabilities, and the number of ``<unk>`` among them.

    The library's own trainer is not used, because its result depends on the order of a hash table, which
    differs from process to process. The library only divides the words: unlike in its trainer, a word counts
    for its most probable division alone.
    """
    spell = _make(library, library.models.BPE()).pre_tokenizer.pre_tokenize_str
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:SEED_WORDS]
    spelled = {spell(f" {word}")[0][0]: counts[word] for word in frequent}
    letters = dict.fromkeys(_alphabet(library), LEAST_COUNT)
    log_probs = _find_log_probs(letters | _find_seeds(spelled, SEEDS * size))
    n_pieces = size - 2  # besides </s> and <unk>
    while True:
        for _ in range(ROUNDS):
            found = _count_units(library, log_probs, spelled)
            log_probs = _find_log_probs(letters | found)
        if len(log_probs) <= n_pieces:
            break
        log_probs = _keep_useful(log_probs, found, max(n_pieces, int(KEPT_SHARE * len(log_probs))))
    ordered = sorted(log_probs.items(), key=lambda item: (-item[1], item[0]))
    return [(END, NEVER), (UNKNOWN, NEVER), *ordered], 1


def _find_log_probs(counts: Mapping[str, float]) -> dict[str, float]:
    total = math.log(sum(counts.values()))
    return {unit: math.log(count) - total for unit, count in counts.items()}


def _find_seeds(spelled: Mapping[str, int], n_seeds: int) -> dict[str, float]:
    """The substrings of words that cover most letters of the text, with their counts."""
    counts = Counter[str]()
    for word, count in spelled.items():
        for begin in range(len(word) - 1):
            for end in range(begin + 2, min(begin + LONGEST_UNIT, len(word)) + 1):
                counts[word[begin:end]] += count
    ordered = sorted(counts, key=lambda unit: (-counts[unit] * len(unit), unit))[:n_seeds]
    return {unit: counts[unit] for unit in ordered if counts[unit] > 1}


def _count_units(
    library: Any, log_probs: Mapping[str, float], spelled: Mapping[str, int]
) -> dict[str, float]:
    """Count the units of the most probable divisions of words; units that have none are left out."""
    divider = library.Tokenizer(library.models.Unigram([(UNKNOWN, NEVER), *log_probs.items()], 0))
    divided = divider.encode_batch(list(spelled), add_special_tokens=False)
    counts = Counter[str]()
    for one, count in zip(divided, spelled.values(), strict=True):
        for unit in one.tokens:
            counts[unit] += count
    return {unit: counts[unit] for unit in log_probs if unit in counts}


def _keep_useful(
    log_probs: Mapping[str, float], counts: Mapping[str, float], n_kept: int
) -> dict[str, float]:
    """Keep all letters, and those other units without which the text would be least probable."""
    losses = {
        unit: counts.get(unit, 0) * (log_prob - _divide_otherwise(unit, log_probs))
        for unit, log_prob in log_probs.items()
        if len(unit) > 1
    }
    n_letters = len(log_probs) - len(losses)
    kept = set(sorted(losses, key=lambda unit: (-losses[unit], unit))[: n_kept - n_letters])
    return {unit: value for unit, value in log_probs.items() if len(unit) == 1 or unit in kept}


def _divide_otherwise(unit: str, log_probs: Mapping[str, float]) -> float:
    """Log-probability of the best division of a unit into others."""
    best = [0.0]
    for end in range(1, len(unit) + 1):
        best.append(
            max(
                best[begin] + log_probs.get(unit[begin:end], -math.inf)
                for begin in range(end)
                if end - begin < len(unit)
            )
        )
    return best[-1]

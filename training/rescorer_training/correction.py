"""Rewrite the first hypothesis of a list to what was probably said, and score the others as such rewritings.

This is sequence to sequence for lists: an encoder reads the first hypothesis x in both directions, and a
decoder writes y word by word, attends to x (Luong et al. 2015), and may copy a word of it (See et al. 2017):

    h_s = [GRU→(E x)_s; GRU←(E x)_s],    k_s = W_k h_s
    d_0 = tanh(W_0 · mean h),    d_t = GRU(E y_{t-1}, d_{t-1})
    a_t = softmax(d_t · k),    c_t = Σ_s a_ts k_s,    o_t = tanh(W_o [d_t; c_t]),    g_t = σ(w · o_t + b)
    P(y_t = w | y_<t, x) = g_t · softmax(E o_t)_w + (1 − g_t) · Σ_{s: x_s = w} a_ts

Copying matters because most words of x are right, and because words outside of the vocabulary can be written
in no other way. Probabilities sum to one over the vocabulary, where ``<unk>`` stands for all other words, and
the words of x.

Lists with references come in. They get a score stream ``correction``, ln P(hypothesis | first hypothesis),
and may get new hypotheses that beam search finds. These have the scores of the first hypothesis, and 1 in the
stream ``corrected``, by whose weight they pay for scores that they never earned.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rescorer.candidates import WORDS_FIELD, find_tokens, fit_phrase, put
from rescorer.errors import BundleError, ConfigError, FormatError, ScoringError
from rescorer.evaluation.folds import Folds, make_folds
from rescorer.formats.io.text_io import replace_file, write_text
from rescorer.models.network_files import (
    CONFIG_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    Shapes,
    Vocabulary,
    check_tensors,
)
from rescorer.progress import track
from rescorer.safe_input import Folder, descriptor_path
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.types import Hypothesis, NBestList
from rescorer_training.batches import cut_into_batches
from rescorer_training.classes.partition import order_vocabulary
from rescorer_training.corpus import choose_normaliser, record_normaliser
from rescorer_training.progress import option

CORRECTION, CORRECTED = "correction", "corrected"
"""Names of the streams."""
MAX_SIZE, MAX_VOCABULARY = 4096, 1_000_000
MIN_COUNT = 2
"""Words of fewer lists are unknown, so that the decoder learns to copy unknown words."""
UNKNOWN_SHARE = 1e-4
"""Share of P(<unk>) of a word that is neither in the vocabulary nor in the first hypothesis."""
NEVER = -1e9
"""ln of a probability that is 0, without the gradients of an infinite number."""
MIN_LISTS = 20
LONGEST = 200
"""Longer texts are not rewritten; of their words, so many are scored."""
FURTHER_WORDS = 5
"""Largest number of words by which a rewriting is longer than what it rewrites."""
BATCH_WORDS = 4096
HELD_OUT_SHARE = 10
"""One group in this many says when training stops."""


@dataclass(frozen=True, slots=True)
class CorrectionOptions:
    """Options of a network that rewrites, and of its training.

    Raises:
        ConfigError: a value is out of range.
    """

    embedding: int = option(64, "Size of the word embeddings.")
    hidden: int = option(96, "Size of the decoder's state, and of the encoder's in each direction.")
    hypotheses: int = option(
        3, "Number of hypotheses of a list, best first, from which to learn its reference."
    )
    epochs: int = option(12, "Largest number of passes over the lists; fewer if they cease to help.")
    patience: int = option(2, "Number of epochs without gain after which training stops.")
    batch_words: int = option(600, "Number of words per batch, including padding.")
    learning_rate: float = option(2e-3, "Learning rate of Adam.")
    dropout: float = option(0.3, "Share of the values of embeddings and outputs dropped in training.")
    vocabulary_size: int = option(20_000, "Number of words to know, the most frequent ones.")
    seed: int = option(1, "Random seed.", min=0)

    def __post_init__(self) -> None:
        bounds = {"embedding": (1, MAX_SIZE), "hidden": (1, MAX_SIZE), "vocabulary_size": (1, MAX_VOCABULARY)}
        bounds |= dict.fromkeys(("hypotheses", "epochs", "patience", "batch_words"), (1, 10**6))
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected {least:,} to {most:,}")
        if not 0 <= self.dropout < 1 or not 0 < self.learning_rate < 1:
            message = f"dropout is {self.dropout} and learning_rate {self.learning_rate}"
            raise ConfigError(f"{message}; expected 0 ≤ dropout < 1 and 0 < learning_rate < 1")


@dataclass(frozen=True, slots=True)
class CorrectorConfig:
    """Sizes of a network that rewrites, stored as ``config.json``.

    Raises:
        BundleError: a size is out of range.
    """

    vocabulary_size: int
    embedding: int
    hidden: int
    kind: str = "corrector"

    def __post_init__(self) -> None:
        largest = {"vocabulary_size": MAX_VOCABULARY + 3, "embedding": MAX_SIZE, "hidden": MAX_SIZE}
        for name, most in largest.items():
            size = getattr(self, name)
            if type(size) is not int or not 1 <= size <= most:
                raise BundleError(f"{name} is {size!r:.100}; expected an integer from 1 to {most:,}")
        if self.kind != "corrector":
            raise BundleError(f"kind is {self.kind!r:.100}; expected 'corrector'")

    @classmethod
    def from_dict(cls, values: Any) -> CorrectorConfig:
        """Build a config from plain data; raises BundleError if a setting is unknown, missing or out of
        range."""
        expected = {item.name for item in fields(cls)}
        if not isinstance(values, dict) or values.keys() != expected:
            raise BundleError(f"expected a JSON object with the settings {', '.join(sorted(expected))}")
        return cls(**values)

    def parameter_shapes(self) -> Shapes:
        """Return the shape of every tensor, by name."""
        size, hidden = self.embedding, self.hidden
        shapes: dict[str, tuple[int, ...]] = {"words.weight": (self.vocabulary_size, size)}
        gates = 3 * hidden
        for name in ("encoder", "decoder"):
            for suffix in ("", "_reverse") if name == "encoder" else ("",):
                shapes |= {
                    f"{name}.weight_ih_l0{suffix}": (gates, size),
                    f"{name}.weight_hh_l0{suffix}": (gates, hidden),
                    f"{name}.bias_ih_l0{suffix}": (gates,),
                    f"{name}.bias_hh_l0{suffix}": (gates,),
                }
        layers = {"keys": (hidden, 2 * hidden), "start": (hidden, 2 * hidden), "mix": (size, 2 * hidden)}
        for name, (rows, columns) in (layers | {"gate": (1, size)}).items():
            shapes |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
        return shapes | {"bias": (self.vocabulary_size,)}


class Encoded(NamedTuple):
    """Sources that were read."""

    keys: Tensor
    """(B, S, H)."""
    words: Tensor
    """(B, S) int64, padded with -1. Words outside of the vocabulary have the ids V, V + 1, … within their
    row."""
    state: Tensor
    """(1, B, H), with which the decoder begins."""


class CorrectorNetwork(nn.Module):
    """Encoder and decoder; see the equations of the module."""

    def __init__(self, config: CorrectorConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config, size, hidden = config, config.embedding, config.hidden
        self.words = nn.Embedding(config.vocabulary_size, size)
        self.encoder = nn.GRU(size, hidden, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(size, hidden, batch_first=True)
        self.keys, self.start = nn.Linear(2 * hidden, hidden), nn.Linear(2 * hidden, hidden)
        self.mix, self.gate = nn.Linear(2 * hidden, size), nn.Linear(size, 1)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary_size))
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.words.weight, std=0.1)

    def embed(self, words: Tensor, unknown: int) -> Tensor:
        known = torch.where(words < self.config.vocabulary_size, words, unknown).clamp(min=0)
        return self.dropout(self.words(known))

    def encode(self, words: Tensor, unknown: int) -> Encoded:
        """Read sources, (B, S) int64, each closed by ``</s>`` and padded with -1."""
        lengths = (words >= 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(words, unknown), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
        mean = hidden.sum(1) / lengths[:, None]
        return Encoded(self.keys(hidden), words, torch.tanh(self.start(mean))[None])

    def decode(self, source: Encoded, inputs: Tensor, state: Tensor, unknown: int) -> tuple[Tensor, ...]:
        """Compute what follows each input word, (B, T) int64.

        Returns:
            (B, T, V) ln of the share of each word that is written; (B, T, S) ln of the share of each place
            that is copied; and the next state. The two shares sum to one.
        """
        states, state = self.decoder(self.embed(inputs, unknown), state)
        logits = states @ source.keys.transpose(1, 2)  # (B, T, S)
        attention = logits.masked_fill((source.words < 0)[:, None], NEVER).log_softmax(2)
        context = attention.exp() @ source.keys
        mixed = self.dropout(torch.tanh(self.mix(torch.cat([states, context], 2))))
        gate = self.gate(mixed)
        written = (mixed @ self.words.weight.T + self.bias).log_softmax(2)
        return nn.functional.logsigmoid(gate) + written, nn.functional.logsigmoid(-gate) + attention, state

    def log_probs(self, source: Encoded, inputs: Tensor, targets: Tensor, unknown: int) -> Tensor:
        """Return ln P of each target, (B, T); targets outside of the vocabulary share P(<unk>). Padding
        has -1."""
        written, copied, _ = self.decode(source, inputs, source.state, unknown)
        is_known = targets < self.config.vocabulary_size
        share = torch.where(is_known & (targets != unknown), 0.0, math.log(UNKNOWN_SHARE))
        index = torch.where(is_known, targets, unknown).clamp(min=0)[..., None]
        by_writing = written.gather(2, index).squeeze(2) + share
        same = source.words[:, None] == targets[..., None]  # (B, T, S)
        by_copying = copied.masked_fill(~same, NEVER).logsumexp(2)
        return torch.where(targets >= 0, torch.logaddexp(by_writing, by_copying), 0.0)


class Pair(NamedTuple):
    """Ids of a source and of a target; both end with ``</s>``."""

    source: list[int]
    target: list[int]


def pair(source: Words, target: Words, vocabulary: Vocabulary) -> Pair:
    """Encode a source and a target. Words of the source that the vocabulary lacks have ids from V on."""
    source, target = source[: LONGEST - 1], target[: LONGEST - 1]
    further: dict[str, int] = {}
    first = len(vocabulary)
    for word in source:
        if not vocabulary.is_known(word):
            further.setdefault(word, first + len(further))

    def encode(words: Words) -> list[int]:
        ids = vocabulary.encode(words).tolist()
        return [*(further.get(word, known) for word, known in zip(words, ids, strict=True)), vocabulary.end]

    return Pair(encode(source), encode(target))


def _pad(rows: Sequence[Sequence[int]]) -> Tensor:
    padded = np.full((len(rows), max(map(len, rows))), -1)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(padded)


@dataclass(frozen=True)
class Corrector:
    """A trained network that rewrites, with what it needs to read text."""

    network: CorrectorNetwork
    vocabulary: Vocabulary
    normaliser: Normaliser

    def score_pairs(self, pairs: Sequence[Pair]) -> Tensor:
        """Return ln P(target | source) of each pair in one batch, (B,) float64."""
        unknown, start = self.vocabulary.unknown, self.vocabulary.start
        targets = _pad([one.target for one in pairs])
        inputs = torch.cat([torch.full((len(pairs), 1), start), targets[:, :-1]], 1).clamp(min=0)
        source = self.network.encode(_pad([one.source for one in pairs]), unknown)
        return self.network.log_probs(source, inputs, targets, unknown).double().sum(1)

    @torch.no_grad()
    def score(self, pairs: Sequence[Pair]) -> np.ndarray:
        """Return ln P(target | source) of each pair, (n,) float64, in nats."""
        self.network.eval()
        scores = np.zeros(len(pairs))
        lengths = np.array([len(one.source) + len(one.target) for one in pairs], dtype=np.int64)
        for numbers in cut_into_batches(np.argsort(lengths, kind="stable"), lengths, BATCH_WORDS):
            scores[numbers] = self.score_pairs([pairs[number] for number in numbers]).numpy()
        return scores

    @torch.no_grad()
    def rewrite(self, source: Words, beam: int = 4) -> list[tuple[float, Words]]:
        """Return the ``beam`` most probable rewritings that beam search finds, with ln P, the best first.

        Words outside of the vocabulary are written only if the source has them. Nothing is rewritten that has
        no words, or too many.
        """
        if not 0 < len(source) < LONGEST:
            return []
        self.network.eval()
        vocabulary, unknown = self.vocabulary, self.vocabulary.unknown
        ids = pair(source, (), vocabulary).source
        names = [*vocabulary.words, *dict.fromkeys(word for word in source if not vocabulary.is_known(word))]
        encoded = self.network.encode(torch.tensor([ids]), unknown)
        places = torch.tensor(ids)
        words, scores = torch.tensor([[vocabulary.start]]), torch.zeros(1, dtype=torch.float64)
        state = encoded.state
        done: list[tuple[float, Words]] = []
        for _ in range(len(source) + FURTHER_WORDS + 1):
            n_rows = len(words)
            rows = Encoded(encoded.keys.expand(n_rows, -1, -1), encoded.words.expand(n_rows, -1), state)
            written, copied, state = self.network.decode(rows, words[:, -1:], state, unknown)
            probs = torch.zeros(n_rows, len(names), dtype=torch.float64)
            probs[:, : len(vocabulary)] = written[:, 0].double().exp()
            probs.index_add_(1, places, copied[:, 0].double().exp())
            probs[:, [unknown, vocabulary.start]] = 0.0
            totals = (scores[:, None] + probs.log()).flatten()
            best = totals.topk(min(2 * beam, len(totals)))
            kept: list[tuple[float, int, int]] = []
            for total, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                row, word = divmod(index, len(names))
                if word == vocabulary.end:
                    done.append((total, tuple(names[one] for one in words[row, 1:].tolist())))
                elif len(kept) < beam and total > -math.inf:
                    kept.append((total, row, word))
            done = sorted(done, key=lambda one: -one[0])[:beam]
            if not kept or (len(done) == beam and kept[0][0] <= done[-1][0]):
                break
            parents = [row for _, row, _ in kept]
            words = torch.cat([words[parents], torch.tensor([[word] for *_, word in kept])], 1)
            scores = torch.tensor([total for total, *_ in kept], dtype=torch.float64)
            state = state[:, parents]
        return done

    def annotate(self, lists: Sequence[NBestList], n_new: int = 0) -> list[NBestList]:
        """Return lists with the stream ``correction``, and with up to ``n_new`` new hypotheses at their ends.

        With new hypotheses, every list has the stream ``corrected``.

        Raises:
            ConfigError: a list has one of the streams already.
        """
        found = []
        for nbest in lists:
            if clash := nbest.streams.keys() & {CORRECTION, CORRECTED}:
                raise ConfigError(f"list {nbest.id!r} already has a stream {min(clash)!r}; rename it")
            words = [self.normaliser.normalise(hypothesis.text) for hypothesis in nbest.hypotheses]
            extended = self._extend(nbest, words, n_new) if n_new else nbest
            words += [self.normaliser.normalise(one.text) for one in extended.hypotheses[len(words) :]]
            scores = self.score([pair(words[0], one, self.vocabulary) for one in words])
            found.append(replace(extended, streams={**extended.streams, CORRECTION: tuple(scores.tolist())}))
        return found

    def _extend(self, nbest: NBestList, words: Sequence[Words], n_new: int) -> NBestList:
        known, new = {*words}, list[Hypothesis]()
        first = nbest.hypotheses[0]
        fields = {name: value for name, value in first.fields.items() if name != WORDS_FIELD}
        for _, found in self.rewrite(words[0], 2 * n_new + 1):
            if len(new) < n_new and found and found not in known:
                known.add(found)
                text = rewrite_text(first.text, found, self.normaliser)
                new.append(Hypothesis(text, fields))
        streams = {name: (*values, *[values[0]] * len(new)) for name, values in nbest.streams.items()}
        streams[CORRECTED] = (*[0.0] * len(words), *[1.0] * len(new))
        return replace(nbest, hypotheses=(*nbest.hypotheses, *new), streams=streams)

    def save(self, folder: Path, facts: dict[str, Any]) -> None:
        """Write the network, its vocabulary, its normaliser and facts about its training into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / CONFIG_FILE, json.dumps(asdict(self.network.config)) + "\n")
        write_text(folder / "training.json", json.dumps(facts, indent=2) + "\n")
        self.vocabulary.save(folder / VOCABULARY_FILE)
        record_normaliser(folder, self.normaliser)
        tensors = {name: value.contiguous() for name, value in self.network.state_dict().items()}
        with replace_file(folder / WEIGHTS_FILE) as partial:  # last, because it marks a complete model
            save_file(tensors, partial)
            partial.chmod(0o644)  # safetensors makes it private

    @classmethod
    def load(cls, folder: Path) -> Corrector:
        """Load what ``save`` wrote.

        Raises:
            BundleError: a file is missing or damaged, or the files do not fit together.
        """
        files = Folder(folder)
        values = files.read_json(CONFIG_FILE)
        try:
            config = CorrectorConfig.from_dict(values)
        except BundleError as error:
            raise BundleError(f"{folder / CONFIG_FILE}: {error}") from None
        vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
        if len(vocabulary) != config.vocabulary_size:
            message = f"the vocabulary has {len(vocabulary):,} words, the network {config.vocabulary_size:,}"
            raise BundleError(f"{folder / VOCABULARY_FILE}: {message}")
        network = CorrectorNetwork(config)
        with files.open(WEIGHTS_FILE) as stream:
            check_tensors(stream, config.parameter_shapes())
            network.load_state_dict(load_file(descriptor_path(stream)))
        return cls(network.eval(), vocabulary, choose_normaliser(None, [folder]))


def rewrite_text(text: str, words: Words, normaliser: Normaliser) -> str:
    """Return a text that reads as ``words``: parts that stay the same are written as they were.

    >>> rewrite_text("The C was calm.", ("the", "sea", "was", "calm"), Normaliser())
    'The sea was calm.'
    """
    spans = find_tokens(text)
    parts = [normaliser.normalise(text[begin:end]) for begin, end in spans]
    start = stop = n_before = n_after = 0
    for part in parts:
        if words[n_before : n_before + len(part)] != part:
            break
        start, n_before = start + 1, n_before + len(part)
    for part in reversed(parts[start:]):
        end = len(words) - n_after
        if end - len(part) < n_before or words[end - len(part) : end] != part:
            break
        stop, n_after = stop + 1, n_after + len(part)
    end, middle = len(parts) - stop, " ".join(words[n_before : len(words) - n_after])
    if start == end:  # words are added: before the next word, or at the end
        place = spans[start][0] if start < len(spans) else len(text)
        return " ".join(filter(None, [text[:place].rstrip(), middle, text[place:]]))
    if not middle:
        return " ".join([*text[: spans[start][0]].split(), *text[spans[end - 1][1] :].split()])
    return put(text, spans, start, end, fit_phrase(text, spans, start, end, middle))


@dataclass(frozen=True)
class _TrainingList:
    """Canonical words of the sources of a list, and of its reference."""

    sources: Sequence[Words]
    reference: Words


def train(lists: Sequence[NBestList], normaliser: Normaliser, options: CorrectionOptions) -> Corrector:
    """Train a network to rewrite the best hypotheses of lists to their references. One thread gives the same
    network again.

    A tenth of the groups (or lists) says when training stops.

    Raises:
        FormatError: fewer than 20 lists have references, or no two lists share a word.
        ConfigError: all lists are of one group.
    """
    known = [nbest for nbest in lists if nbest.reference is not None and nbest.hypotheses]
    if len(known) < MIN_LISTS:
        raise FormatError(f"{len(known)} lists have references; expected at least {MIN_LISTS}")
    items = [
        _TrainingList(
            [normaliser.normalise(one.text) for one in nbest.hypotheses[: options.hypotheses]],
            normaliser.normalise(nbest.reference or ""),
        )
        for nbest in known
    ]
    counts = Counter(word for item in items for word in dict.fromkeys((*item.sources[0], *item.reference)))
    frequent = [word for word, count in counts.most_common(options.vocabulary_size) if count >= MIN_COUNT]
    if not frequent:
        raise FormatError("no two lists share a word; expected more lists")
    vocabulary = order_vocabulary(counts, frequent)
    is_held_out = _make_folds(known, HELD_OUT_SHARE).held_out(0)
    pairs, held_out = list[Pair](), list[Pair]()
    for item, is_last in zip(items, is_held_out, strict=True):
        if is_last:
            held_out.append(pair(item.sources[0], item.reference, vocabulary))
        else:
            sources = dict.fromkeys(item.sources)
            pairs += [pair(source, item.reference, vocabulary) for source in sources]
    torch.manual_seed(options.seed)
    config = CorrectorConfig(len(vocabulary), options.embedding, options.hidden)
    corrector = Corrector(CorrectorNetwork(config, options.dropout), vocabulary, normaliser)
    _fit(corrector, pairs, held_out, options)
    return corrector


def _make_folds(lists: Sequence[NBestList], n_folds: int) -> Folds:
    ids, groups, references = zip(*((one.id, one.group, one.reference or "") for one in lists), strict=True)
    return make_folds(ids, groups, references, n_folds)


def _fit(
    corrector: Corrector, pairs: Sequence[Pair], held_out: Sequence[Pair], options: CorrectionOptions
) -> None:
    """Train on pairs, and keep the parameters that make the held-out targets most probable."""
    network, draw = corrector.network, np.random.default_rng(options.seed)
    optimiser = torch.optim.Adam(network.parameters(), options.learning_rate)
    lengths = np.array([len(one.source) + len(one.target) for one in pairs])
    best, kept, n_without_gain = -math.inf, network.state_dict(), 0
    with track("learning to rewrite", "pairs", options.epochs * len(pairs)) as task:
        for _ in range(options.epochs):
            network.train()
            order = draw.permutation(len(pairs))
            order = order[np.argsort(lengths[order], kind="stable")]
            batches = list(cut_into_batches(order, lengths, options.batch_words))
            for number in draw.permutation(len(batches)):
                batch = [pairs[index] for index in batches[number]]
                optimiser.zero_grad(set_to_none=True)
                n_words = sum(len(one.target) for one in batch)
                (-corrector.score_pairs(batch).sum() / n_words).backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimiser.step()
                task.advance(len(batch))
            found = float(corrector.score(held_out).sum()) / sum(len(one.target) for one in held_out)
            if not math.isfinite(found):
                raise ScoringError("training diverged: a probability is not finite; lower --learning-rate")
            task.set_note(f"held-out perplexity {math.exp(-found):.3f}")
            n_without_gain += 1
            if found > best:
                best, n_without_gain = found, 0
                kept = {name: value.clone() for name, value in network.state_dict().items()}
            if n_without_gain == options.patience:
                break
    network.load_state_dict(kept)
    network.eval()


def hold_out(
    lists: Sequence[NBestList],
    normaliser: Normaliser,
    options: CorrectionOptions,
    n_new: int = 0,
    *,
    n_folds: int = 5,
    share_references: bool = False,
) -> list[NBestList]:
    """Annotate each list by a network that was trained on other lists, so that weights can be learnt from it.

    Args:
        n_folds, share_references: see ``divide``.

    Raises:
        ConfigError, FormatError: as for ``divide`` and ``train``.
    """
    found: list[NBestList] = list(lists)
    for training, held_out in divide(lists, n_folds, share_references=share_references):
        corrector = train([lists[i] for i in training], normaliser, options)
        for i, nbest in zip(held_out, corrector.annotate([lists[i] for i in held_out], n_new), strict=True):
            found[i] = nbest
    return found


def divide(
    lists: Sequence[NBestList], n_folds: int, *, share_references: bool = False
) -> list[tuple[list[int], list[int]]]:
    """Return the indices of the lists to train on, and of those to annotate, for each fold.

    Args:
        share_references: train also on lists that share a reference with the annotated fold. Folds never
            divide a group.

    Raises:
        ConfigError: all lists are of one group.
        FormatError: too few lists are left to train on.
    """
    folds = _make_folds(lists, n_folds)
    parts = []
    for fold in range(folds.n_folds):
        is_held_out = folds.held_out(fold)
        is_training = ~is_held_out if share_references else folds.training(fold)
        training = np.flatnonzero(is_training).tolist()
        n_known = sum(lists[i].reference is not None for i in training)
        if n_known < MIN_LISTS:
            others, cure = "", "more --folds"
            if not share_references:
                others, cure = " and lists that share its references", "more --folds, or --share-references"
            raise FormatError(
                f"without fold {fold + 1}{others}, {n_known} lists with references are left to train on; "
                f"expected at least {MIN_LISTS}: give more lists, {cure}"
            )
        parts.append((training, np.flatnonzero(is_held_out).tolist()))
    return parts

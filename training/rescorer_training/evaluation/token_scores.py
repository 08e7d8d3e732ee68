"""Owns what several models give to every token of a text, ln P token by token, over the same tries that
rescoring works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from tqdm import tqdm

from rescorer.errors import FormatError, ScoringError
from rescorer.lm.base import LanguageModel
from rescorer.lm.mixture import mix
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.pipeline import MAX_BATCH_WORDS, budget_cuts
from rescorer.trie import Words, build_trie


@dataclass(frozen=True)
class TokenScores:
    """Scores of T tokens, every word and every ``</s>`` of S sentences, by model."""

    lengths: np.ndarray
    """(S,) int64 tokens of each sentence."""
    log_probs: Mapping[str, np.ndarray]
    """(T,) float64 ln P over the union of the models' vocabularies: a word that one of them lacks has its
    part of that model's ``<unk>``."""
    unknown: Mapping[str, np.ndarray]
    """(T,) bool, the model lacks the word."""
    log_shares: Mapping[str, np.ndarray]
    """(T,) float64 ln of the part of P(``<unk>``) that is the word's; 0 where the model knows it."""

    def mixed(self, shares: Mapping[str, float]) -> np.ndarray:
        """ln Σ_m λ_m · P_m, (T,)."""
        return mix([self.log_probs[name] for name in shares], list(shares.values()))

    def of_sentences(self, log_probs: np.ndarray) -> np.ndarray:
        """Sums over each sentence of (T,) values, (S,)."""
        return np.add.reduceat(log_probs, np.cumsum(self.lengths) - self.lengths)


def score_tokens(
    models: Mapping[str, LanguageModel],
    sentences: Sequence[Words],
    progress: str = "",
    *,
    in_order: bool = False,
) -> TokenScores:
    """Scores a text by every model.

    Args:
        progress: names the bar that is shown, empty for none.
        in_order: networks whose state was carried over sentence ends in training go through the text in its
            order, the state going on; else, and every other model anyway, each sentence starts anew.

    Raises:
        FormatError: there is no sentence.
        ScoringError: a score is not finite.
    """
    if not sentences:
        raise FormatError("no words in the text to score")
    lengths = np.array([len(words) + 1 for words in sentences])
    index = {word: i for i, word in enumerate(dict.fromkeys(word for words in sentences for word in words))}
    tokens = np.array(
        [i for words in sentences for i in (*map(index.__getitem__, words), len(index))]
    )  # (T,)
    log_probs, unknown, log_shares = {}, {}, {}
    with tqdm(
        desc=progress, total=len(tokens) * len(models), unit=" words", unit_scale=True, leave=False,
        disable=None if progress else True,
    ) as bar:  # fmt: skip
        for name, model in models.items():
            known = model.vocabulary()
            unknown[name] = np.array([word not in known for word in index] + [False])[tokens]
            log_shares[name] = np.array([*map(model.log_share, index), 0.0])[tokens]
            log_probs[name] = _scored(model, sentences, lengths, log_shares[name], in_order, bar)
            if not np.isfinite(log_probs[name]).all():
                raise ScoringError(f"model {name!r} gave a score that is not finite")
    return TokenScores(lengths, log_probs, unknown, log_shares)


def _scored(  # type: ignore[no-untyped-def]
    model: LanguageModel,
    sentences: Sequence[Words],
    lengths: np.ndarray,
    shares: np.ndarray,
    in_order: bool,
    bar: tqdm,
) -> np.ndarray:
    """ln P of every token by one model, (T,)."""
    if in_order:
        from rescorer_training.evaluation.token_scores import (  # torch takes seconds to import
            carried_log_probs,
            carries_state,
        )

        if carries_state(model):
            bar.update(len(shares))
            return carried_log_probs(model, sentences) + shares
    parts = []
    for begin, end in budget_cuts(lengths.tolist(), MAX_BATCH_WORDS):
        trie = build_trie(sentences[begin:end])
        edges = np.concatenate([trie.path_edges(i) for i in range(end - begin)])
        parts.append(model.score(trie).log_probs[edges])
        bar.update(len(edges))
    return np.concatenate(parts)


TOKENS_A_STEP = 4096
"""Tokens whose vectors are held at once."""


def carries_state(model: LanguageModel) -> TypeGuard[NeuralLanguageModel]:
    """Whether the model is a network trained with its state carried over sentence ends."""
    return isinstance(model, NeuralLanguageModel) and model.model.config.carried


@torch.inference_mode()
def carried_log_probs(model: NeuralLanguageModel, sentences: Sequence[Words]) -> np.ndarray:
    """ln P of every word and every ``</s>``, without shares of ``<unk>``: (T,) float64.

    The first sentence starts as any does, after ``</s>`` and the zero state.
    """
    parts = [np.append(model.words.encode(words), model.words.end) for words in sentences]
    targets = torch.from_numpy(np.concatenate(parts)).to(model.device)  # (T,)
    inputs = torch.cat([targets.new_tensor([model.start_word]), targets[:-1]])
    out, state = [], None
    for begin in range(0, len(targets), TOKENS_A_STEP):
        chunk = slice(begin, begin + TOKENS_A_STEP)
        vectors, state = model.model.context_vectors(inputs[None, chunk], state)  # (1, n, D)
        rows = torch.arange(vectors.shape[1], device=model.device)
        out.append(model.model.output.log_probs(vectors[0], rows, targets[chunk]).double().cpu().numpy())
    return np.concatenate(out)

"""Tell words that occur from noise words: negative sampling (Mikolov et al. 2013, arXiv 1310.4546)."""

from __future__ import annotations

import torch
from torch import Tensor

from rescorer_training.vectors.word2vec.chunks import Chunks, add_rows
from rescorer_training.vectors.word2vec.sampling import NoiseSampler


class NegativeSampling:
    """Output layer that maximises log σ(q·v) for a query and its word, and log σ(-q·v) for noise words.

    The centre words of a chunk share ``noise_words`` noise words, and each of these counts
    negatives / noise_words times, which has the same expectation as separate noise words for each pair. As in
    the original program, a noise word that equals the centre word is skipped.

    Args:
        vectors: (V + 1, D) output vectors, changed in place; the last row is for padding.
        negatives: noise words per pair of a query and a centre word.
        noise_words: noise words drawn per chunk.
    """

    def __init__(self, vectors: Tensor, noise: NoiseSampler, negatives: int, noise_words: int) -> None:
        self.vectors, self.noise = vectors, noise
        self.noise_words, self.noise_weight = noise_words, negatives / noise_words

    def train(
        self, queries: Tensor, chunks: Chunks, pairs: Tensor, centres: Tensor, rate: float,
        random: torch.Generator,
    ) -> Tensor:  # fmt: skip
        """Take one gradient step; return the step of the queries.

        Args:
            queries: (n_rows, D).
            chunks: how the queries divide into chunks.
            pairs: (n, width, stride): 1 where a query of the chunk predicts a centre word.
            centres: (n, stride) ids of the centre words.
            rate: learning rate.

        Returns:
            (n_rows, D), to be added to the queries.
        """
        n, stride = centres.shape
        noise = self.noise.draw(n * self.noise_words, random).view(n, self.noise_words)
        targets = torch.cat([centres, noise], 1).view(-1)
        vectors = self.vectors.index_select(0, targets).view(n, stride + self.noise_words, -1)
        is_noise = (centres[:, :, None] != noise[:, None]).float().mul_(self.noise_weight)
        weights = torch.cat([pairs, torch.bmm(pairs, is_noise)], 2)
        unfolded = chunks.unfold(queries)
        errors = torch.bmm(unfolded, vectors.transpose(1, 2)).sigmoid_().mul_(weights).neg_()
        errors[:, :, :stride] += pairs
        errors *= rate
        query_steps = chunks.fold(torch.bmm(errors, vectors))
        steps = torch.bmm(errors.transpose(1, 2), unfolded)
        add_rows(self.vectors, targets, steps.view(len(targets), -1))
        return query_steps

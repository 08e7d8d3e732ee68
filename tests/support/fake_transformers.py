"""Small networks with the interface of transformers' causal language models, which need no library.

Kinds: ``attention`` adds its mask to products, whatever the mask's type, as transformers' eager code does;
``window`` is the same with a sliding window; ``states`` sums up what it has read, and ignores masks;
``crowd`` adds the length of its batch if it gets a mask, so that it can only be read by equal lengths;
``both`` reads in both directions.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

N_UNITS, SIZE, N_POSITIONS, WINDOW = 61, 8, 64, 4


class FakeBody(nn.Module):
    """One layer between embeddings and context vectors."""

    def __init__(self, kind: str, config: SimpleNamespace) -> None:
        super().__init__()
        self.kind, self.config, self.scale = kind, config, 0.5
        self.embedding, self.positions = nn.Embedding(N_UNITS, SIZE), nn.Embedding(N_POSITIONS, SIZE)
        self.queries, self.output = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        length = input_ids.shape[1]
        places = torch.arange(length) if position_ids is None else position_ids
        x = self.embedding(input_ids) + self.positions(places)
        if self.kind == "states":
            return (torch.tanh(self.output(x.cumsum(dim=1))),)
        products = self.queries(x) @ x.transpose(1, 2)
        if attention_mask is not None and attention_mask.dim() == 4:
            products = products + attention_mask[:, 0]
        elif self.kind != "both":
            distance = torch.arange(length).unsqueeze(1) - torch.arange(length)
            window = self.config.sliding_window or length
            products = products.masked_fill((distance < 0) | (distance >= window), -torch.inf)
        x = x + self.output(products.softmax(dim=-1) @ x)
        return (x + length / 10 if self.kind == "crowd" and attention_mask is not None else x,)


class FakeModel(nn.Module):
    """A network with an output layer."""

    base_model_prefix = "body"

    def __init__(self, kind: str, window: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.config = SimpleNamespace(max_position_embeddings=N_POSITIONS, sliding_window=window)
        self.config.get_text_config = lambda: self.config
        self.body, self.head = FakeBody(kind, self.config), nn.Linear(SIZE, N_UNITS)
        for parameter in self.parameters():
            nn.init.normal_(parameter)
        self.requires_grad_(False)

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.head(self.body(input_ids)[0]) * self.body.scale)

    @classmethod
    def built(cls, values, tensors):
        """Build the network that a configuration names; stands for ``automodel.build_model``."""
        kind = values["model_type"].removeprefix("fake-")
        return cls(kind, values.get("sliding_window", WINDOW if kind == "window" else None))

"""Build a ``NgramTable`` from the n-grams of an ARPA file, and list those of a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer.errors import BundleError
from rescorer.lm.files.arpa_lines import ArpaOrder
from rescorer.lm.ngrams.perfect_hash import build_perfect_hash
from rescorer.lm.ngrams.table import NO_KEY, NgramTable, OrderTable


def build_table(orders: Sequence[ArpaOrder], place: str) -> NgramTable:
    """Build a table; the result does not depend on the order of n-grams above 1.

    Some tools prune an n-gram w_1 … w_k whose context w_1 … w_{k-1} they have pruned. The context is then
    added with the probability that the model gives it anyway, by backing off, and a back-off weight of 1.

    Args:
        orders: unigrams by id, then higher orders.
        place: the file's name, for messages.

    Raises:
        BundleError: an n-gram occurs twice.
    """
    pending = [order.ids.astype(np.int64) for order in orders]
    values = [order.values for order in orders]
    table = NgramTable(values[0], ())
    while table.order < len(orders):
        n = table.order + 1
        contexts = find_places(table, pending[n - 1][:, :-1])
        if (missing := contexts < 0).any():
            added = np.unique(pending[n - 1][missing, :-1], axis=0)
            log10_probs = score_sequences(table, added)
            pending[n - 2] = np.concatenate([pending[n - 2], added])
            values[n - 2] = np.concatenate([values[n - 2], np.stack([log10_probs, 0 * log10_probs], axis=1)])
            table = NgramTable(table.unigrams, table.orders[:-1])  # its last order is built again
            continue
        keys = contexts * table.n_words + pending[n - 1][:, -1]
        try:
            added_order = build_order(keys, values[n - 1])
        except ValueError:
            raise BundleError(f"{place}: one of its {n}-grams occurs twice") from None
        table = NgramTable(table.unigrams, (*table.orders, added_order))
    return table


def build_order(keys: np.ndarray, values: np.ndarray) -> OrderTable:
    """Build the hash table of one order; keys: (N,) int64, values: (N, 2) float32.

    Raises:
        ValueError: a key occurs twice.
    """
    perfect, slots = build_perfect_hash(keys)
    filled = np.empty((len(keys), 2), dtype=np.int64)
    filled[:, 0] = keys
    filled.view(np.float32)[:, 2:] = values
    records = np.zeros((perfect.n_slots, 2), dtype=np.int64)
    records[:, 0] = NO_KEY
    records.view("V16")[slots] = filled.view(
        "V16"
    )  # a record at a time: its place is far from the last one's
    return OrderTable(perfect, records)


def list_ngrams(table: NgramTable, place: str) -> list[ArpaOrder]:
    """Return the n-grams of a table: ``build_table`` makes an equal table from them.

    Args:
        place: the file's name, for messages.

    Raises:
        BundleError: an n-gram has a context that is not in the table.
    """
    ids_at = np.arange(table.n_words, dtype=np.int32)[:, None]  # the n-gram at each place of an order
    orders = [ArpaOrder(ids_at, np.array(table.unigrams))]
    used = np.ones(table.n_words, dtype=bool)
    for n, order in enumerate(table.orders, 2):
        slots = np.flatnonzero(order.records[:, 0] != NO_KEY)
        contexts, words = np.divmod(order.records[slots, 0], table.n_words)
        if not ((contexts >= 0) & (contexts < len(used))).all() or not used[contexts].all():
            raise BundleError(f"{place}: is damaged: one of its {n}-grams has a context that it lacks")
        ids = np.hstack([ids_at[contexts], words[:, None].astype(np.int32)])
        orders.append(ArpaOrder(ids, order.records.view(np.float32)[slots, 2:]))
        used = order.records[:, 0] != NO_KEY
        ids_at = np.zeros((len(used), n), dtype=np.int32)
        ids_at[slots] = ids
    return orders


def find_places(table: NgramTable, ngrams: np.ndarray) -> np.ndarray:
    """The place of each n-gram of any order up to the table's, or -1: (N, n) int64 ids → (N,)."""
    places = ngrams[:, 0].copy()
    for order, words in zip(table.orders, ngrams.T[1:], strict=False):
        matches = order.match(places, words, table.n_words)
        found = np.full(len(places), -1)
        found[matches.pairs] = matches.places
        places = found
    return places


def score_sequences(table: NgramTable, sequences: np.ndarray) -> np.ndarray:
    """log10 P of the last word of each sequence after the others: (N, n) int64 ids → (N,) float32."""
    n, length = sequences.shape
    parents = np.tile(np.arange(length), (n, 1)) + length * np.arange(n)[:, None]
    parents[:, 0] = 0
    words = np.concatenate([[0], sequences.ravel()])
    log10_probs = table.score_forest(words, np.concatenate([[0], parents.ravel()]))
    return log10_probs[length::length]

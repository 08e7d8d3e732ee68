"""Phones of English, and what it costs to confuse them.

Costs are integers, hundredths of the cost of replacing a phone by an unlike one, so that sums are exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from rescorer.errors import quote

UNIT = 100
"""Cost of replacing a phone by one that does not sound like it."""
VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
CONSONANT_CLASSES = ("B CH D G JH K P T", "DH F HH S SH TH V Z ZH", "M N NG", "L R W Y")
"""Stops, fricatives, nasals and approximants."""
PHONES = tuple(sorted([*VOWELS, *" ".join(CONSONANT_CLASSES).split()]))
"""The phones of the CMU dictionary, without stress; the number of a phone is its index."""
Phones = bytes
"""Numbers of phones, one byte each."""
NUMBERS = {phone: number for number, phone in enumerate(PHONES)}
VERY_LIKE = "B-P D-T G-K CH-JH F-V DH-TH S-Z SH-ZH AA-AO AH-IH AH-UH AH-EH EH-IH IH-IY UH-UW M-N N-NG AH-ER"
"""Pairs that differ in voice or place, or are reduced to each other."""
LIKE = "ER-R UW-W IY-Y D-DH T-TH CH-SH JH-ZH CH-T D-JH"
"""Other pairs across classes that are close."""
VERY_LIKE_COST, LIKE_COST, VOWELS_COST, CLASS_COST, MIXED_COST = 30, 50, 50, 60, 130
"""Costs of the pairs above, of two vowels, of two consonants of a class, and of a vowel and a consonant."""
GAP_COST = 80
"""Cost of leaving out or adding a phone."""
WEAK_GAPS, WEAK_GAP_COST = "AH HH IH", 50
"""Phones that are often not heard."""
STRESS = re.compile(r"[0-2]$")


def substitution_costs() -> np.ndarray:
    """Cost of hearing the second phone for the first, (P, P) int32; symmetric, 0 on the diagonal."""
    costs = np.full((len(PHONES), len(PHONES)), UNIT, dtype=np.int32)
    vowel = np.array([phone in VOWELS for phone in PHONES])
    costs[vowel[:, None] & vowel] = VOWELS_COST
    costs[vowel[:, None] ^ vowel] = MIXED_COST
    for group in CONSONANT_CLASSES:
        members = list(phone_numbers(group.split()))
        costs[np.ix_(members, members)] = CLASS_COST
    for pairs, cost in ((LIKE, LIKE_COST), (VERY_LIKE, VERY_LIKE_COST)):
        for pair in pairs.split():
            first, second = phone_numbers(pair.split("-"))
            costs[first, second] = costs[second, first] = cost
    np.fill_diagonal(costs, 0)
    return costs


def gap_costs() -> np.ndarray:
    """Cost of leaving out or adding each phone, (P,) int32."""
    costs = np.full(len(PHONES), GAP_COST, dtype=np.int32)
    costs[list(phone_numbers(WEAK_GAPS.split()))] = WEAK_GAP_COST
    return costs


def phone_numbers(names: Iterable[str]) -> Phones:
    """Numbers of phones, which may carry stress, such as ``AH0``.

    Raises:
        ValueError: one of the phones is not known.
    """
    names = list(names)
    try:
        return bytes(NUMBERS[STRESS.sub("", name).upper()] for name in names)
    except KeyError as error:
        raise ValueError(
            f"unknown phone {quote(error.args[0])}; expected some of {' '.join(PHONES)}"
        ) from None

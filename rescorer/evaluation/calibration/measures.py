"""Judge confidences against what was right: calibration error, normalised cross entropy, reliability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

N_BINS = 10
"""Number of equally wide bins from 0 to 1 for calibration error and reliability."""
SMALLEST = 1e-7
"""Confidences nearer to 0 or 1 than this count as this near, as in NIST's sclite: the logarithm of 0 would
make one wrong word outweigh all others."""


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """The claims whose confidence lies in one bin."""

    lower: float
    upper: float
    claims: int
    confidence: float
    """Mean confidence; NaN without claims."""
    right: float
    """Share of the claims that are right; NaN without claims."""


def log_loss(confidences: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Compute the cross entropy of each claim in nats, -ln of the probability given to what happened.

    Args:
        confidences: float64, from 0 to 1, whose last dimension is that of ``correct``.
        correct: (N,) bool.
    """
    bounded = np.clip(confidences, SMALLEST, 1.0 - SMALLEST)
    return -np.log(np.where(correct, bounded, 1.0 - bounded))


def normalised_cross_entropy(confidences: np.ndarray, correct: np.ndarray) -> float:
    """Compute NIST's normalised cross entropy (Siu & Gish 1999; NIST, The 2001 Hub-5 Evaluation Plan).

    It is (H_max - H) / H_max, where H is the cross entropy of the confidences and H_max that of a constant,
    the share of these claims that are right: 1 for an oracle, 0 for knowing only how many are right,
    negative for confidences that mislead.

    Args:
        confidences: (N,) float64, from 0 to 1.
        correct: (N,) bool.

    Returns:
        NaN if all claims are right or all are wrong, since the constant is then perfect.
    """
    share = correct.mean() if len(correct) else 0.0
    if share in (0.0, 1.0):
        return float("nan")
    largest = log_loss(np.full(len(correct), share), correct).sum()
    return float((largest - log_loss(confidences, correct).sum()) / largest)


def reliability(confidences: np.ndarray, correct: np.ndarray, n_bins: int = N_BINS) -> list[ReliabilityBin]:
    """Compare the confidence with the share that is right in equally wide bins; the last includes 1."""
    index = np.minimum((confidences * n_bins).astype(np.int64), n_bins - 1)
    bins = []
    for number in range(n_bins):
        inside = index == number
        claims = int(inside.sum())
        confidence = float(confidences[inside].mean()) if claims else float("nan")
        right = float(correct[inside].mean()) if claims else float("nan")
        bins.append(ReliabilityBin(number / n_bins, (number + 1) / n_bins, claims, confidence, right))
    return bins


def expected_calibration_error(confidences: np.ndarray, correct: np.ndarray, n_bins: int = N_BINS) -> float:
    """Compute Σ_bins (claims in the bin / all) · |mean confidence - share that is right| (Naeini et al.
    2015).

    NaN without claims.
    """
    if not len(correct):
        return float("nan")
    bins = [part for part in reliability(confidences, correct, n_bins) if part.claims]
    return sum(part.claims * abs(part.confidence - part.right) for part in bins) / len(correct)

"""Tails and quantiles of the distributions that the tests use.

SciPy is loaded at the first use, because that takes a second, and programs that only serve or rescore import
this package without ever computing a statistic.
"""

from __future__ import annotations


def student_quantile(tail: float, degrees: int) -> float:
    """The value that Student's t with these degrees of freedom exceeds with the probability ``tail``."""
    from scipy.special import stdtrit

    return -float(stdtrit(degrees, tail))


def student_tail(value: float, degrees: int) -> float:
    """Probability that Student's t with these degrees of freedom exceeds a value."""
    from scipy.special import stdtr

    return float(stdtr(degrees, -value))


def normal_quantile(tail: float) -> float:
    """The value that a standard normal variable exceeds with the probability ``tail``."""
    from scipy.special import ndtri

    return -float(ndtri(tail))


def normal_tail(value: float) -> float:
    """Probability that a standard normal variable exceeds a value."""
    from scipy.special import ndtr

    return float(ndtr(-value))


def binomial_cdf(successes: int, trials: int, probability: float) -> float:
    """Probability of at most so many successes in independent trials."""
    from scipy.special import bdtr

    return float(bdtr(successes, trials, probability))

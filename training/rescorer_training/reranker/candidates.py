"""Candidates to choose from: which features, which model, which objective, how strong a penalty.

The most cautious ones come first: where several do equally well, the earlier one is chosen. Strong penalties
come before weak ones, small sets of features before large ones, and the objective that counts what is counted
in the end before its convex relatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rescorer_training.reranker.objectives import OBJECTIVES, ObjectiveName

TOTAL = "total"
"""The feature that stands for the base weights, with a weight of 1 in the prior."""
EMPTY = "empty"
EMPTY_PRIOR = -1000.0
"""Prior weight of ``empty``, before scaling, where empty hypotheses are left out. Totals have a standard
deviation of 1 in the prior."""
TEMPERATURE_STEPS = (0.125, 0.25, 0.5, 1.0, 2.0)
"""Temperatures of posteriors, relative to the spread of the totals within lists."""
MIDDLE_STEPS = (0.25, 1.0)
STRENGTHS = (10.0, 3.0, 1.0)
PRIOR_LIST_STRENGTHS = (100.0, 10.0)
"""Strengths of the penalty towards prior lists; the first leaves their weights nearly as they are."""
NETWORK_STRENGTH, N_HIDDEN, N_MEMBERS, N_LAYERS = 1.0, 6, 3, 1
"""Settings of perceptrons and transformers."""
MIN_LISTS_FOR_NETWORKS = 500
"""Number of lists from which perceptrons, transformers and encodings of words are tried; fewer cannot tell
them from linear networks."""
START, START_EMPTY_OUT = "base weights", "base weights, empty left out"
"""Feature sets that are not fitted but keep the prior: the base weights as they are, and without empty
hypotheses."""
WITH_ENCODING = "all features and encoding"
"""The feature set that ends with an encoding of the words."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of training a reranker."""

    feature_set: str
    """Key of the feature sets."""
    objective: ObjectiveName = "cross entropy"
    strength: float = 1.0
    """Strength of the penalty: errors, or nats, that a move of one weight by 1 must save."""
    n_hidden: int = 0
    """Hidden units of each perceptron; 0 for other networks."""
    n_layers: int = 0
    """Layers of each transformer; 0 for other networks."""
    members: int = 1
    """Networks whose scores are averaged."""
    from_prior_lists: bool = False
    """Whether weights keep close to those of a first reranker, which is trained on the prior lists."""

    @property
    def is_fitted(self) -> bool:
        """Whether weights are fitted; if not, they are those of the prior."""
        return self.feature_set not in (START, START_EMPTY_OUT)

    @property
    def is_linear(self) -> bool:
        """Whether it is a linear network."""
        return not self.n_hidden and not self.n_layers

    def __str__(self) -> str:
        if not self.is_fitted:
            return self.feature_set
        model = "linear"
        if self.n_layers:
            layers = "1 layer" if self.n_layers == 1 else f"{self.n_layers} layers"
            model = f"transformer of {layers}, {self.members} networks"
        elif self.n_hidden:
            model = f"MLP of {self.n_hidden} units, {self.members} networks"
        towards = " towards the prior lists" if self.from_prior_lists else ""
        return f"{self.feature_set}; {model}; {self.objective}; L2 {self.strength:g}{towards}"


@dataclass(frozen=True, slots=True)
class Average:
    """Several linear candidates, whose weights are averaged."""

    candidates: tuple[Candidate, ...]

    @property
    def from_prior_lists(self) -> bool:
        """Whether any weights keep close to those of prior lists."""
        return any(candidate.from_prior_lists for candidate in self.candidates)

    def __str__(self) -> str:
        first, *_, last = self.candidates
        return f"average of {len(self.candidates)} linear candidates from {str(first)!r} to {str(last)!r}"


Choice = Candidate | Average
"""What cross-validation chooses."""


def average(candidates: Sequence[Candidate]) -> Choice:
    """The average of some linear candidates, or the only one."""
    return Average(tuple(candidates)) if len(candidates) > 1 else candidates[0]


def make_candidates(
    feature_sets: Iterable[str], n_lists: int, *, has_prior_lists: bool = False
) -> tuple[Candidate, ...]:
    """All candidates, the most cautious first.

    Args:
        feature_sets: names of the sets, the smallest first.
        n_lists: number of lists to train on.
        has_prior_lists: whether there are lists of another kind to take a prior from.
    """
    names = list(feature_sets)
    sets = [name for name in names if name not in (START, START_EMPTY_OUT, WITH_ENCODING)]
    linear = [
        Candidate(feature_set, objective, strength)
        for strength in STRENGTHS
        for feature_set in sets
        for objective in OBJECTIVES
    ]
    towards_prior_lists = [
        Candidate(feature_set, "expected errors", strength, from_prior_lists=True)
        for strength in PRIOR_LIST_STRENGTHS
        for feature_set in sets
        if has_prior_lists
    ]
    linear = sorted([*linear, *towards_prior_lists], key=lambda candidate: -candidate.strength)
    large = [sets[-1], *(name for name in names if name == WITH_ENCODING)]
    encoded = [
        Candidate(name, "expected errors", strength) for strength in STRENGTHS[1:] for name in large[1:]
    ]
    network = Candidate(sets[-1], "expected errors", NETWORK_STRENGTH, members=N_MEMBERS)
    perceptrons = [replace(network, feature_set=name, n_hidden=N_HIDDEN) for name in large]
    transformers = [replace(network, feature_set=name, n_layers=N_LAYERS) for name in large]
    more = [*encoded, *perceptrons, *transformers] if n_lists >= MIN_LISTS_FOR_NETWORKS else []
    return (Candidate(START), Candidate(START_EMPTY_OUT), *linear, *more)


def make_feature_sets(
    streams: Sequence[str], models: Sequence[str], spread: float, *, has_context: bool
) -> Mapping[str, tuple[str, ...]]:
    """Sets of features, by name, each with all features of the one before.

    Args:
        streams: streams that all lists have. Without any, the position in the list takes their place.
        models: language models and, if there are several, their mixture.
        spread: standard deviation of the base totals within lists, in nats.
        has_context: whether lists say what was said before.
    """
    scores = [*streams, *models]
    temperatures = [f"{spread * step:.2g}" for step in TEMPERATURE_STEPS]
    middle = [f"{spread * step:.2g}" for step in MIDDLE_STEPS]
    order = [] if streams else ["log_rank", "first"]
    basic = [TOTAL, *(f"score:{name}" for name in scores), "words", "oov", EMPTY, *order]
    agreement = [*(f"distance:{t}" for t in temperatures), *(f"posterior:{t}" for t in middle), "copies"]
    details = [
        *(f"score_per_word:{name}" for name in scores),
        *(f"{kind}:{t}" for kind in ("word_mean", "word_least") for t in middle),
        "characters",
        "repeats",
        *(["overlap:1", "overlap:2"] if has_context else []),
    ]
    return {
        START: (TOTAL,),
        START_EMPTY_OUT: (TOTAL, EMPTY),
        "scores": tuple(basic),
        "scores and agreement": (*basic, *agreement),
        "all features": (*basic, *agreement, *details),
    }

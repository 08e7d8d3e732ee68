"""Prepare tuning: divide lists into folds, choose the weights that may change, and build the tuning problem.

Folds share neither groups nor, in general, references. Weights have the names that the option ``-w
NAME=VALUE`` takes: the name of a stream, ``lm:NAME``, ``word``, ``oov``, ``empty``, ``phrases``, or
``reranker:NAME``. ``mix`` stands for all interpolation weights λ of the language models, ``cache`` and
``neural_cache`` for the λ of the caches. If there are rerankers, the λ do not change, because the rerankers
were trained on scores under these λ.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rescorer.errors import ConfigError, did_you_mean
from rescorer.evaluation.weight_search import MixtureChoices, Solution, TuningProblem, make_problem
from rescorer.reranking.reranker import Reranker
from rescorer.types import DEFAULT_FLATNESS, NBestList, Weights
from rescorer.weights import (
    CACHE,
    EMPTY,
    GENERATED,
    MIXTURE,
    NEURAL_CACHE,
    OOV,
    PHRASES,
    RERANKER,
    SOUND_MATCH,
    WORDS,
    generation_weights,
    get_component,
    phrase_weight,
)

HEX_DIGITS = 16
"""Number of hexadecimal digits of a fingerprint. With 64 bits, a collision among a billion lists has a
probability of a few percent."""


def fingerprint_list(nbest: NBestList) -> str:
    """Hash the id, the texts and the reference of a list, but neither its scores nor further fields."""
    content = [nbest.id, nbest.reference, [hypothesis.text for hypothesis in nbest.hypotheses]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:HEX_DIGITS]


def count_tuning_lists(
    weights: Weights, lists: Iterable[NBestList], rerankers: Iterable[Reranker] = ()
) -> int:
    """Count those lists on which the weights were tuned or one of the rerankers was trained."""
    known = set(weights.tuned_on).union(*(reranker.tuned_on for reranker in rerankers))
    return sum(fingerprint_list(nbest) in known for nbest in lists) if known else 0


N_FOLDS = 5
"""Default for the largest number of folds, both of the outer cross-validation and of the inner one, which
chooses a method. Weights are then fitted about 200 times in all."""
MAX_UNIT_SHARE = 0.5
"""If joining lists by groups and references puts more than this share of them into one unit, lists are joined
only by groups."""


@dataclass(frozen=True, slots=True)
class Folds:
    """A division of lists into folds, each made of whole units, such as all lists of a speaker."""

    fold: np.ndarray
    """(L,) int64, number of the fold of each list, from 0."""
    unit: np.ndarray
    """(L,) int64, number of the unit of each list. The lists of a unit are in the same fold, and the
    bootstrap draws them together."""
    reference: np.ndarray
    """(L,) int64, number of the reference of each list, the same for equal references."""
    by: str
    """The property that makes the units: ``group``, or ``reference`` if there are no groups."""
    shares_references: bool = False
    """Whether different folds have lists with the same reference; see ``split``."""

    def split(self, fold: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the lists to tune on if a fold is held out, and of the lists of the fold.

        Lists outside the fold that share a reference with it are in neither part.
        """
        held_out = self.held_out(fold)
        return np.flatnonzero(self.training(fold)), np.flatnonzero(held_out)

    def held_out(self, fold: int) -> np.ndarray:
        """Tell for each list whether it is in a fold, (L,) bool."""
        return np.asarray(self.fold == fold)

    def training(self, fold: int) -> np.ndarray:
        """Tell which lists may be used for tuning if a fold is held out, (L,) bool; see ``split``."""
        held_out = self.held_out(fold)
        return ~held_out & ~np.isin(self.reference, self.reference[held_out])

    def merge(self, n_folds: int) -> Folds:
        """Join folds until at most ``n_folds`` are left."""
        return replace(self, fold=self.fold % n_folds)

    @property
    def n_folds(self) -> int:
        return int(self.fold.max()) + 1

    @property
    def n_units(self) -> int:
        return len(np.unique(self.unit))

    def subdivide(self, lists: np.ndarray, n_folds: int = N_FOLDS) -> Folds:
        """Divide some of the lists, given by index, into new folds, which do not divide units either."""
        fold = _deal(self.unit[lists].tolist(), n_folds)
        return Folds(fold, self.unit[lists], self.reference[lists], self.by, self.shares_references)

    def describe(self) -> str:
        """Describe in a sentence how the lists were divided."""
        if self.by == "group":
            what = "by group; lists that share a reference stay together"
            if self.shares_references:
                what = "by group; lists that share a reference with a fold do not tune its weights"
            return f"{self.n_folds} folds of {self.n_units} units {what}"
        why = "the lists have no groups, or only one: --groups keeps the lists of a speaker together"
        return f"{self.n_folds} folds by id, because {why}"


def make_folds(
    ids: Sequence[str], groups: Sequence[str], references: Sequence[str], n_folds: int = N_FOLDS
) -> Folds:
    """Divide lists into at most ``n_folds`` folds: by groups if there are at least two, else by id.

    A list without a group is divided by its id.

    Lists that share a reference are in the same fold. In dialogues, where everybody says "yes", this would
    put most lists into one fold. Lists are then joined only by groups. Instead, when a fold is held out,
    lists outside the fold that share a reference with it take no part in tuning.

    Raises:
        ConfigError: there are fewer than two units.
    """
    by = "group" if len(set(groups)) > 1 else "reference"
    groups = groups if by == "group" else [""] * len(ids)
    names = [group or f"id {list_id}" for group, list_id in zip(groups, ids, strict=True)]
    units = _join(names, references)
    reference = _number(references)
    shares = Counter(units).most_common(1)[0][1] > max(MAX_UNIT_SHARE * len(ids), 1)
    if shares and len(set(names)) > 1:
        units = list(names)
    unit = _number(units)
    if len(set(unit)) < 2:
        raise ConfigError("cross-validation needs at least two lists with distinct ids, got one id")
    return Folds(_deal(units, n_folds), unit, reference, by, shares)


def _join(names: Sequence[str], references: Sequence[str]) -> list[str]:
    """Name the unit of each list.

    Two lists with the same name or the same reference are in one unit. If the first and the second, and the
    second and the third list belong together, all three do (union-find).
    """
    parent: dict[Hashable, Hashable] = {}

    def find(key: Hashable) -> Hashable:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for name, reference in zip(names, references, strict=True):
        first, second = sorted((find(("name", name)), find(("reference", reference))))  # type: ignore[type-var]
        parent[second] = first
    smallest: dict[Hashable, str] = {}
    for name in sorted(set(names)):
        smallest.setdefault(find(("name", name)), name)
    return [smallest[find(("name", name))] for name in names]


def _number(values: Sequence[Hashable]) -> np.ndarray:
    """Number distinct values in order of appearance, (L,) int64."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def _deal(units: Sequence[Hashable], n_folds: int) -> np.ndarray:
    """Assign each list's unit to a fold, so that folds have about equally many lists: (L,) int64.

    The largest unit comes first, and units of equal size in the order of their hashes. So the folds neither
    depend on the order of the lists nor follow the order of a recording.
    """
    sizes = Counter(units)
    order = sorted(sizes, key=lambda unit: (-sizes[unit], hashlib.sha256(str(unit).encode()).digest()))
    n_lists = [0] * min(n_folds, len(order))
    fold_of: dict[Hashable, int] = {}
    for unit in order:
        fold_of[unit] = n_lists.index(min(n_lists))
        n_lists[fold_of[unit]] += sizes[unit]
    return np.array([fold_of[unit] for unit in units], dtype=np.int64)


SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Values of λ that are tried for one model at a time; the λ of the other models keep their proportions."""
CACHE_SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
"""Values of the cache's λ that are tried, each with every choice of the models' λ."""
NEURAL_CACHES = tuple((share, flatness) for share in (0.02, 0.05, 0.1, 0.2) for flatness in (0.1, 0.3, 1.0))
"""Pairs of the neural cache's λ and θ that are tried, each with every choice of the models' λ."""


class MixtureChoice(NamedTuple):
    """One candidate for the interpolation weights of the mixture and its caches."""

    shares: tuple[float, ...]
    """λ of each model; their sum is 1."""
    cache: float = 0.0
    """λ of the cache in a long session, the largest; it is smaller while the session is short."""
    neural_cache: float = 0.0
    """λ of the neural cache in a long session, the largest; it is smaller while the session is short."""
    flatness: float = DEFAULT_FLATNESS
    """θ of the neural cache."""

    @property
    def distribution(self) -> tuple[float, ...]:
        """Shares of the models, the cache and the neural cache in a word's probability; they sum to 1."""
        rest = 1.0 - self.neural_cache
        models = (rest * (1.0 - self.cache) * share for share in self.shares)
        return (*models, rest * self.cache, self.neural_cache)


def scale_shares(start: Sequence[float], index: int, share: float) -> tuple[float, ...]:
    """Set one interpolation weight to ``share``; scale the others, which keep their proportions.

    >>> scale_shares((0.5, 0.3, 0.2), 0, 0.9)
    (0.9, 0.06, 0.04)
    """
    others = sum(
        weight for place, weight in enumerate(start) if place != index
    )  # 1 - start[index] is rounded
    # divided first: tiny weights lose their digits when they are multiplied
    parts = [weight / others if others else 1.0 / (len(start) - 1) for weight in start]
    scaled = [part * (1.0 - share) for part in parts]
    scaled[index] = share
    return tuple(round(weight, 12) for weight in scaled)


STREAMS, LMS, MIX, ALL = "streams", "lm", "mix", "all"
"""Names that stand for several weights: ``streams`` for all streams that have a weight, ``lm`` for all
language models that have one, ``mix`` for the λ, and ``all`` for everything."""
DEFAULT_FREE = (STREAMS, LMS, "word", OOV, EMPTY, MIX, PHRASES, CACHE)
"""Weights that are tuned by default. The neural cache is not, because networks must run again for each θ."""
OCCASIONAL = (PHRASES, GENERATED, SOUND_MATCH)
"""Components that only some lists have. The weights of ``generated`` and ``sound_match`` are not tuned here,
because they need a bound on false alarms: `rescorer candidates` learns them."""


@dataclass(frozen=True, slots=True)
class TuningList:
    """One list as arrays. Hypotheses are in the order of the recogniser, which settles ties."""

    components: Mapping[str, np.ndarray]
    """(N,) float64 by name, unweighted. A component may be missing if its weight is fixed at 0."""
    errors: np.ndarray
    """(N,) int64, errors of each hypothesis, in words or other units."""
    offset: np.ndarray | None = None
    """(N,) constant part of each total, such as the rise by merging equal hypotheses; None for 0."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The weights of a tuning problem by name; one of them, the scale, is fixed."""

    start: Weights
    """Complete weights that tuning starts from."""
    names: tuple[str, ...]
    free: frozenset[str]
    """Names of the weights that may change; ``mix``, ``cache`` and ``neural_cache`` stand for the λ."""
    scale: str
    """Weight that does not change, because only proportions matter; empty if all weights are 0 at the
    start."""
    streams: tuple[str, ...]
    """All names of streams among ``names``."""
    models: tuple[str, ...]
    """Models whose λ may change, in the order of ``MixtureChoices.lambdas``. A model is not among them if its
    λ is 0, and it has a weight outside the mixture."""
    either_sign: frozenset[str] = frozenset()
    """Language models whose weight may become positive or negative, because the user named them and their
    weight is 0 at the start."""

    @classmethod
    def choose(
        cls,
        start: Weights,
        free: Sequence[str] = DEFAULT_FREE,
        streams: Iterable[str] = (),
        occasional: Collection[str] = (),
    ) -> Parameters:
        """Choose the weights that may change.

        Args:
            start: complete weights, with the λ of the mixture.
            free: names of weights, or ``streams``, ``lm``, ``mix``, ``all``.
            streams: streams of the lists; ``all`` includes those that have no weight yet.
            occasional: names of the ``OCCASIONAL`` components that some list has: their weights count,
                whether they are free or not. Also ``cache`` and ``neural_cache`` if lists have sessions:
                their λ can then be searched.

        Raises:
            ConfigError: a name is unknown.
        """
        known_streams = dict.fromkeys([*start.streams, *streams])
        rerankers = {f"{RERANKER}{name}": weight for name, weight in start.rerankers.items()}
        model_names = [f"lm:{name}" for name in {**start.mixture, **start.lm} if name != MIXTURE]
        lm_names = [*model_names, f"lm:{MIXTURE}"]
        own = ("word", OOV, EMPTY, MIX, PHRASES, CACHE, NEURAL_CACHE)
        known = [*known_streams, *lm_names, *own, *rerankers, *start.components]
        chosen: set[str] = set()
        for name in free:
            if name == ALL:
                lms = (f"lm:{lm}" for lm in start.lm)
                chosen |= {*known_streams, *lms, *own, *rerankers, *start.components}
            elif name == STREAMS:
                chosen |= {stream for stream, weight in start.streams.items() if weight}
            elif name == LMS:
                chosen |= {f"lm:{lm}" for lm in start.lm}
            elif name in known:
                chosen.add(name)
            else:
                options = [*known, STREAMS, LMS, ALL]
                raise ConfigError(
                    f"there is no weight {name!r} to tune; expected some of {', '.join(options)}"
                    f"{did_you_mean(name, options)}"
                )
        chosen -= {PHRASES, CACHE, NEURAL_CACHE} - set(occasional)
        lm_weights = {f"lm:{name}": weight for name, weight in start.lm.items()}
        weighted = {**dict.fromkeys(known_streams, 0.0), **start.streams, **lm_weights, **rerankers}
        weighted |= start.components
        scale = next((name for name, weight in weighted.items() if weight), "")
        names = dict.fromkeys(
            [*weighted, *(n for n in sorted(chosen - {MIX, CACHE, NEURAL_CACHE})), "word", OOV, EMPTY]
        )
        names |= dict.fromkeys(name for name in OCCASIONAL if name in occasional)
        models = tuple(
            name
            for name, share in start.mixture.items()
            if share or (not start.lm.get(name) and f"lm:{name}" not in chosen)
        )
        either_sign = frozenset(name for name in model_names if name in free and not lm_weights.get(name))
        free_names = frozenset(chosen - {scale})
        return cls(start, tuple(names), free_names, scale, tuple(known_streams), models, either_sign)

    @property
    def tunes_mixture(self) -> bool:
        """Whether the λ of the models make a difference and may change."""
        return MIX in self.free and len(self.models) > 1 and self._uses_mixture

    @property
    def tunes_cache(self) -> bool:
        """Whether the λ of the cache makes a difference and may change."""
        return CACHE in self.free and self._uses_mixture

    @property
    def tunes_neural_cache(self) -> bool:
        """Whether λ and θ of the neural cache make a difference and may change."""
        return NEURAL_CACHE in self.free and self._uses_mixture

    @property
    def _uses_mixture(self) -> bool:
        """Whether the mixture has a weight, but no reranker; rerankers need the mixture of the start."""
        uses = f"lm:{MIXTURE}" in self.free or self.start.lm.get(MIXTURE, 0.0) != 0.0
        return uses and not any(self.start.rerankers.values())

    def choose_mixtures(self) -> list[MixtureChoice]:
        """List the candidates for the interpolation weights; the start comes first.

        The λ of the models vary for one model at a time. Each choice of these is combined with each λ of the
        cache, and, with the λ of the cache at the start, with each pair of λ and θ of the neural cache.
        """
        start, shares = self.start, [tuple(self.start.mixture[name] for name in self.models)]
        if self.tunes_mixture:
            indices = range(len(self.models))
            shares += [scale_shares(shares[0], index, share) for index in indices for share in SHARES]
        lambdas = [start.cache, *(CACHE_SHARES if self.tunes_cache else ())]
        caches = [(share, start.neural_cache, start.flatness) for share in lambdas]
        if self.tunes_neural_cache:
            pairs = ((0.0, start.flatness), *NEURAL_CACHES)
            caches += [(start.cache, *pair) for pair in pairs]
        return list(dict.fromkeys(MixtureChoice(one, *cache) for cache in caches for one in shares))

    def values(self, weights: Weights) -> np.ndarray:
        """The weights as an array, (K,)."""
        table = {
            **weights.streams,
            **{f"lm:{name}": value for name, value in weights.lm.items()},
            "word": weights.word,
            OOV: weights.oov,
            EMPTY: weights.empty,
            PHRASES: phrase_weight(weights),
            **generation_weights(weights),
            **{f"{RERANKER}{name}": value for name, value in weights.rerankers.items()},
            **weights.components,
        }
        return np.array([table.get(name, 0.0) for name in self.names])

    def apply(self, solution: Solution, choices: Sequence[MixtureChoice] = ()) -> Weights:
        """Return the weights of a solution; ``choices`` come from ``choose_mixtures``, if λ were tuned."""
        values = dict(zip(self.names, solution.weights.tolist(), strict=False))
        tuned = {name: value for name, value in values.items() if name in self.free}
        start = self.start
        lms = {name.removeprefix("lm:"): value for name, value in tuned.items() if name.startswith("lm:")}
        rerankers = {name: tuned.get(f"{RERANKER}{name}", value) for name, value in start.rerankers.items()}
        streams = {name: value for name, value in tuned.items() if name in self.streams}
        mixed = choices[solution.mixture] if choices else None
        shares = dict(zip(self.models, mixed.shares, strict=True)) if mixed else {}
        return replace(
            start,
            streams={**start.streams, **streams},
            lm={**start.lm, **lms},
            word=tuned.get("word", start.word),
            oov=tuned.get(OOV, start.oov),
            empty=tuned.get(EMPTY, start.empty),
            phrases=values.get(PHRASES, start.phrases),
            generated=values.get(GENERATED, start.generated),
            sound_match=values.get(SOUND_MATCH, start.sound_match),
            mixture={**start.mixture, **shares},
            cache=mixed.cache if mixed else start.cache,
            neural_cache=mixed.neural_cache if mixed else start.neural_cache,
            flatness=mixed.flatness if mixed else start.flatness,
            rerankers=rerankers,
            components={name: tuned.get(name, value) for name, value in start.components.items()},
        )

    def bounds(self) -> list[tuple[float, float]]:
        """Return the lowest and highest value of each weight.

        The weight of a language model keeps its sign, except for ``either_sign``; that of phrases is never
        negative.
        """
        start = self.values(self.start)
        limits = []
        for name, value in zip(self.names, start.tolist(), strict=True):
            if name not in self.free:
                limits.append((value, value))
            elif name == PHRASES:
                limits.append((0.0, math.inf))
            elif name.startswith("lm:") and name not in self.either_sign:
                limits.append((0.0, math.inf) if value >= 0 else (-math.inf, 0.0))
            else:
                limits.append((-math.inf, math.inf))
        return limits


def build_problem(
    lists: Sequence[TuningList],
    parameters: Parameters,
    mixtures: Sequence[MixtureChoice] = (),
    mixture_log_probs: np.ndarray | None = None,
) -> TuningProblem:
    """Build the arrays of a tuning problem from lists.

    Args:
        mixtures: candidates for the interpolation weights.
        mixture_log_probs: (G, H) the mixture's component of all hypotheses under each candidate; None if the
            interpolation weights are fixed.

    Raises:
        ConfigError: there are no lists, or a component is not finite.
    """
    if not lists:
        raise ConfigError("no lists to tune on")
    start = parameters.values(parameters.start)
    rows, names = [], list(parameters.names)
    for name, weight in zip(names, start.tolist(), strict=True):
        is_used = bool(weight) or name in parameters.free
        values = (_get(item, name) if is_used else np.zeros(len(item.errors)) for item in lists)
        rows.append(np.concatenate(list(values)))
    bounds = parameters.bounds()
    if any(item.offset is not None for item in lists):
        offsets = (np.zeros(len(item.errors)) if item.offset is None else item.offset for item in lists)
        rows.append(np.concatenate(list(offsets)))
        names, start, bounds = [*names, "offset"], np.append(start, 1.0), [*bounds, (1.0, 1.0)]
    errors = np.concatenate([item.errors for item in lists])
    choices = None
    if mixture_log_probs is not None:
        lambdas = tuple(choice.distribution for choice in mixtures)
        choices = MixtureChoices(names.index(f"lm:{MIXTURE}"), lambdas, mixture_log_probs)
    lengths = [len(item.errors) for item in lists]
    return make_problem(names, np.stack(rows), errors, lengths, start, bounds, choices)


def _get(item: TuningList, name: str) -> np.ndarray:
    """Return the component of a list to which a weight applies.

    It is 0 if the list lacks the component: unknown words were not counted, or only other lists have it.
    """
    key = {"word": WORDS}.get(name, name.removeprefix("lm:"))
    if key in (OOV, *OCCASIONAL) and key not in item.components:
        return np.zeros(len(item.errors))
    if key != EMPTY and key not in item.components:
        known = ", ".join(sorted(item.components))
        raise ConfigError(f"a list has no {name!r}, which is to be tuned; it has {known}")
    return get_component(item.components, key)

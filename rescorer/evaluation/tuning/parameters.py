"""Which weights may change, and their places in the arrays of a tuning problem.

Weights have the names that ``-w NAME=VALUE`` gives them: a stream's own name, ``lm:NAME``, ``word``, ``oov``,
``empty``, ``phrases``, ``reranker:NAME``. The interpolation weights λ are ``mix``, all together, and those of
caches ``cache`` and ``neural_cache``; they stay if there are rerankers, which were trained on scores under
these λ.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.errors import ConfigError, did_you_mean
from rescorer.evaluation.tuning.mixture_choices import MixtureChoice, list_choices
from rescorer.evaluation.weight_search.fitting import Solution
from rescorer.evaluation.weight_search.problem import MixtureChoices, TuningProblem, make_problem
from rescorer.score_combination import (
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
from rescorer.types import Weights

STREAMS, LMS, MIX, ALL = "streams", "lm", "mix", "all"
"""Names for several weights: all streams that the weights name, all language models that they name, the λ,
and everything."""
DEFAULT_FREE = (STREAMS, LMS, "word", OOV, EMPTY, MIX, PHRASES, CACHE)
"""What is tuned if nothing is chosen; the neural cache is not, because networks run again for each θ."""
OCCASIONAL = (PHRASES, GENERATED, SOUND_MATCH)
"""Components that only some lists have. The last two keep their weights: these need a bound on false alarms,
under which `rescorer candidates` learns them."""


@dataclass(frozen=True, slots=True)
class TuningList:
    """One list as arrays, in the recogniser's order, which breaks ties."""

    components: Mapping[str, np.ndarray]
    """(N,) float64 by name, unweighted; those that only fixed weights of 0 count may be missing."""
    errors: np.ndarray
    """(N,) int64, errors of each hypothesis, in words or other units."""
    offset: np.ndarray | None = None
    """(N,) added to each total, such as what merging equal hypotheses adds; None for nothing."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The weights of a problem by name, of which one, the scale, is fixed."""

    start: Weights
    names: tuple[str, ...]
    free: frozenset[str]
    scale: str
    """Weight that stays as it is, because only proportions matter; empty if the start has none above 0."""
    streams: tuple[str, ...]
    """Those of the names that are streams."""
    models: tuple[str, ...]
    """Models of the λ that may change, in the order of ``MixtureChoices.lambdas``. A model with λ 0 and a
    weight of its own stays out of the mixture."""
    either_sign: frozenset[str] = frozenset()
    """Language models that may be added or subtracted: chosen by name, and without a weight at the start."""

    @classmethod
    def choose(
        cls,
        start: Weights,
        free: Sequence[str] = DEFAULT_FREE,
        streams: Iterable[str] = (),
        occasional: Collection[str] = (),
    ) -> Parameters:
        """Choose what may change.

        Args:
            start: complete weights, with the λ of the mixture.
            free: names of weights, or ``streams``, ``lm``, ``mix``, ``all``.
            streams: streams of the lists, which ``all`` adds to those that the weights name.
            occasional: those of ``OCCASIONAL`` that some list has, so that their weights count, free or not;
                and ``cache`` and ``neural_cache`` if their λ may be searched, because there are sessions.

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
        """Whether the λ make a difference and may change."""
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
        """Whether the mixture counts; rerankers were trained on that of the start."""
        uses = f"lm:{MIXTURE}" in self.free or self.start.lm.get(MIXTURE, 0.0) != 0.0
        return uses and not any(self.start.rerankers.values())

    def choose_mixtures(self) -> list[MixtureChoice]:
        """Interpolation weights to choose from; those of the start come first."""
        start, shares = self.start, tuple(self.start.mixture[name] for name in self.models)
        return list_choices(
            MixtureChoice(shares, start.cache, start.neural_cache, start.flatness),
            models=self.tunes_mixture,
            cache=self.tunes_cache,
            neural_cache=self.tunes_neural_cache,
        )

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
        """The weights of a solution; ``choices`` are those of ``choose_mixtures``, if these were tuned."""
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
        """Lowest and highest value of each weight: a language model keeps its sign, if it has one, and
        phrases are never a handicap."""
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
    """Collect the arrays of some lists.

    Args:
        mixtures: choices of interpolation weights.
        mixture_log_probs: (G, H) the mixture's component of all hypotheses under each of these choices; None
            if these are fixed.

    Raises:
        ConfigError: there are no lists, or a component is not finite.
    """
    if not lists:
        raise ConfigError("no lists to tune on")
    start = parameters.values(parameters.start)
    rows, names = [], list(parameters.names)
    for name, weight in zip(names, start.tolist(), strict=True):
        is_used = bool(weight) or name in parameters.free
        rows.append(
            np.concatenate([_get(item, name) if is_used else np.zeros(len(item.errors)) for item in lists])
        )
    bounds = parameters.bounds()
    if any(item.offset is not None for item in lists):
        rows.append(
            np.concatenate(
                [np.zeros(len(item.errors)) if item.offset is None else item.offset for item in lists]
            )
        )
        names, start, bounds = [*names, "offset"], np.append(start, 1.0), [*bounds, (1.0, 1.0)]
    errors = np.concatenate([item.errors for item in lists])
    choices = None
    if mixture_log_probs is not None:
        lambdas = tuple(choice.distribution for choice in mixtures)
        choices = MixtureChoices(names.index(f"lm:{MIXTURE}"), lambdas, mixture_log_probs)
    lengths = [len(item.errors) for item in lists]
    return make_problem(names, np.stack(rows), errors, lengths, start, bounds, choices)


def _get(item: TuningList, name: str) -> np.ndarray:
    """The component that a weight counts; no unknown words if these were not counted, and nothing that only
    other lists have."""
    key = {"word": WORDS}.get(name, name.removeprefix("lm:"))
    if key in (OOV, *OCCASIONAL) and key not in item.components:
        return np.zeros(len(item.errors))
    if key != EMPTY and key not in item.components:
        known = ", ".join(sorted(item.components))
        raise ConfigError(f"a list has no {name!r}, which is to be tuned; it has {known}")
    return get_component(item.components, key)

"""Weights: combine the scores of a hypothesis into one total; read, check and write sets of weights."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from rescorer.errors import MAX_QUOTED_CHARS, ConfigError, did_you_mean, quote, shorten
from rescorer.types import (
    DEFAULT_FLATNESS,
    MAX_CACHE_SHARE,
    MAX_FLATNESS,
    MAX_KNOTS,
    MAX_NUMBER,
    MAXIMUM,
    Calibration,
    ConfidenceMap,
    DecisionRule,
    ImportedModel,
    Weights,
)

if TYPE_CHECKING:
    import numpy as np


WORDS, OOV = "words", "oov"
"""Component names of the two counts of a hypothesis: its words, and its out-of-vocabulary words."""
EMPTY = "empty"
"""Component: 1 for hypotheses without words, 0 for others. It is computed from ``words``, not stored."""
RERANKER = "reranker:"  # prefix of the component name of a reranker's score; the reranker's name follows
CACHE = "cache"
"""Component with the change that the cache of words makes to the mixture, which includes this change. A list
has it only if the list has previous utterances or a context, and the weights have a cache."""
NEURAL_CACHE = "neural_cache"  # component with the further change that the neural cache makes to the mixture
PHRASES = "phrases"
"""Component with the credits for phrases. Only lists in which a phrase was found have it."""
GENERATED, SOUND_MATCH = "generated", "sound_match"
"""Two components: the number of replaced spans of a hypothesis, and its ``Generated.sound_match``. Only lists
with generated hypotheses have them."""
DEFAULT_GENERATED, DEFAULT_SOUND_MATCH = -3.5, 2.0
"""Default weights of these two components, as multiples of Σ lm, where the fields of ``Weights`` are None."""
COUNTED = (WORDS, OOV, EMPTY, CACHE, NEURAL_CACHE, PHRASES, GENERATED, SOUND_MATCH)
"""Components that are neither streams of a list nor scores of models."""
MIXTURE = "mixture"  # component name of the word-level mixture of the language models
NUMBERS: tuple[type[Any], ...] = (int, float, numbers.Real)  # types of numbers in weights


def totals(components: Mapping[str, np.ndarray], weights: Weights) -> np.ndarray:
    """Compute the total of each hypothesis of a list.

    Σ_k w_k·s_k + Σ_m w_m·LM_m + w_word·n_words + w_oov·n_oov + Σ_r w_r·reranker_r, plus w_empty if there
    are no words, w_phrases·phrases if a phrase was found in the list, and w_generated·generated +
    w_sound_match·sound_match if hypotheses were generated for it.

    Args:
        components: (H,) float64 by name: streams, LMs, ``words``, ``oov`` and rerankers. Components
            whose weight is 0 may be missing.

    Returns:
        (H,) float64; not finite if scores or weights are too large.
    """
    import numpy as np  # only here: what reads weights, such as a client, needs no arrays

    total = np.zeros(len(components[WORDS]))
    with np.errstate(over="ignore", invalid="ignore"):
        for name, weight in weights_by_component(weights, components).items():
            if weight != 0.0:  # components of weight 0 may be missing
                total += weight * get_component(components, name)
    return total


def weights_by_component(weights: Weights, components: Collection[str] = ()) -> dict[str, float]:
    """Return the weight of each component of a total, by name.

    Args:
        components: names of the components that a list has. The weights of phrases and generated hypotheses
            are included only if the list has them.
    """
    empty = {EMPTY: weights.empty} if weights.empty else {}
    empty |= {PHRASES: phrase_weight(weights)} if PHRASES in components else {}
    empty |= generation_weights(weights) if GENERATED in components else {}
    rerankers = {f"{RERANKER}{name}": weight for name, weight in weights.rerankers.items()}
    own = {WORDS: weights.word, OOV: weights.oov}
    return {**weights.streams, **weights.lm, **own, **empty, **rerankers, **weights.components}


def uses_model(weights: Weights, name: str) -> bool:
    """Whether a model has a weight, or a share in a mixture that has one."""
    return bool(weights.lm.get(name) or (weights.lm.get(MIXTURE) and weights.mixture.get(name)))


def phrase_weight(weights: Weights) -> float:
    """Return the weight of the credits of phrases; see ``Weights.phrases``."""
    return sum(weights.lm.values()) if weights.phrases is None else weights.phrases


def generation_weights(weights: Weights) -> dict[str, float]:
    """Return the weights of the components of generated hypotheses; see ``Weights.generated``."""
    lm = sum(weights.lm.values())
    return {
        GENERATED: DEFAULT_GENERATED * lm if weights.generated is None else weights.generated,
        SOUND_MATCH: DEFAULT_SOUND_MATCH * lm if weights.sound_match is None else weights.sound_match,
    }


def state_defaults(weights: Weights) -> Weights:
    """Return the same weights, with numbers instead of None for phrases and generated hypotheses.

    The numbers are the defaults under the present Σ lm. They then stay when Σ lm changes.
    """
    made = generation_weights(weights)
    phrases, generated, sound_match = phrase_weight(weights), made[GENERATED], made[SOUND_MATCH]
    return replace(weights, phrases=phrases, generated=generated, sound_match=sound_match)


def get_component(components: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a component of a list, (H,) float64; ``empty`` is computed from ``words``."""
    if name == EMPTY and name not in components:
        return (components[WORDS] == 0).astype("float64")
    return components[name]


def parse_weights(values: Mapping[str, Any]) -> Weights:
    """Build weights from plain data, such as a JSON file or a request.

    Raises:
        ConfigError: a key is unknown, a value is not a finite number, or the decision rule or the calibration
            is invalid.
    """
    _check_keys(values, Weights, "weight settings")
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name == "name":
            checked[name] = str(value)
        elif name == "tuned_on":
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise ConfigError(f"weights.tuned_on is {value!r}; expected a list of fingerprints")
            checked[name] = tuple(str(fingerprint) for fingerprint in value)
        elif name == "calibration":
            checked[name] = parse_calibration(value)
        elif name == "imported":
            checked[name] = _parse_imported(value)
        elif name in OPTIONAL_NUMBERS:
            checked[name] = None if value is None else _parse_finite(value, name)
            if name != "generated" and value is not None and checked[name] < 0:
                raise ConfigError(f"weights.{name} is {checked[name]}; expected a number of at least 0")
        elif name in (CACHE, NEURAL_CACHE):
            checked[name] = check_cache_share(value, name)
        elif name == "flatness":
            checked[name] = check_flatness(value)
        elif name in ("word", "oov", "empty"):
            checked[name] = _parse_finite(value, name)
        elif name == "decision":
            checked[name] = parse_decision(value)
        elif not isinstance(value, Mapping):
            raise ConfigError(f"weights.{name} is {value!r}; expected an object of numbers by name")
        elif name == "tuned_with":
            checked[name] = {str(key): bool(flag) for key, flag in value.items()}
        else:
            numbers_of = value.items()
            checked[name] = {str(key): _parse_finite(one, f'{name}["{key}"]') for key, one in numbers_of}
    return Weights(**checked)


def parse_decision(value: Any) -> DecisionRule:
    """Build a decision rule from plain data: ``{"kind": "minimum_bayes_risk", "temperature": 2.0}``.

    Raises:
        ConfigError: a key is unknown, or a value is not one of those permitted.
    """
    if isinstance(value, DecisionRule):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"weights.decision is {shorten(repr(value), MAX_QUOTED_CHARS)}; expected an object such as "
            '{"kind": "minimum_bayes_risk", "unit": "word", "temperature": 1.0}'
        )
    _check_keys(value, DecisionRule, "settings of weights.decision")
    return DecisionRule(**value)


def parse_calibration(value: Any) -> Calibration | None:
    """Build a calibration from plain data, with the fields of ``Calibration`` and ``ConfidenceMap`` as keys.

    Raises:
        ConfigError: a key is unknown or missing, or a value is not one of those permitted.
    """
    if value is None or isinstance(value, Calibration):
        return value
    _check_keys(value, Calibration, "settings of weights.calibration")
    maps = {name: _parse_map(part, f"weights.calibration.{name}") for name, part in value.items()}
    return Calibration(**maps)


def _parse_imported(value: Any) -> dict[str, ImportedModel]:
    """Build ``Weights.imported`` from plain data."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"weights.imported is {quote(str(value))}; expected an object of models by name")
    found = {}
    for name, model in value.items():
        if not isinstance(model, ImportedModel):
            _check_keys(model, ImportedModel, f"settings of weights.imported[{quote(str(name))}]")
            try:
                model = ImportedModel(**model)
            except TypeError:
                model = None
        if model is None or [type(model.source), type(model.text)] != [str, str]:
            raise ConfigError(
                f"weights.imported[{quote(str(name))}] is incomplete; expected what `rescorer tune` writes: "
                "source, start, end and text"
            )
        if type(model.whole) not in (bool, type(None)):
            raise ConfigError(
                f"weights.imported[{quote(str(name))}].whole is {quote(str(model.whole))}; expected true "
                "or false"
            )
        for role in ("start", "end"):
            if type(unit := getattr(model, role)) not in (int, type(None)):
                raise ConfigError(
                    f"weights.imported[{quote(str(name))}].{role} is {quote(str(unit))}; expected the number "
                    "of a unit, or null"
                )
        found[str(name)] = model
    return found


def _parse_map(value: Any, name: str) -> ConfidenceMap | None:
    if value is None:
        return None
    _check_keys(value, ConfidenceMap, f"settings of {name}")
    for one in fields(ConfidenceMap):
        if one.name not in value:
            raise ConfigError(f"{name} has no {one.name!r}")
        numbers = [value[one.name]] if one.name == "temperature" else value[one.name]
        if not isinstance(numbers, Sequence) or isinstance(numbers, str):
            raise ConfigError(f"{name}.{one.name} is {quote(str(numbers))}; expected a list of numbers")
        for number in numbers[: MAX_KNOTS + 1]:  # more are refused below
            _parse_finite(number, f"{name.removeprefix('weights.')}.{one.name}")
    knots = (tuple(map(float, value[name])) for name in ("posteriors", "confidences"))
    try:
        return ConfidenceMap(float(value["temperature"]), *knots)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _check_keys(values: Any, kind: type[Any], what: str) -> None:
    """Raise ConfigError unless ``values`` is an object, and every key is a field of the class ``kind``."""
    known = [field.name for field in fields(kind)]
    if not isinstance(values, Mapping):
        raise ConfigError(f"{what} are {quote(str(values))}; expected an object with keys {', '.join(known)}")
    unknown = sorted(set(values) - set(known), key=str)
    if unknown:
        meant = did_you_mean(str(unknown[0]), known)
        raise ConfigError(f"unknown {what} {unknown}; expected some of {known}{meant}")


def _parse_finite(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, NUMBERS) or not abs(value) <= MAX_NUMBER:
        raise ConfigError(
            f"weights.{shorten(name, MAX_QUOTED_CHARS)} is {shorten(repr(value), MAX_QUOTED_CHARS)}; "
            "expected a finite number"
        )
    return float(value)


def check_cache_share(value: Any, name: str = CACHE) -> float:
    """Return the interpolation weight of a cache.

    Raises:
        ConfigError: it is not a number from 0 to ``MAX_CACHE_SHARE``.
    """
    share = _parse_finite(value, name)
    if not 0 <= share <= MAX_CACHE_SHARE:
        raise ConfigError(f"weights.{name} is {share:g}; expected a number from 0 to {MAX_CACHE_SHARE}")
    return share


def check_flatness(value: Any) -> float:
    """Return the θ of a neural cache.

    Raises:
        ConfigError: it is not a number above 0 of at most ``MAX_FLATNESS``.
    """
    flatness = _parse_finite(value, "flatness")
    if not 0 < flatness <= MAX_FLATNESS:
        raise ConfigError(
            f"weights.flatness is {flatness:g}; expected a number above 0, at most {MAX_FLATNESS:g}"
        )
    return flatness


def weights_to_dict(weights: Weights) -> dict[str, Any]:
    """Convert weights to plain data that ``parse_weights`` reads back.

    Fields that older versions do not know are left out if they have their defaults, so that older versions
    can read the weights.
    """
    plain = {field.name: getattr(weights, field.name) for field in fields(weights)}
    decision, calibration = plain.pop("decision"), plain.pop("calibration")
    plain["imported"] = {name: asdict(model) for name, model in weights.imported.items()}
    if plain["flatness"] == DEFAULT_FLATNESS:
        del plain["flatness"]
    plain |= {} if calibration is None else {"calibration": asdict(calibration)}
    plain |= {name: number for name in OPTIONAL_NUMBERS if (number := plain.pop(name)) is not None}
    converted = {
        key: dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
        for key, value in plain.items()
        if value or key not in LATER_FIELDS
    }
    return converted if decision == MAXIMUM else {**converted, "decision": asdict(decision)}


OPTIONAL_NUMBERS = ("phrases", "generated", "sound_match")  # fields of ``Weights`` that are numbers or None
LATER_FIELDS = (
    "empty", "tuned_with", "held_out", "rerankers", "cache", "neural_cache", "components", "imported",
)  # fmt: skip
"""Fields of ``Weights`` that the first version of this package did not know."""


class TrainedReranker(Protocol):
    """The parts of a reranker that a check of weights needs."""

    @property
    def name(self) -> str: ...

    @property
    def base(self) -> Weights:
        """The weights whose λ gave the scores on which the reranker was trained."""

    @property
    def needs(self) -> Collection[str]:
        """Names of the components that the reranker reads."""


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names of a bundle's models and rerankers, which weights can use."""

    models: Sequence[str]
    rerankers: Mapping[str, TrainedReranker] = field(default_factory=dict)
    backward: Collection[str] = ()
    """Names of the backward models."""
    remembers: Collection[str] | None = None
    """Names of the models that can have a neural cache; None: all can."""
    open_vocabulary: Collection[str] = ()
    """Names of the models in pieces of words."""
    unmixed: Mapping[str, str] = field(default_factory=dict)
    """Models that are not mixed word by word, by name, each with the reason: what it is or does."""
    imported: Mapping[str, ImportedModel] = field(default_factory=dict)
    """Models that were imported for this run, by name."""


def check_weights(weights: Weights, known: KnownNames) -> None:
    """Check that weights fit a bundle.

    Raises:
        ConfigError: the weights name unknown models or rerankers; the λ of the mixture do not sum to 1, or
            name forward and backward models together; the λ of a cache is out of range, or the mixture cannot
            have this cache; a reranker was trained under other λ; or a model of another toolkit is not the
            one that the weights were tuned with.
    """
    names = [*known.models, MIXTURE]
    if unknown := sorted(set(weights.lm).difference(names)):
        hint = did_you_mean(unknown[0], names)
        if unknown[0] in weights.imported:
            hint = f"; the weights were tuned with --lm {unknown[0]}=DIR: give that too"
        listed = shorten(str(unknown), MAX_QUOTED_CHARS)
        raise ConfigError(f"weights.lm names {listed}; the bundle has {names}{hint}")
    for name, model in weights.imported.items():
        if weights.lm.get(name) and not known.imported.get(name, model).fits(model):
            raise ConfigError(
                f"weights {quote(weights.name)} were tuned with another model {quote(name)} than the given "
                "one: its files, start, end or text differ; give that model, or tune again"
            )
    if whole := [name for name, share in weights.mixture.items() if share and name in known.unmixed]:
        raise ConfigError(
            f"mixture names the model {quote(whole[0])}, {known.unmixed[whole[0]]}; give its sentences a "
            f'weight: lm: {{"{whole[0]}": 0.2}}'
        )
    if weights.mixture:
        check_mixture(weights.mixture, known.models, known.backward)
    elif (weights.cache or weights.neural_cache) and not set(known.models).difference(known.open_vocabulary):
        raise ConfigError(
            "weights have a cache, but the bundle has no mixture with which to mix it; set cache and "
            f'neural_cache to 0, or mix a model: mixture: {{"{known.models[0]}": 1}}'
        )
    elif weights.lm.get(MIXTURE) and not set(known.models).difference(known.open_vocabulary):
        raise ConfigError(
            "weights.lm gives the mixture a weight, but the bundle has no mixture; expected weights such as "
            f'lm: {{"{known.models[0]}": 0.2}}'
        )
    if check_cache_share(weights.cache) and not set(weights.mixture).isdisjoint(known.backward):
        raise ConfigError(
            f"weights.cache is {weights.cache:g}, but the mixture is one of backward models, which do not "
            "read what was said before; expected 0, or a mixture of forward models"
        )
    check_flatness(weights.flatness)
    share = check_cache_share(weights.neural_cache, NEURAL_CACHE)
    able = known.remembers
    if share and weights.mixture and able is not None and not any(map(weights.mixture.get, able)):
        raise ConfigError(
            f"weights.neural_cache is {share:g}, but no model of the mixture has states to compare; expected "
            f"0, or a mixture with a forward network without topics (the bundle has: "
            f"{', '.join(sorted(able)) or 'none'})"
        )
    for name, weight in weights.rerankers.items():
        if name not in known.rerankers:
            rerankers = ", ".join(known.rerankers) or "no rerankers"
            raise ConfigError(
                f"weights.rerankers names {quote(name)}; the bundle has {rerankers}"
                f"{did_you_mean(name, known.rerankers)}"
            )
        if weight and weights.mixture:
            _check_shares(weights, known.rerankers[name])


def _check_shares(weights: Weights, reranker: TrainedReranker) -> None:
    """Raise ConfigError if the λ of weights are not those under which a reranker was trained."""
    if MIXTURE not in reranker.needs:
        return
    for name in (CACHE, NEURAL_CACHE, *(["flatness"] if weights.neural_cache else [])):
        own, base = getattr(weights, name), getattr(reranker.base, name)
        if not math.isclose(own, base, abs_tol=1e-9):
            raise ConfigError(
                f"weights {quote(weights.name)} have the {name} {own:.4g}, but reranker "
                f"{quote(reranker.name)} was trained with {base:.4g}, which weights.{name} must be"
            )
    trained = reranker.base.mixture
    names = {*weights.mixture, *trained}
    if any(not math.isclose(weights.mixture.get(n, 0.0), trained.get(n, 0.0), abs_tol=1e-9) for n in names):
        raise ConfigError(
            f"weights {quote(weights.name)} have the λ {_format_shares(weights.mixture)}, but reranker "
            f"{quote(reranker.name)} was trained with {_format_shares(trained)}; leave out weights.mixture, "
            "or train a reranker with these λ"
        )


def _format_shares(mixture: Mapping[str, float]) -> str:
    """Write λ for a message, such as ``ngram 0.4, neural 0.6``."""
    return ", ".join(f"{name} {share:.4g}" for name, share in mixture.items()) or "none"


def check_mixture(weights: Mapping[str, float], known: Sequence[str], backward: Collection[str] = ()) -> None:
    """Check the interpolation weights λ of a mixture.

    Args:
        known: names of all models.
        backward: names of the backward models.

    Raises:
        ConfigError: a weight names a model that is not in ``known``, or is not between 0 and 1; the weights
            do not sum to 1; or forward and backward models are named together.
    """
    unknown = sorted(set(weights) - set(known))
    if unknown:
        meant = did_you_mean(unknown[0], known)
        names = shorten(str(unknown), MAX_QUOTED_CHARS)
        raise ConfigError(f"mixture names the models {names}; the bundle has {sorted(known)}{meant}")
    if any(not 0 <= weight <= 1 for weight in weights.values()) or abs(sum(weights.values()) - 1) > 1e-6:
        given = shorten(str(dict(weights)), MAX_QUOTED_CHARS)
        raise ConfigError(f"mixture weights are {given}; expected numbers between 0 and 1 that sum to 1")
    forward_names = [name for name in weights if name not in backward]
    if forward_names and len(forward_names) < len(weights):
        backward_name = next(name for name in weights if name in backward)
        raise ConfigError(
            f"mixture names the forward model {quote(forward_names[0])} and the backward model "
            f"{quote(backward_name)}, which predict a word from different words; leave one direction out of "
            "the mixture, and give its models weights of their own"
        )

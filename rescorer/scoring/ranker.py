"""Check, normalise and rank n-best lists: the half of rescoring that needs no language models.

This module imports neither torch nor KenLM. A process that only receives requests and ranks answers therefore
starts quickly and stays small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, count
from typing import TypeVar

import numpy as np

from rescorer.decision import apply_rule, estimate_confidence
from rescorer.errors import ConfigError, InvalidList, did_you_mean, quote
from rescorer.list_checks import (
    MAX_WORDS,
    SpokenWords,
    check_lengths,
    check_list,
    find_wrong_hypothesis,
    join_history,
    normalise_previous,
)
from rescorer.models.bundle import Bundle
from rescorer.ranking import MAX_TOTAL, Ranking, find_empty, rank_together, ranking
from rescorer.runtime import Phase, pause, phase
from rescorer.scoring.batch import ScoredPart
from rescorer.scoring.components import (
    BoundOptions,
    Columns,
    Component,
    LanguageModels,
    PreparedList,
    ScoredList,
    reserved_names,
    weighted_columns,
)
from rescorer.scoring.options import RescoreOptions, Weighting
from rescorer.text import DROPPED_NUMBER, END_NUMBER, KnownTokens
from rescorer.trie import NumberedTexts, Words, join_texts, text_lengths
from rescorer.types import LENGTH, Calibration, NBestList, Weights, WordConfidence
from rescorer.weights import check_weights, totals, uses_model

Kind = TypeVar("Kind", bound=Component)
TEXTS_AT_ONCE = 1024
"""Number of texts whose words are looked up between two pauses."""


def only_name_message(name: str, known: Collection[str]) -> str:
    """Return the error message for weights with nothing but a name, which were meant to select others."""
    quoted = f'"{quote(name)[1:-1]}"'
    message = f"weights has only a name; did you mean weights_name: {quoted} (in Python: weights={quoted})?"
    if name not in known:
        message += f" The bundle has: {', '.join(sorted(known))}{did_you_mean(name, sorted(known))}."
    return f'{message} Language models alone would rank: set lm: {{"mixture": 1}} and a new name for that'


class ListRanker:
    """Prepares lists for the language models of a bundle, and ranks the lists by the scores of the models.

    Args:
        components: the classes of all components, in the order of their columns.
    """

    def __init__(self, bundle: Bundle, components: Sequence[type[Component]]) -> None:
        self.bundle = bundle
        self._normalise = bundle.normaliser.normalise
        self.components: tuple[Component, ...] = tuple(kind(bundle, self._normalise) for kind in components)
        self._reserved_names = reserved_names(self.components)
        self.text_normaliser = bundle.text_normaliser
        """Normaliser of the texts that merging and decision rules compare. A caller may replace it before
        lists are prepared. For the words that models read, the bundle's normaliser is always used."""

    def component(self, kind: type[Kind]) -> Kind:
        """Return the component of a class."""
        return next(component for component in self.components if isinstance(component, kind))

    def effective_weights(self, weights: Weighting) -> Weights:
        """Return complete weights. A name or None stands for weights of the bundle, and weights without the λ
        of the mixture get those of the bundle.

        Raises:
            ConfigError: the bundle has no weights of that name, the weights name models that it lacks, or the
                λ do not sum to 1.
        """
        default = self.bundle.weights["default"]
        if weights is None:
            return default
        if isinstance(weights, str):
            known = self.bundle.weights
            if weights not in known:
                message = f"no weights are named {quote(weights)}; the bundle has: {', '.join(sorted(known))}"
                raise ConfigError(message + did_you_mean(weights, sorted(known)))
            weights = known[weights]
        else:
            self._check_name(weights)
        for component in self.components:
            if component.is_weighted(weights):
                weights = component.complete(weights)
        if not weights.mixture:
            weights = replace(weights, mixture=default.mixture)
        check_weights(weights, self.bundle.known_names)
        known_columns = weighted_columns(map(type, self.components))
        for name in weights.components:
            if name not in known_columns:
                raise ConfigError(
                    f"weights.components names {quote(name)}; this version knows "
                    f"{', '.join(known_columns) or 'no such components'}{did_you_mean(name, known_columns)}"
                )
        return weights

    def _check_name(self, weights: Weights) -> None:
        """Raise ConfigError if nothing but a name was set, and the bundle has other weights of that name."""
        known = self.bundle.weights.get(weights.name)
        if known is None or weights != Weights(weights.name):
            return
        if weights not in (known, replace(known, mixture={})):
            raise ConfigError(only_name_message(weights.name, self.bundle.weights))

    def bind(self, options: RescoreOptions | Weighting = None) -> BoundOptions:
        """Check options against the bundle, complete them, and find the components that they ask for.

        Raises:
            ConfigError: the options do not fit the bundle.
            LimitExceeded: a phrase is invalid, or there are too many.
        """
        options = RescoreOptions.make(options)
        if options.model not in ("", self.bundle.name, self.bundle.label):
            raise ConfigError(
                f"model is {quote(options.model)}, but this Rescorer has loaded {self.bundle.label!r}: load "
                "the other bundle with Rescorer.load(FOLDER), or choose among the models of a server with "
                "Client(ADDRESS, model=NAME)"
            )
        return self.bind_weights(self.effective_weights(options.weights), options)

    def bind_weights(self, weights: Weights, options: RescoreOptions) -> BoundOptions:
        """Like ``bind``, but with complete weights, which replace those of the options."""
        bound, optional = list[Component](), set[str]()
        for component in self.components:
            if component.is_asked(options, weights):
                bound.append(component.bind(options, weights))
            elif component.asked_by and (component.asked_by.lists or component.asked_by.hypotheses):
                bound.append(component)
                optional.add(component.name)
        return BoundOptions(
            weights,
            options.decision or weights.decision,
            tuple(bound),
            frozenset(optional),
            merge=options.merge,
            drop_empty=options.drop_empty,
        )

    def prepare(
        self,
        nbest: NBestList,
        options: BoundOptions,
        spend: Callable[[int], None] = lambda steps: None,
        max_words: int = MAX_WORDS,
        words: Sequence[Words] | None = None,
    ) -> PreparedList:
        """Check a list against the options and normalise its words.

        Args:
            spend: called before each search with an upper bound of its steps. It may raise an error to
                prevent the search.
            max_words: largest number of canonical words of a hypothesis, or of the context.
            words: the words of its hypotheses, if ``normalise_lists`` has found them.

        Raises:
            InvalidList: the list cannot be scored under these options.
        """
        with phase(Phase.TEXT):
            check_list(nbest, options.weights, self._reserved_names)
            try:
                words = self.normalise_texts(nbest.texts, max_words) if words is None else words
            except (AttributeError, TypeError):
                if error := find_wrong_hypothesis(nbest):
                    raise error from None
                raise
            context = self._normalise(nbest.context, max_words + 1)
            check_lengths(nbest.id, text_lengths(words).tolist(), context, max_words)
            history, spoken = context, tuple[SpokenWords, ...]()
            if nbest.previous:
                spoken = normalise_previous(nbest.previous, self._normalise)
                if self.bundle.reads_previous:
                    history = join_history((one.words for one in spoken), context)
            components = options.components_of(nbest)
            prepared = PreparedList(nbest, words, context, options, components, spoken, history)
            for component in components:
                spend(component.steps_to_extend(prepared))
                prepared = component.extend(prepared)
            for component in components:
                spend(component.steps_to_prepare(prepared))
                prepared = component.prepare(prepared)
            if options.compares_texts:
                prepared = replace(prepared, compared=self._compared(prepared, max_words))
                check_lengths(nbest.id, text_lengths(prepared.compared).tolist(), context, max_words)
        return prepared

    def _compared(self, prepared: PreparedList, max_words: int = MAX_WORDS) -> Sequence[Words]:
        """Return the words by which each hypothesis is compared with others; see ``normalise_texts``."""
        if prepared.compared:
            return prepared.compared
        if self.text_normaliser.settings == self.bundle.normaliser.settings:
            return prepared.words
        normalise = cache(partial(self.text_normaliser.normalise, enough=max_words + 1))
        return tuple(normalise(hypothesis.text) for hypothesis in prepared.nbest.hypotheses)

    def prepare_texts(
        self, nbest: NBestList, options: BoundOptions, max_words: int = MAX_WORDS
    ) -> PreparedList:
        """Normalise the texts of ``nbest``, which will be scored word by word and not ranked.

        Args:
            max_words: largest number of canonical words of a text, or of the context.

        Raises:
            InvalidList: a text, or the context, is too long.
        """
        with phase(Phase.TEXT):
            words = self.normalise_texts(nbest.texts, max_words)
            context = self._normalise(nbest.context, max_words + 1)
            check_lengths(nbest.id, text_lengths(words).tolist(), context, max_words)
            of_words = self.bundle.open_vocabulary - self.bundle.whole
            prepared = PreparedList(nbest, words, context, options, (), history=context, word_models=of_words)
            return self.component(LanguageModels).prepare(prepared)

    def normalise_texts(self, texts: Sequence[str], max_words: int = MAX_WORDS) -> Sequence[Words]:
        """Return the canonical words of each text; equal texts share their words.

        Of a text with more than ``max_words`` words, only the first ones are returned, and one more. But if
        few of the tokens are new, all words are returned.
        """
        try:
            return self._number_tokens(texts, max_words)
        except KeyError:  # such as that of a token that is too long to be known
            return self._number(self._normalise_each(texts, max_words))

    def normalise_lists(
        self, lists: Sequence[NBestList], max_words: int = MAX_WORDS
    ) -> Sequence[Sequence[Words] | None]:
        """Return what ``normalise_texts`` does for the hypotheses of each list, which is faster together; or
        None for each list, if a text is odd.
        """
        if len(lists) < 2:
            return [None] * len(lists)
        with phase(Phase.TEXT):
            try:
                texts = [nbest.texts for nbest in lists]
                words = self._number_tokens([*chain.from_iterable(texts)], max_words)
            except (AttributeError, KeyError, TypeError):
                return [None] * len(lists)
            return words.divide([*map(len, texts)])

    def _number_tokens(self, texts: Sequence[str], max_words: int) -> NumberedTexts:
        """Return the words of texts, all of whose tokens are known or become known.

        Raises:
            KeyError: a token cannot become known, or so many are new that texts may be too long.
        """
        known, n_new = self.bundle.normaliser.known, count()

        def number_of(token: str) -> int:
            if token not in known.numbers:
                pause()
                if next(n_new) > max_words:  # texts that long are looked at one by one, up to their limit
                    raise KeyError(token)
                self.bundle.normaliser.normalise_token(token, max_words + 1)
            return known.numbers[token]

        found = list[NumberedTexts]()
        for first in range(0, len(texts) or 1, TEXTS_AT_ONCE):
            pause()
            some = texts[first : first + TEXTS_AT_ONCE]
            tokens, last = known.table.find(some, number_of) or _find_each(known, some, number_of)
            found.append(_words_of(known, tokens, last))
        return NumberedTexts.join(found)

    def _normalise_each(self, texts: Sequence[str], max_words: int) -> tuple[Words, ...]:
        """Do the same, one text after the other; equal texts are normalised once."""
        words: dict[str, Words] = {}
        for text in dict.fromkeys(texts):
            pause()
            words[text] = self._normalise(text, max_words + 1)
        return tuple(map(words.__getitem__, texts))

    def _number(self, words: tuple[Words, ...]) -> Sequence[Words]:
        """Number the words of texts, unless some of them are so long that they have no numbers."""
        known = self.bundle.normaliser.known
        try:
            numbers = np.fromiter(
                map(known.number_of.__getitem__, chain.from_iterable(words)), dtype=np.int64
            )
        except KeyError:
            return words
        return NumberedTexts(numbers, text_lengths(words), known.words)

    def columns(
        self, prepared: PreparedList, parts: Sequence[ScoredPart], options: BoundOptions | None = None
    ) -> Columns:
        """Return the columns of a list; arguments and errors are those of ``rank``."""
        if options is None or options is prepared.options:
            options, components = prepared.options, prepared.components
        else:
            components = options.components_of(prepared.nbest)
        if prepared.unread.keys() & options.weights.mixture.keys():
            options = self._mix_without(prepared.unread, options)
        scored, columns = ScoredList(prepared, parts, options), Columns()
        for component in components:
            component.add_columns(columns, scored)
        return columns

    def _mix_without(self, unread: Collection[str], options: BoundOptions) -> BoundOptions:
        """Return options without models for which a list is too long; the others' λ keep their proportions.

        If none of the others has a λ, the bundle's n-gram stands for all.
        """
        weights = options.weights
        others = {name: share for name, share in weights.mixture.items() if name not in unread and share}
        if not others and self.bundle.ngram not in self.bundle.open_vocabulary:
            others = {self.bundle.ngram: 1.0}
        total = math.fsum(others.values())
        shares = {name: share / total for name, share in others.items()}
        return replace(options, weights=replace(weights, mixture=shares))

    def rank(
        self, prepared: PreparedList, parts: Sequence[ScoredPart], options: BoundOptions | None = None
    ) -> Ranking:
        """Rank one list by its totals and a decision rule.

        Args:
            parts: the scores of all hypotheses of the list; empty if the list was not scored.
            options: options by which to rank; None for the options by which it was prepared.

        Raises:
            InvalidList: a total is not finite, or the list is too long for the rule or a component.
        """
        options = options or prepared.options
        columns = self.columns(prepared, parts, options)
        total = totals(columns, options.weights)
        words = self._compared(prepared) if options.compares_texts else ()
        dropped = find_empty(words) if options.drop_empty else ()
        merge_by = words if options.merge else None
        ranked = ranking(prepared.nbest, columns, total, merge_by, dropped, keep_order=options.keep_order)
        if prepared.unread:
            ranked = replace(ranked, degradation=LENGTH)
        if prepared.nbest.previous and not options.keep_order:
            unread = [name for name in self.bundle.units if name not in self.bundle.reads_previous]
            unread_by = [name for name in unread if uses_model(options.weights, name)]
            ranked = replace(ranked, previous_unread_by=unread_by)
        if options.keep_order:
            return ranked
        if options.decision.kind != "maximum":
            ranked = apply_rule(ranked, options.decision, words, self.text_normaliser)
        calibration = options.weights.calibration
        if prepared.unread:  # a calibration belongs to totals that include all models
            calibration = None
        return ranked if calibration is None else self._add_confidence(ranked, words, total, calibration)

    def rank_each(
        self, scored: Sequence[tuple[PreparedList, Sequence[ScoredPart]]]
    ) -> list[Ranking | InvalidList]:
        """Rank lists as ``rank`` does each of them, with an error in place of a list that cannot be ranked.

        Lists of one batch that have the same components and streams are ranked together, which is faster.
        """
        answers: list[Ranking | InvalidList | None] = [None] * len(scored)
        alike: dict[Hashable, list[int]] = {}
        for i, (prepared, parts) in enumerate(scored):
            if _can_join(prepared, parts):
                streams = tuple(prepared.nbest.streams)
                key = parts[0].batch, prepared.options, prepared.components, streams
                alike.setdefault(key, []).append(i)
        for places in alike.values():
            for i, ranked in zip(places, self._rank_together([scored[i] for i in places]), strict=False):
                answers[i] = ranked
        for i, (prepared, parts) in enumerate(scored):
            if answers[i] is None:
                try:
                    answers[i] = self.rank(prepared, parts)
                except InvalidList as error:
                    answers[i] = error
        return answers  # type: ignore[return-value]

    def _rank_together(self, scored: Sequence[tuple[PreparedList, Sequence[ScoredPart]]]) -> list[Ranking]:
        """Rank lists for which ``_can_join`` holds; return nothing if the total of one is too large."""
        if len(scored) < 2:
            return []
        lists = [prepared for prepared, _ in scored]
        joined, options = _join(lists), lists[0].options
        columns = self.columns(joined, _join_parts([part for _, (part,) in scored]), options)
        total = totals(columns, options.weights)
        if not np.abs(total).max() <= MAX_TOTAL:  # or NaN
            return []
        return rank_together([prepared.nbest for prepared in lists], columns, total)

    def _add_confidence(
        self, ranked: Ranking, compared: Sequence[Words], total: np.ndarray, calibration: Calibration
    ) -> Ranking:
        """Add the confidence in the best hypothesis, and in each word of its text as it is written there."""
        best = ranked.order[0]
        confidence = estimate_confidence(calibration, compared, total, best)
        if confidence.words is None:
            return replace(ranked, confidence=confidence.utterance)
        remaining = iter(confidence.words.tolist())
        words = []
        for written in ranked.nbest.hypotheses[best].text.split():
            # a written word can be several canonical words, such as we_did, or none
            parts = [next(remaining) for _ in self.text_normaliser.normalise_token(written)]
            words.append(WordConfidence(written, min(parts, default=None)))
        return replace(ranked, confidence=confidence.utterance, word_confidences=words)

    # When a service cannot score a list in time

    def ngram_only(self, options: BoundOptions) -> BoundOptions:
        """Return options under which the bundle's n-gram alone has the weight of all language models.

        The options have no calibration, because a calibration belongs to totals that include all models.
        """
        weights = options.weights
        for component in self.components:
            weights = component.without_models(weights, {self.bundle.ngram})
        lm = {self.bundle.ngram: sum(weights.lm.values())}
        mixture = {} if self.bundle.ngram in self.bundle.open_vocabulary else {self.bundle.ngram: 1.0}
        weights = replace(weights, lm=lm, mixture=mixture, calibration=None)
        return replace(options, weights=weights)

    def first_pass(self, options: BoundOptions) -> BoundOptions:
        """Return options that keep the input order. Totals have only components that need no models' scores,
        such as streams and word counts."""
        weights = options.weights
        for component in self.components:
            weights = component.without_models(weights, None)
        left_out = [one for one in options.components if one.needs_scores]
        names = {name for component in left_out for name in component.columns}
        others = {name: weight for name, weight in weights.components.items() if name not in names}
        return replace(
            options,
            weights=replace(weights, lm={}, oov=0.0, components=others),
            components=tuple(one for one in options.components if not one.needs_scores),
            keep_order=True,
        )


def _find_each(
    known: KnownTokens, texts: Sequence[str], number_of: Callable[[str], int]
) -> tuple[np.ndarray, np.ndarray]:
    """Do what ``TokenTable.find`` does, for any texts; raise KeyError as ``KnownTokens.split`` does."""
    tokens = known.split(texts)
    try:
        found = np.fromiter(map(known.numbers.__getitem__, tokens), dtype=np.int64)
    except KeyError:  # a new token
        found = np.fromiter(map(number_of, tokens), dtype=np.int64)
    return found, np.flatnonzero(found == END_NUMBER)


def _words_of(known: KnownTokens, tokens: np.ndarray, last: np.ndarray) -> NumberedTexts:
    """Return the words of texts whose tokens have these numbers, as ``TokenTable.find`` returns them."""
    if not len(tokens) or tokens.min() >= 0:
        return NumberedTexts(tokens, np.diff(last, prepend=-1), known.words)
    several = np.flatnonzero(tokens < DROPPED_NUMBER)
    parts = [known.several[number] for number in tokens.take(several).tolist()]
    n_words = (tokens >= 0).astype(np.int64)
    n_words[several] = [*map(len, parts)]
    numbers = np.repeat(tokens, n_words)
    numbers[numbers < 0] = [*chain.from_iterable(parts)]
    return NumberedTexts(numbers, np.diff(np.cumsum(n_words).take(last), prepend=0), known.words)


def _can_join(prepared: PreparedList, parts: Sequence[ScoredPart]) -> bool:
    """Whether the ranking of a list follows from its totals alone, so that it can be ranked with others."""
    options = prepared.options
    return (
        len(parts) == 1
        and len(parts[0].indices) == len(prepared.words)
        and not (options.compares_texts or options.keep_order or prepared.unread or prepared.nbest.previous)
        and all(component.joins_lists for component in prepared.components)
    )


def _join(lists: Sequence[PreparedList]) -> PreparedList:
    """Return the hypotheses of all lists, with their words and streams alone, as one list."""
    streams = {
        name: tuple(chain.from_iterable(one.nbest.streams[name] for one in lists))
        for name in lists[0].nbest.streams
    }
    first, words = lists[0], join_texts([one.words for one in lists])
    return PreparedList(NBestList("", (), streams), words, (), first.options, first.components)


def _join_parts(parts: Sequence[ScoredPart]) -> list[ScoredPart]:
    """Return parts of a batch with the rows of all these parts, as those of one list."""
    joined, n = list[ScoredPart](), 0
    for part in parts:
        indices = range(n, n + len(part.indices))
        n = indices.stop
        if joined and joined[-1].rows.stop == part.rows.start:
            before = joined.pop()
            part = ScoredPart(part.batch, slice(before.rows.start, part.rows.stop), part.indices)
            indices = range(before.indices[0], n)
        joined.append(part._replace(indices=indices))
    return joined

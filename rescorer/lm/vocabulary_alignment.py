"""Share the probability of ``<unk>`` among the words that one model lacks and another one knows.

In the model that lacks such a word, ``<unk>`` stands for it. The word's share of the probability of ``<unk>``
is fixed at load time: P_m(w|h) = P_m(<unk>|h) · q_m(w), where q_m is the n-gram's unigram distribution over
the words that m lacks (uniform if the n-gram itself lacks them). ``<unk>``, which stands for all words that
no model knows, is one more symbol of q_m. Every model then spreads exactly probability 1 over the union of
the vocabularies and ``<unk>``, and so does their mixture.

A share that depends on the context, P_kn(w|h) / Σ_{v∉list} P_kn(v|h), would follow the n-gram more closely
but needs a sum over all missing words for every context; q_m needs one sum at load time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rescorer.lm.base import LanguageModel
from rescorer.lm.ngrams import NgramModel
from rescorer.vocabulary import UNKNOWN


def align_vocabularies(models: Sequence[LanguageModel], words: frozenset[str] = frozenset()) -> None:
    """For each model, set the share of P(``<unk>``) that each word missing from its vocabulary receives.

    Args:
        words: further words over which probability is to be spread, such as those of models to compare with.
    """
    union = words.union(*(model.vocabulary() for model in models))
    ngram = next((model for model in models if isinstance(model, NgramModel)), None)
    for model in models:
        missing = sorted(union.difference(model.vocabulary()))
        if not missing:
            continue
        if ngram is None or model is ngram:
            model.share_unknown({}, -math.log(len(missing) + 1))
            continue
        log_probs = ngram.unigram_log_probs([UNKNOWN, *missing])
        log_probs -= np.logaddexp.reduce(log_probs)
        model.share_unknown(dict(zip(missing, log_probs[1:].tolist(), strict=True)), float(log_probs[0]))

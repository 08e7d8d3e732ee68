"""Recognise speech with PocketSphinx and its English models, and take the n best of its lattices.

Needs the package pocketsphinx, which is an optional dependency: ``pip install pocketsphinx``.
"""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rescorer.errors import ConfigError
from rescorer.formats.lattices.slf import read_lattice
from rescorer_training.lists.lattice_search import Candidate, Scales, find_candidates

if TYPE_CHECKING:
    import pocketsphinx

SAMPLE_RATE_HZ = 16_000
LATTICE_LM_SCALE, SEARCH_LM_SCALE = 9.5, 6.5
SCALES = Scales(LATTICE_LM_SCALE, LATTICE_LM_SCALE / SEARCH_LM_SCALE * math.log(0.65))
"""PocketSphinx's own: ``bestpathlw``, and its word insertion penalty ``wip``, which is meant for ``lw``."""

MIN_POSTERIOR = 1e-5
"""Smallest posterior of a link that is kept. Without the others, a lattice is searched ten times as fast, and
mostly 97 or more of its 100 best hypotheses are those of the whole."""
BEAM = 100.0
"""Histories of a node are left out if their totals are lower by more nats than that of its best history."""
POSTERIOR = re.compile(r"J=.*\bp=(\S+)")
LINK_COUNT = re.compile(r"^(N=\d+\s+L=)\d+", re.MULTILINE)


def import_pocketsphinx() -> pocketsphinx:
    """Import the package pocketsphinx.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pocketsphinx
    except ImportError:
        raise ConfigError(
            "PocketSphinx is not installed; install it with: pip install pocketsphinx"
        ) from None
    return pocketsphinx


def dictionary_path() -> Path:
    """The pronunciation dictionary that comes with PocketSphinx.

    Raises:
        ConfigError: PocketSphinx is not installed.
    """
    try:
        package = import_pocketsphinx()
    except ConfigError as error:
        raise ConfigError(f"{error}, or give a pronunciation dictionary with --dictionary") from None
    return Path(package.get_model_path("en-us/cmudict-en-us.dict"))


def prune_links(slf: str, min_posterior: float) -> str:
    """Remove the links of a lattice, in the form in which PocketSphinx writes it, with small posteriors."""
    lines = slf.splitlines(keepends=True)
    kept = [
        line for line in lines if not (match := POSTERIOR.match(line)) or float(match[1]) >= min_posterior
    ]
    n_links = sum(line.startswith("J=") for line in kept)
    return LINK_COUNT.sub(rf"\g<1>{n_links}", "".join(kept), count=1)


class PocketSphinxTrigram:
    """PocketSphinx's trigram model."""

    def __init__(self, decoder: pocketsphinx.Decoder) -> None:
        self._model = decoder.get_lm()
        self._nats_per_unit = math.log(decoder.config["logbase"])

    def log_prob(self, ngram: tuple[str, ...]) -> float:
        """ln P of the last word after the others."""
        # the package expects the word first, then its predecessors backwards
        return self._model.prob(ngram[::-1]) * self._nats_per_unit


class PocketSphinx:
    """A recogniser whose lists depend only on the samples, not on earlier utterances."""

    def __init__(self) -> None:
        self._decoder = import_pocketsphinx().Decoder(samprate=SAMPLE_RATE_HZ, loglevel="FATAL")
        self._model = PocketSphinxTrigram(self._decoder)

    def recognise(self, samples: np.ndarray, depth: int, folder: Path) -> list[Candidate]:
        """Find the ``depth`` best hypotheses of the lattice; empty if nothing was recognised.

        Args:
            samples: (S,) int16 at ``SAMPLE_RATE_HZ``.
            folder: where to write a temporary lattice.

        Raises:
            InputError, ValueError: the lattice is damaged or has no path.
            LimitExceeded: the lattice is too large.
        """
        decoder = self._decoder
        decoder.reinit_feat()  # reset the noise estimate of earlier utterances
        decoder.start_utt()
        decoder.process_raw(samples.tobytes(), full_utt=True)
        decoder.end_utt()
        decoder.get_prob()  # computes the posteriors of the lattice
        lattice = decoder.get_lattice()
        if lattice is None:
            return []
        path = folder / "lattice.slf"
        lattice.write_htk(str(path))
        pruned = prune_links(path.read_text(encoding="utf-8"), MIN_POSTERIOR)
        path.unlink()
        parsed, _ = read_lattice(io.BytesIO(pruned.encode()))
        return find_candidates(parsed, self._model, SCALES, depth, beam=BEAM)

"""Make lists by speech synthesis and a recogniser.

The randomness of a list is that of its sentence, and a recogniser does not remember earlier utterances, so
lists depend neither on the number of processes nor on whether a run was interrupted.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from rescorer.errors import ConfigError, InputError, LimitExceeded
from rescorer.formats.io.text_io import open_output
from rescorer.formats.nbest.jsonlines_output import encode_list
from rescorer.types import Hypothesis, NBestList
from rescorer_training.lists.journal import Journal
from rescorer_training.lists.lattice_search import Candidate
from rescorer_training.lists.processes import TaskError, run_tasks
from rescorer_training.lists.synthesis import (
    SynthesisError,
    add_noise,
    draw_rendering,
    synthesise,
)
from rescorer_training.lists.texts import Sentence
from rescorer_training.progress import track

SYNTHESIS_TIMEOUT_S = 30.0
ACOUSTIC_DECIMALS, LM_DECIMALS = 4, 4
MAX_REASONS = 3
"""Number of reasons to name if no sentence gave a list."""
METHOD = "speech"


class Recogniser(Protocol):
    """A speech recogniser."""

    def recognise(self, samples: np.ndarray, depth: int, folder: Path) -> list[Candidate]:
        """Find the ``depth`` best hypotheses in (S,) int16 at 16 kHz; may write files into a folder."""


@dataclass(frozen=True, slots=True)
class SpeechSettings:
    """What determines a list, besides its sentence."""

    seed: int
    depth: int
    """Maximum number of hypotheses per list."""
    voices: tuple[str, ...]
    snr_range_db: tuple[float, float]
    """Least and largest ratio of speech to noise."""


class ListMaker:
    """Speaks sentences and recognises them; lives in a process of its own."""

    def __init__(
        self, load_recogniser: Callable[[], Recogniser], settings: SpeechSettings, folder: Path
    ) -> None:
        self._recogniser, self._settings, self._folder = load_recogniser(), settings, folder

    def __call__(self, sentence: Sentence) -> str | TaskError:
        """Make the list of a sentence, encoded as a line of JSON."""
        random = sentence.random()
        rendering = draw_rendering(random, self._settings.voices, self._settings.snr_range_db)
        try:
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                speech = synthesise(sentence.text, rendering, Path(folder), SYNTHESIS_TIMEOUT_S)
                samples = add_noise(speech, rendering.snr_db, random)
                candidates = self._recogniser.recognise(samples, self._settings.depth, Path(folder))
        except SynthesisError as error:
            return TaskError(str(error))
        except (InputError, LimitExceeded, ValueError, RuntimeError) as error:
            return TaskError(f"recognition failed: {error}")
        if not candidates:
            return TaskError("the recogniser found no words")
        fields = {"method": METHOD, **asdict(rendering)}
        return encode_list(build_list(sentence, candidates, rendering.voice, fields))


def build_list(
    sentence: Sentence, candidates: Sequence[Candidate], group: str, fields: dict[str, object]
) -> NBestList:
    """Build a list with the streams ``acoustic`` and ``lm``, in nats."""
    return NBestList(
        id=f"{METHOD}-{sentence.key}",
        hypotheses=tuple(Hypothesis(" ".join(candidate.words)) for candidate in candidates),
        streams={
            "acoustic": tuple(round(candidate.acoustic, ACOUSTIC_DECIMALS) for candidate in candidates),
            "lm": tuple(round(candidate.lm, LM_DECIMALS) for candidate in candidates),
        },
        reference=sentence.text,
        group=group,
        fields=fields,
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run."""

    written: int
    rejected: Counter[str]
    """Number of sentences without a list, by reason."""
    n_kept: int
    """Number of finished sentences that were not asked for and are kept beside the output."""


def unfinished_folder(output: Path) -> Path:
    """Where finished lists are kept until all are done."""
    return output.with_name(f"{output.name}.unfinished")


def make_speech_lists(
    sentences: Sequence[Sentence],
    output: Path,
    settings: SpeechSettings,
    load_recogniser: Callable[[], Recogniser],
    *,
    n_processes: int,
    timeout_s: float,
) -> Summary:
    """Make the lists of sentences and write them to a file, in the order of the sentences.

    Finished lists are kept in the folder ``OUTPUT.unfinished`` until all are done; a second call goes on
    where the first one was interrupted. If it has fewer sentences, the folder stays, with the lists of the
    others.

    Args:
        load_recogniser: called in each process; must be picklable.
        timeout_s: time for one sentence.

    Raises:
        ConfigError: an unfinished run of the same output has other settings, or no sentence gave a list.
    """
    folder = unfinished_folder(output)
    folder.mkdir(exist_ok=True)
    with Journal(folder / "lists.jsonl", asdict(settings)) as journal:
        sounds = folder / "sounds"
        shutil.rmtree(sounds, ignore_errors=True)  # of a run that was killed
        sounds.mkdir()
        remaining = [sentence for sentence in sentences if sentence.key not in journal.finished]
        make = partial(ListMaker, load_recogniser, settings, sounds)
        with track("recognising", "sentences", len(sentences)) as task:
            task.advance(len(sentences) - len(remaining))
            for sentence, result in run_tasks(make, remaining, n_processes, timeout_s):
                if isinstance(result, TaskError):
                    journal.add(sentence.key, {"rejected": result.reason})
                else:
                    journal.add(sentence.key, {"list": result})
                task.advance()
        results = [journal.finished[sentence.key] for sentence in sentences]
        rejected = Counter(result["rejected"] for result in results if "rejected" in result)
        n_kept = len(journal.finished) - len(results)
        unneeded = sounds if n_kept else folder
        if rejected.total() == len(results):
            shutil.rmtree(unneeded)
            reasons = "; ".join(f"{count:,}: {reason}" for reason, count in rejected.most_common(MAX_REASONS))
            raise ConfigError(f"no sentence gave a list ({reasons}); {output} was not written")
        with open_output(output) as stream:
            stream.writelines(f"{result['list']}\n" for result in results if "list" in result)
        shutil.rmtree(unneeded)
    return Summary(len(results) - rejected.total(), rejected, n_kept)

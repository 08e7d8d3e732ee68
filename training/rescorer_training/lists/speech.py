"""Make training lists by speech synthesis and a recogniser.

Flite, espeak-ng and festival synthesise sentences at varied speed, pitch and noise. These programs come with
Debian, in packages of the same names; festival's voices are in further packages. PocketSphinx, an optional
dependency (``pip install pocketsphinx``), recognises the speech with its English models. A list has the n
best hypotheses of its lattice. Random numbers depend only on the sentence, and the recogniser does not
remember earlier utterances. So lists depend neither on the number of processes nor on interruptions.

During a run, a journal keeps its results as lines of JSON: first the settings of the run, then one line for
each finished task. If the process was killed while it wrote a line, the incomplete line is removed.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import wave
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np

from rescorer.errors import (
    MAX_QUOTED_CHARS,
    ConfigError,
    InputError,
    LimitExceeded,
    RescorerError,
    did_you_mean,
    quote,
    shorten,
)
from rescorer.formats.io.text_io import open_output
from rescorer.formats.jsonlines import encode_list
from rescorer.formats.lattices import read_lattice
from rescorer.progress import track
from rescorer.types import Hypothesis, NBestList
from rescorer_training.lists.patterns import Sentence
from rescorer_training.lists.text import Candidate, Scales, find_candidates

if TYPE_CHECKING:
    import pocketsphinx


class Journal:
    """The file with a run's finished tasks, as a context manager that keeps other runs from using it."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open a journal, or start one.

        Raises:
            ConfigError: the journal belongs to a run with other settings, another process has it open, or its
                file system cannot lock it.
        """
        self._path = path
        self._stream = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed in __exit__)
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stream.close()
            raise ConfigError(f"{path}: another process is writing it; wait until it has ended") from None
        except OSError as error:
            self._stream.close()
            raise ConfigError(
                f"{path}: cannot be locked against other runs: {error.strerror}; choose a folder of another "
                "file system"
            ) from None
        header, *records = self._read_records() or [None]
        if header is None:
            self._write({"settings": dict(settings)})
        elif header != {"settings": json.loads(json.dumps(dict(settings)))}:
            self._stream.close()
            raise ConfigError(
                f"{path}: an unfinished run has other settings "
                f"({describe_differences(header.get('settings', {}), settings)}); start again with those, or "
                f"delete the folder {path.parent}, or choose another output"
            )
        self.finished: dict[str, Any] = {record["key"]: record["value"] for record in records}

    def _read_records(self) -> list[Any]:
        self._stream.seek(0)
        content = self._stream.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._stream.truncate(len(complete))
        return [json.loads(line) for line in complete.splitlines()]

    def _write(self, record: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(record).encode() + b"\n")

    def add(self, key: str, value: Any) -> None:
        """Record a finished task and its result, which is JSON data."""
        self._write({"key": key, "value": value})
        self.finished[key] = value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Name the settings that differ, with both values.

    >>> describe_differences({"seed": 1, "depth": 100}, {"seed": 1, "depth": 50})
    'depth 100, now 50'
    """

    def spell(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    def show(value: Any) -> str:
        return shorten(spell(value), MAX_QUOTED_CHARS)

    names = [name for name in dict.fromkeys([*old, *new]) if spell(old.get(name)) != spell(new.get(name))]
    return "; ".join(f"{name} {show(old.get(name))}, now {show(new.get(name))}" for name in names)


Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TaskError:
    """The reason why a task has no result."""

    reason: str


class _Worker(Generic[Task, Result]):
    """A process that works on one task at a time."""

    def __init__(self, make: Callable[[], Callable[[Task], Result]], timeout_s: float) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads hold
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._timeout_s = timeout_s

    def give(self, task: Task) -> None:
        self.task = task
        self.deadline = time.monotonic() + self._timeout_s
        self.connection.send(task)

    def take(self) -> Result | TaskError | None:
        """Return the task's result; None if it is not ready. Stop the process after a crash or timeout."""
        try:
            if self.connection.poll():
                result: Result = self.connection.recv()
                return result
        except (EOFError, OSError):
            self.stop()
            return TaskError("the process crashed")
        if time.monotonic() < self.deadline:
            return None
        self.stop()
        return TaskError(f"took longer than {self._timeout_s:g} s")

    @property
    def is_stopped(self) -> bool:
        return self.connection.closed

    def stop(self) -> None:
        """Kill the process, if it still runs, and the programs that it has started."""
        if self._process.pid is not None and self._process.is_alive():
            with suppress(ProcessLookupError):  # it has no group of its own yet, so it runs no program
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(make: Callable[[], Callable[[Task], Result]], connection: Connection) -> None:
    os.setsid()  # its own group, to be killed with its programs; Ctrl-C reaches the parent only
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    function = make()
    while True:
        try:
            task = connection.recv()
        except EOFError:  # the parent has gone
            return
        connection.send(function(task))


def _exit_with_parent() -> None:
    """End this process and its programs when the parent process ends, even if the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os.killpg(os.getpid(), signal.SIGKILL)


def run_tasks(
    make: Callable[[], Callable[[Task], Result]], tasks: Iterable[Task], n_processes: int, timeout_s: float
) -> Iterator[tuple[Task, Result | TaskError]]:
    """Yield each task with its result, in the order of completion.

    Args:
        make: makes, in each new process, the function that computes results. ``make`` must be picklable.
        timeout_s: time after which the process of a task is killed. For the first task of a process, it
            includes the time for ``make``.
    """
    remaining = iter(tasks)
    workers: list[_Worker[Task, Result]] = []

    def start(task: Task) -> None:
        workers.append(_Worker(make, timeout_s))
        workers[-1].give(task)

    try:
        for task in islice(remaining, n_processes):
            start(task)
        while workers:
            next_deadline = min(worker.deadline for worker in workers)
            wait([worker.connection for worker in workers], max(0.0, next_deadline - time.monotonic()))
            for worker in list(workers):
                result = worker.take()
                if result is None:
                    continue
                yield worker.task, result
                following = list(islice(remaining, 1))
                if not following:
                    worker.stop()
                if worker.is_stopped:
                    workers.remove(worker)
                for task in following:
                    start(task) if worker.is_stopped else worker.give(task)
    finally:
        for worker in workers:
            worker.stop()


SAMPLE_RATE_HZ = 16_000
COMMANDS = {"flite": "flite", "espeak-ng": "espeak-ng", "festival": "text2wave"}
"""Program of each package."""
FLITE_PITCHES_HZ = {"awb": 130.0, "kal": 95.0, "kal16": 95.0, "rms": 95.0, "slt": 165.0}
"""Voices of flite with their usual mean pitch. The voice kal has 8 kHz, like a telephone."""
ESPEAK_ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-us-nyc")
ESPEAK_VARIANTS = ("m1", "m2", "m3", "m4", "m7", "f1", "f2", "f3", "f4", "klatt2", "klatt4", "steph", "john")
FESTIVAL_VOICES = {
    "kal_diphone": "festvox-kallpc16k",
    "ked_diphone": "festvox-kdlpc16k",
    "cmu_us_slt_arctic_hts": "festvox-us-slt-hts",
}
"""Voices of festival with their packages. The last voice ignores the speed."""
VOICES = (
    *(f"flite:{name}" for name in FLITE_PITCHES_HZ),
    *(f"espeak-ng:{accent}+{variant}" for accent in ESPEAK_ACCENTS for variant in ESPEAK_VARIANTS),
    *(f"festival:{name}" for name in FESTIVAL_VOICES),
)
"""All voices, as PROGRAM:VOICE."""
DEFAULT_VOICES = tuple(voice for voice in VOICES if not voice.startswith("espeak-ng:"))
"""Voices that PocketSphinx recognises about as well as human speech."""
ESPEAK_WORDS_PER_MINUTE, ESPEAK_PITCH = 160, 50
ESPEAK_PITCH_PER_SEMITONE = 50 / 12
"""Steps of espeak-ng's pitch per semitone. Its range from 0 to 99 is about two octaves."""
MIN_SPEED, MAX_SPEED = 0.8, 1.25
MAX_PITCH_SEMITONES = 3.0


class SynthesisError(RescorerError):
    """A synthesiser failed."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """Properties of the speech of a sentence."""

    voice: str
    """One of ``VOICES``."""
    speed: float
    """Speed relative to the usual speed of the voice."""
    pitch_semitones: float
    """Pitch relative to the usual pitch of the voice."""
    snr_db: float
    """Ratio of speech to added white noise."""


def check_voices(voices: Sequence[str]) -> None:
    """Raise ConfigError if a voice is unknown, or its program is not installed."""
    for voice in voices:
        if voice not in VOICES:
            raise ConfigError(
                f"unknown voice {quote(voice)}; expected one like flite:slt or espeak-ng:en-us+m3"
                f"{did_you_mean(voice, VOICES)}"
            )
    for program in sorted({voice.partition(":")[0] for voice in voices}):
        if shutil.which(COMMANDS[program]) is None:
            raise _missing_package(f"the program {program}", program)
    names = [voice.removeprefix("festival:") for voice in voices if voice.startswith("festival:")]
    known = list_festival_voices() if names else set()
    for name in names:
        if name not in known:
            raise _missing_package(f"festival's voice {name}", FESTIVAL_VOICES[name])


def _missing_package(what: str, package: str) -> ConfigError:
    return ConfigError(
        f"{what} is not installed; install Debian's package {package} (apt-get install {package}), or choose "
        "other voices with --voice"
    )


def list_festival_voices() -> set[str]:
    """Return the names of festival's voices that are installed."""
    command = ["festival", "--batch", "(print (voice.list))"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return set(listed.replace("(", " ").replace(")", " ").split())


def draw_rendering(
    random: np.random.Generator, voices: Sequence[str], snr_range_db: tuple[float, float]
) -> Rendering:
    """Draw a program and one of its voices; then speed (log-uniform), pitch and noise (uniform)."""
    programs = sorted({voice.partition(":")[0] for voice in voices})
    program = programs[random.integers(len(programs))]
    own = [voice for voice in voices if voice.startswith(f"{program}:")]
    return Rendering(
        voice=own[random.integers(len(own))],
        speed=round(math.exp(random.uniform(math.log(MIN_SPEED), math.log(MAX_SPEED))), 3),
        pitch_semitones=round(random.uniform(-MAX_PITCH_SEMITONES, MAX_PITCH_SEMITONES), 2),
        snr_db=round(random.uniform(*snr_range_db), 1),
    )


def synthesise(text: str, rendering: Rendering, folder: Path, timeout_s: float) -> np.ndarray:
    """Synthesise a sentence without noise, (S,) int16 at ``SAMPLE_RATE_HZ``.

    Args:
        folder: folder for a temporary sound file.

    Raises:
        SynthesisError: the program failed, took too long or wrote no speech.
    """
    path = folder / "speech.wav"
    command = build_command(text, rendering, path)
    try:
        subprocess.run(command, input=text.encode(), check=True, capture_output=True, timeout=timeout_s)
        with wave.open(str(path)) as speech:
            rate_hz = speech.getframerate()
            samples = np.frombuffer(speech.readframes(speech.getnframes()), np.int16)
    except subprocess.TimeoutExpired:
        raise SynthesisError(f"{command[0]} took longer than {timeout_s:g} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        reason = f": {shorten(said[-1], MAX_QUOTED_CHARS)}" if said else ""
        raise SynthesisError(f"{command[0]} failed with status {error.returncode}{reason}") from None
    except (OSError, EOFError, wave.Error):
        raise SynthesisError(f"{command[0]} wrote no speech") from None
    finally:
        path.unlink(missing_ok=True)
    if not samples.any():
        raise SynthesisError(f"{command[0]} wrote no speech")
    if rendering.voice.startswith("festival:"):
        rate_hz = round(rate_hz * 2 ** (rendering.pitch_semitones / 12) / 100) * 100
    return resample(samples, rate_hz)


def build_command(text: str, rendering: Rendering, path: Path) -> list[str]:
    """Build the command that speaks a text into a WAV file. Festival reads the text from standard input."""
    program, _, voice = rendering.voice.partition(":")
    if program == "flite":
        pitch_hz = FLITE_PITCHES_HZ[voice] * 2 ** (rendering.pitch_semitones / 12)
        settings = [f"duration_stretch={1 / rendering.speed:.4f}", f"int_f0_target_mean={pitch_hz:.1f}"]
        options = [part for setting in settings for part in ("--setf", setting)]
        return [program, "-voice", voice, *options, "-t", text, "-o", str(path)]
    if program == "festival":
        # its voices can be slower, but not higher: higher is the same sound played faster
        stretch = 2 ** (rendering.pitch_semitones / 12) / rendering.speed
        settings = [f"(voice_{voice})", f"(Parameter.set 'Duration_Stretch {stretch:.4f})"]
        return ["text2wave", *(part for setting in settings for part in ("-eval", setting)), "-o", str(path)]
    speed = round(ESPEAK_WORDS_PER_MINUTE * rendering.speed)
    pitch = round(ESPEAK_PITCH + ESPEAK_PITCH_PER_SEMITONE * rendering.pitch_semitones)
    return [program, "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", str(path), "--", text]


def resample(samples: np.ndarray, rate_hz: int) -> np.ndarray:
    """Convert sound to the sampling rate ``SAMPLE_RATE_HZ``, (S,) int16."""
    from scipy.signal import resample_poly  # loads slowly

    if rate_hz == SAMPLE_RATE_HZ:
        return samples
    divisor = math.gcd(rate_hz, SAMPLE_RATE_HZ)
    return to_int16(resample_poly(samples.astype(np.float64), SAMPLE_RATE_HZ // divisor, rate_hz // divisor))


def add_noise(samples: np.ndarray, snr_db: float, random: np.random.Generator) -> np.ndarray:
    """Add white noise with a given ratio of speech to noise in decibels."""
    signal = samples.astype(np.float64)
    deviation = np.sqrt(np.mean(signal**2)) * 10 ** (-snr_db / 20)
    return to_int16(signal + random.normal(0.0, deviation, size=signal.shape))


def to_int16(signal: np.ndarray) -> np.ndarray:
    """Round and clip to 16 bits."""
    return np.clip(np.rint(signal), -32768, 32767).astype(np.int16)


LATTICE_LM_SCALE, SEARCH_LM_SCALE = 9.5, 6.5
SCALES = Scales(LATTICE_LM_SCALE, LATTICE_LM_SCALE / SEARCH_LM_SCALE * math.log(0.65))
"""PocketSphinx's defaults: the scale ``bestpathlw``, and the penalty ``wip``, rescaled from ``lw`` to it."""

MIN_POSTERIOR = 1e-5
"""Smallest posterior of a lattice's link that is kept.

Without the other links, the search is ten times as fast and mostly finds 97 or more of the 100 best
hypotheses."""
BEAM = 100.0
"""Beam in nats for the search; see ``ExpandedLattice``."""
POSTERIOR = re.compile(r"J=.*\bp=(\S+)")
LINK_COUNT = re.compile(r"^(N=\d+\s+L=)\d+", re.MULTILINE)


def import_pocketsphinx() -> pocketsphinx:
    """Import the package pocketsphinx; raises ConfigError if it is not installed."""
    try:
        import pocketsphinx
    except ImportError:
        raise ConfigError(
            "PocketSphinx is not installed; install it with: pip install pocketsphinx"
        ) from None
    return pocketsphinx


def dictionary_path() -> Path:
    """Return the path of the pronunciation dictionary that comes with PocketSphinx.

    Raises:
        ConfigError: PocketSphinx is not installed.
    """
    try:
        package = import_pocketsphinx()
    except ConfigError as error:
        raise ConfigError(f"{error}, or give a pronunciation dictionary with --dictionary") from None
    return Path(package.get_model_path("en-us/cmudict-en-us.dict"))


def prune_links(slf: str, min_posterior: float) -> str:
    """Remove links with small posteriors from a lattice in the SLF format as PocketSphinx writes it."""
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
        """Return ln P of the last word after the other words."""
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
            folder: folder for a temporary lattice file.

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


SYNTHESIS_TIMEOUT_S = 30.0
ACOUSTIC_DECIMALS, LM_DECIMALS = 4, 4
MAX_REASONS = 3
"""Number of reasons that the error message names if no sentence gave a list."""
METHOD = "speech"


class Recogniser(Protocol):
    """A speech recogniser."""

    def recognise(self, samples: np.ndarray, depth: int, folder: Path) -> list[Candidate]:
        """Find the ``depth`` best hypotheses of (S,) int16 samples at 16 kHz. May write to the folder."""


@dataclass(frozen=True, slots=True)
class SpeechSettings:
    """Settings of a run. A list depends only on these and on its sentence."""

    seed: int
    depth: int
    """Maximum number of hypotheses per list."""
    voices: tuple[str, ...]
    snr_range_db: tuple[float, float]
    """Least and largest ratio of speech to noise."""


class ListMaker:
    """Speaks sentences and recognises them, in a process of its own."""

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
    """Number of sentences of an earlier run that this run does not need. They are kept next to the output."""


def unfinished_folder(output: Path) -> Path:
    """Return the folder in which finished lists are kept until all are done."""
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

    Finished lists are kept in the folder ``OUTPUT.unfinished`` until all are done, and a second call
    continues where the first one was interrupted. If the second call has fewer sentences, the folder stays
    with the lists of the other sentences.

    Args:
        load_recogniser: function that makes the recogniser in each process. It must be picklable.
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

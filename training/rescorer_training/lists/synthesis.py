"""Synthesise speech with flite, espeak-ng and festival at varied speed, pitch and noise.

The programs are free and come with Debian, in packages of the same names; festival's voices have packages of
their own.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import MAX_QUOTED_CHARS, ConfigError, RescorerError, did_you_mean, quote, shorten

SAMPLE_RATE_HZ = 16_000
COMMANDS = {"flite": "flite", "espeak-ng": "espeak-ng", "festival": "text2wave"}
"""What to run, by package."""
FLITE_PITCHES_HZ = {"awb": 130.0, "kal": 95.0, "kal16": 95.0, "rms": 95.0, "slt": 165.0}
"""Voices of flite with their usual mean pitch. kal is sampled at 8 kHz, so it sounds like a telephone."""
ESPEAK_ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-us-nyc")
ESPEAK_VARIANTS = ("m1", "m2", "m3", "m4", "m7", "f1", "f2", "f3", "f4", "klatt2", "klatt4", "steph", "john")
FESTIVAL_VOICES = {
    "kal_diphone": "festvox-kallpc16k",
    "ked_diphone": "festvox-kdlpc16k",
    "cmu_us_slt_arctic_hts": "festvox-us-slt-hts",
}
"""Voices of festival with the packages that they come in. The last one does not follow the speed."""
VOICES = (
    *(f"flite:{name}" for name in FLITE_PITCHES_HZ),
    *(f"espeak-ng:{accent}+{variant}" for accent in ESPEAK_ACCENTS for variant in ESPEAK_VARIANTS),
    *(f"festival:{name}" for name in FESTIVAL_VOICES),
)
"""All voices, as PROGRAM:VOICE."""
DEFAULT_VOICES = tuple(voice for voice in VOICES if not voice.startswith("espeak-ng:"))
"""Those that PocketSphinx understands about as well as people."""
ESPEAK_WORDS_PER_MINUTE, ESPEAK_PITCH = 160, 50
ESPEAK_PITCH_PER_SEMITONE = 50 / 12
"""espeak-ng's pitch goes from 0 to 99, which is about two octaves."""
MIN_SPEED, MAX_SPEED = 0.8, 1.25
MAX_PITCH_SEMITONES = 3.0


class SynthesisError(RescorerError):
    """A synthesiser failed."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a sentence is spoken."""

    voice: str
    """One of ``VOICES``."""
    speed: float
    """Relative to the usual speed of the voice."""
    pitch_semitones: float
    """Relative to the usual pitch of the voice."""
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
    """Names of the installed voices of festival."""
    command = ["festival", "--batch", "(print (voice.list))"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return set(listed.replace("(", " ").replace(")", " ").split())


def draw_rendering(
    random: np.random.Generator, voices: Sequence[str], snr_range_db: tuple[float, float]
) -> Rendering:
    """Draw a program, then one of its voices, speed (log-uniform), pitch and noise (uniform)."""
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
        folder: where to write a temporary file of sound, which is deleted.

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
    """The command that speaks a text into a WAV file; festival reads it from its standard input."""
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
    """Convert sound to ``SAMPLE_RATE_HZ``, (S,) int16."""
    from scipy.signal import resample_poly  # loads slowly

    if rate_hz == SAMPLE_RATE_HZ:
        return samples
    divisor = math.gcd(rate_hz, SAMPLE_RATE_HZ)
    return to_int16(resample_poly(samples.astype(np.float64), SAMPLE_RATE_HZ // divisor, rate_hz // divisor))


def add_noise(samples: np.ndarray, snr_db: float, random: np.random.Generator) -> np.ndarray:
    """Add white noise ``snr_db`` below the speech."""
    signal = samples.astype(np.float64)
    deviation = np.sqrt(np.mean(signal**2)) * 10 ** (-snr_db / 20)
    return to_int16(signal + random.normal(0.0, deviation, size=signal.shape))


def to_int16(signal: np.ndarray) -> np.ndarray:
    """Round and clip to 16 bits."""
    return np.clip(np.rint(signal), -32768, 32767).astype(np.int16)

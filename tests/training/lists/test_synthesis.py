"""Check sound, noise and commands; real synthesisers only where they are installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rescorer.errors import ConfigError
from rescorer_training.lists.speech import (
    COMMANDS,
    VOICES,
    Rendering,
    add_noise,
    build_command,
    check_voices,
    draw_rendering,
    resample,
    synthesise,
)


def test_noise_has_the_requested_level() -> None:
    tone = (8000 * np.sin(np.arange(16_000) * 0.05)).astype(np.int16)
    noise = add_noise(tone, 20.0, np.random.default_rng(3)).astype(float) - tone
    measured_db = 10 * np.log10(np.mean(tone.astype(float) ** 2) / np.mean(noise**2))
    assert measured_db == pytest.approx(20.0, abs=0.2)


def test_resampling_keeps_the_frequency() -> None:
    time_s = np.arange(22_050) / 22_050
    tone = resample((8000 * np.sin(2 * np.pi * 440 * time_s)).astype(np.int16), 22_050)
    assert len(tone) == 16_000
    assert int(np.argmax(np.abs(np.fft.rfft(tone)))) == 440


def test_commands_follow_speed_and_pitch(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    flite = build_command("a b", Rendering("flite:slt", 1.25, 12.0, 20.0), path)
    assert flite[:3] == ["flite", "-voice", "slt"]
    assert {"duration_stretch=0.8000", "int_f0_target_mean=330.0"} <= set(flite)
    espeak = build_command("-v text", Rendering("espeak-ng:en-us+m3", 0.5, -12.0, 20.0), path)
    assert espeak == [
        "espeak-ng",
        "-v",
        "en-us+m3",
        "-s",
        "80",
        "-p",
        "0",
        "-w",
        str(path),
        "--",
        "-v text",
    ]
    festival = build_command("a b", Rendering("festival:ked_diphone", 1.25, 12.0, 20.0), path)
    assert festival[:3] == ["text2wave", "-eval", "(voice_ked_diphone)"]
    assert "(Parameter.set 'Duration_Stretch 1.6000)" in festival  # played twice as fast


def test_draws_each_program_equally_often() -> None:
    random = np.random.default_rng(1)
    drawn = [draw_rendering(random, VOICES, (5.0, 10.0)) for _ in range(400)]
    for program in COMMANDS:
        assert 100 < sum(rendering.voice.startswith(f"{program}:") for rendering in drawn) < 170
    assert all(5 <= rendering.snr_db <= 10 for rendering in drawn)
    assert len({rendering.voice for rendering in drawn}) > 50


def test_names_the_missing_package_and_similar_voices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="install Debian's package flite"):
        check_voices(["flite:slt"])
    with pytest.raises(ConfigError, match="did you mean 'flite:slt'"):
        check_voices(["flite:stl"])


def test_names_the_package_of_a_missing_voice_of_festival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in (("text2wave", "exit 0"), ("festival", 'echo "(kal_diphone ked_diphone)"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check_voices(["festival:ked_diphone", "festival:kal_diphone"])
    with pytest.raises(ConfigError, match="install Debian's package festvox-us-slt-hts"):
        check_voices(["festival:ked_diphone", "festival:cmu_us_slt_arctic_hts"])


@pytest.mark.parametrize(
    "voice",
    [
        "flite:slt",
        "flite:kal",
        "espeak-ng:en-gb-scotland+klatt2",
        "festival:ked_diphone",
    ],
)
def test_real_voices_speak_faster_if_asked(voice: str, tmp_path: Path) -> None:
    try:
        check_voices([voice])
    except ConfigError as error:
        pytest.skip(str(error))
    slow, fast = (
        synthesise("it was a quiet evening", Rendering(voice, speed, 0.0, 20.0), tmp_path, 60.0)
        for speed in (0.8, 1.25)
    )
    assert slow.dtype == np.int16
    assert 16_000 < 1.2 * len(fast) < len(slow) < 80_000
    assert not list(tmp_path.iterdir())

"""Owns which variables of the environment are settings, which are settings misspelt, and which are others'.

Options and files are for the server alone; the environment it shares with whoever starts it. So a variable
that is a slip away from a setting is a mistake like any other, and one that is not is only told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from pydantic_settings import BaseSettings, EnvSettingsSource
from rapidfuzz.distance import OSA

from rescorer.errors import did_you_mean
from rescorer.formats.io.text_io import MAX_LINE_VARIABLE

PREFIX = "RESCORER_"
CONFIG_VARIABLE = "RESCORER_CONFIG"
"""Names the file where no option does."""
NO_SETTINGS = frozenset({CONFIG_VARIABLE, MAX_LINE_VARIABLE, "RESCORER_DATA"})
"""Variables of ours that are no settings; the last one is the tests'."""
SERVICE_LINK = re.compile(
    r"\w+_(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_\w+)?=(tcp|udp|sctp)://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*)"
)
"""What Kubernetes tells containers of each Service: of one called rescorer, RESCORER_PORT=tcp://10.0.0.1:80."""
LETTERS_A_SLIP = 5
"""A name with one slip in so many letters, or with one, is still told."""


def variables(settings: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    """Setting, value and variable, of each that is a setting's or a setting's misspelt."""
    for name, value in EnvSettingsSource(settings)().items():
        if not is_link(variable := PREFIX + name.upper(), value):
            yield name, value, variable
    for name, value, variable in _unknown(settings):
        if is_misspelt(name, settings.model_fields):
            yield name, value, variable


def strange_variables(settings: type[BaseSettings]) -> Iterator[tuple[str, str]]:
    """Variables that look like settings and are none, such as RESCORER_IMAGE, with what to say of each."""
    for name, _, variable in _unknown(settings):
        if not is_misspelt(name, settings.model_fields):
            yield variable, "no such setting" + did_you_mean(name, settings.model_fields)


def is_link(variable: str, value: str) -> bool:
    return SERVICE_LINK.fullmatch(f"{variable}={value}") is not None


def is_misspelt(name: str, known: Iterable[str]) -> bool:
    """Whether it is a known name but for slips: a letter too many, one left out, changed or exchanged."""
    slips = max(1, len(name) // LETTERS_A_SLIP)
    return any(OSA.distance(name, each) <= slips for each in known)


def _unknown(settings: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    """As ``variables``, of those that no setting is called by; case is nothing, as in pydantic's own."""
    for key, value in os.environ.items():
        variable = key.upper()
        name = variable.removeprefix(PREFIX).lower()
        known = name in settings.model_fields or variable in NO_SETTINGS
        if variable.startswith(PREFIX) and not known and not is_link(variable, value):
            yield name, value, variable

"""Looks up known vulnerabilities of every installed package, in the advisories that PyPI keeps.

    python .ci/audit.py                exit code 1 where a package has one that is not withdrawn
    python .ci/audit.py --required     and 2 where there are no advisories, which otherwise is said and passes

The index is pypi.org, or what AUDIT_URL names. Advisories that do not concern us are in IGNORED, with the
reason.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from typing import NamedTuple

URL = os.environ.get("AUDIT_URL", "https://pypi.org/pypi")
OURS = "rescorer"
PROBE = ("pip", "24.0")
"""Some release that any index with advisories knows."""
TIMEOUT_S = 20
AT_ONCE = 8
IGNORED: dict[str, str] = {}
"""Reason, by id or alias of an advisory."""


class Advisory(NamedTuple):
    """A known vulnerability of an installed version."""

    package: str
    version: str
    id: str
    fixed_in: str
    summary: str


class Unreachable(Exception):
    """There is no index with advisories."""


def installed() -> list[tuple[str, str]]:
    """Names and public versions of all packages but our own; a build's local part is nobody's advisory."""
    found = {(each.metadata["Name"].lower(), each.version.partition("+")[0]) for each in distributions()}
    return sorted((name, version) for name, version in found if name != OURS)


def release(name: str, version: str) -> dict | None:
    """What the index says of a release; None: it does not know it. Raises Unreachable."""
    try:
        with urllib.request.urlopen(f"{URL}/{name}/{version}/json", timeout=TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as fault:
        if fault.code == 404:
            return None
        raise Unreachable(f"{URL}: HTTP {fault.code}") from None
    except (OSError, ValueError) as fault:
        raise Unreachable(f"{URL}: {fault}") from None


def advisories(name: str, version: str, told: dict) -> Iterator[Advisory]:
    for each in told.get("vulnerabilities", ()):
        names = {each["id"], *each.get("aliases", ())}
        if not each.get("withdrawn") and not names & IGNORED.keys():
            summary = each.get("summary") or each.get("details", "")[:100]
            yield Advisory(name, version, each["id"], ", ".join(each.get("fixed_in", ())) or "-", summary)


def main() -> int:
    packages = installed()
    try:
        if "vulnerabilities" not in (release(*PROBE) or {}):
            raise Unreachable(f"{URL} has no advisories")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            told = list(pool.map(lambda each: release(*each), packages))
    except Unreachable as fault:
        print(f"audit skipped: {fault}")
        return 2 if "--required" in sys.argv[1:] else 0
    found = [each for one, of in zip(packages, told, strict=True) if of for each in advisories(*one, of)]
    unknown = [name for (name, _), of in zip(packages, told, strict=True) if of is None]
    for each in found:
        print(f"{each.package} {each.version}: {each.id}, fixed in {each.fixed_in}: {each.summary}")
    if unknown:
        print(f"not on the index, so not looked up: {', '.join(unknown)}")
    print(f"{len(packages) - len(unknown)} packages looked up, {len(found)} advisories")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

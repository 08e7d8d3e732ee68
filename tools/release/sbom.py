"""Write the bill of materials of the server's environment as CycloneDX JSON.

    python -m tools.release.sbom dist/rescorer.cdx.json

The bill names every locked package of the image for CPUs, with version, permitted hashes and dependants. Run
the program in an environment that was installed from the locks, because it reads dependencies from the
installed packages.
"""

from __future__ import annotations

import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release.locks import (
    CONTENTS,
    FOLDER,
    REPOSITORY,
    LockedPackage,
    direct_requirements,
    environments,
    read_lock,
)


def make_bom() -> Bom:
    """Return the bill of materials of the locked runtime environment on Linux.

    Raises:
        SystemExit: another version of a package is installed than is locked.
    """
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    environment = _this_environment()
    packages = [
        package
        for name in ("torch-cpu", "runtime")
        for package in read_lock(FOLDER / f"{name}.txt")
        if package.applies(environment)
    ]
    components = {package.name: _component(package) for package in packages}
    project = pyproject["project"]
    root = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        description=project["description"],
        licenses=[DisjunctiveLicense(id=project["license"])],
        purl=PackageURL("pypi", name=project["name"], version=project["version"]),
        bom_ref=f"{project['name']}=={project['version']}",
    )
    bom = Bom(components=components.values())
    bom.metadata.component = root
    needed = {
        canonicalize_name(requirement.name)
        for requirement in direct_requirements(pyproject, CONTENTS["runtime"])
    }
    bom.register_dependency(root, [components[name] for name in sorted(needed)])
    for package in packages:
        names = set(_dependencies(package, environment))
        bom.register_dependency(
            components[package.name], [components[name] for name in sorted(names & components.keys())]
        )
    # The same contents have the same number.
    bom.serial_number = uuid.uuid5(
        uuid.NAMESPACE_URL, "\n".join(str(component) for component in bom.components)
    )
    return bom


def render(bom: Bom) -> str:
    """Return a bill of materials as JSON that satisfies the schema of CycloneDX 1.6."""
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise SystemExit(f"the bill of materials is not valid: {error}")
    return text + "\n"


def _component(package: LockedPackage) -> Component:
    page = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://pypi.org/project/{package.name}/{package.version.partition('+')[0]}/"),
        comment="files that the lock allows",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=value) for value in sorted(package.hashes)],
    )
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        purl=PackageURL("pypi", name=package.name, version=package.version),
        bom_ref=f"{package.name}=={package.version}",
        external_references=[page],
    )


def _dependencies(package: LockedPackage, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the packages that an installed package needs, without its extras."""
    try:
        installed = metadata.distribution(package.name)
    except metadata.PackageNotFoundError:
        raise SystemExit(f"{package.name} is not installed; run: make lint") from None
    if installed.version != package.version:
        raise SystemExit(
            f"{package.name}: {package.version} is locked, but {installed.version} installed; run: make lint"
        )
    for requirement in map(Requirement, installed.requires or []):
        if requirement.marker is None or requirement.marker.evaluate(dict(environment)):
            yield canonicalize_name(requirement.name)


def _this_environment() -> Mapping[str, str]:
    """Return the environment of this Python on Linux."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return next(
        environment
        for environment in environments()
        if (environment["python_version"], environment["sys_platform"]) == (python, "linux")
    )


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    target = Path(arguments[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render(make_bom()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

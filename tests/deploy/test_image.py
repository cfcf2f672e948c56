"""The locks of the images have what the package requires, in exact versions with hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {"server": ("cli", "server", "postgres", "oidc"), "dask": ("cli", "simulate", "dask")}
TARGET = {"python_version": "3.13", "python_full_version": "3.13.0", "sys_platform": "linux"}


def locked(name: str) -> dict[str, str]:
    """Return the version of each package of a lock; each has a hash."""
    text = (ROOT / "deploy" / "requirements" / f"{name}.txt").read_text()
    entries = re.split(r"\n(?=[a-z])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    versions = {}
    for entry in entries:
        match = re.fullmatch(
            r"([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)", entry
        )
        assert match, entry
        versions[match[1]] = match[2]
    return versions


def requirements(name: str) -> list[str]:
    if name == "build":
        return [*PROJECT["dependency-groups"]["image"], *PROJECT["build-system"]["requires"]]
    extras = PROJECT["project"]["optional-dependencies"]
    return PROJECT["project"]["dependencies"] + [
        line for extra in EXTRAS[name] for line in extras[extra] if line != "blindtally[cli]"
    ]


@pytest.mark.parametrize("name", [*EXTRAS, "build"])
def test_a_lock_satisfies_the_bounds_of_the_package(name: str) -> None:
    versions = locked(name)
    for line in requirements(name):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(TARGET):
            version = versions.get(canonicalize_name(requirement.name))
            assert version, f"{line}: make lock"
            assert requirement.specifier.contains(version), f"{line}, not {version}: make lock"


def test_the_image_installs_what_is_locked_and_lists_it() -> None:
    text = (ROOT / "Dockerfile").read_text()
    installs = re.findall(r"pip\b[^&\n]* (?:install|wheel) ([^&\n]*)", text)
    assert len(installs) == 4
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)
    assert "cyclonedx-py environment" in text
    assert set(re.findall(r"requirements/(\w+)\.txt", text)) == {"build"}
    assert "--requirement deploy/requirements/${LOCK}.txt" in text

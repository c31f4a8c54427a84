"""The pinned requirements are complete, address-free and consistent."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = ("control", "worker", "dev", "build", "model")


def pins(name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([a-z0-9][a-z0-9.-]*)==([^ ;]+)( ; .+)?", line)
            assert match, line
            found[match[1]] = match[2]
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_requirements_file_has_versions_and_nothing_else(name: str):
    """Each line pins one version; no index address, path or option stands in it."""
    assert pins(name)


def test_smaller_sets_are_contained_in_larger_ones():
    """A control service runs with the same versions as a worker and as the tests."""
    assert pins("control").items() <= pins("worker").items() <= pins("dev").items()
    assert pins("build").items() <= pins("dev").items()


def test_control_services_install_no_engine():
    """The set for gateway, router and cleanup has no engine and no data plane in it."""
    heavy = {"torch", "sglang", "ucxx-cu13", "transformers", "numpy", "accelerate"}
    assert heavy & set(pins("control")) == set()


def test_the_other_package_named_proto_is_not_installed():
    """proto-plus installs a top-level package `proto`, which would hide ours."""
    for name in FILES:
        assert "proto-plus" not in pins(name)


def test_every_declared_dependency_is_pinned():
    """What pyproject.toml asks for is in the compiled file of its extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {"control": project["dependencies"]} | project["optional-dependencies"]
    for extra, requirements in wanted.items():
        for requirement in requirements:
            match = re.match(r"[A-Za-z0-9-]+", requirement)
            assert match
            if match[0] != "pdbus":
                assert match[0].lower() in pins(extra), requirement


def test_build_backend_is_the_pinned_one():
    """The backend that pyproject.toml names is the one that setup installs."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert requires == [f"hatchling=={pins('build')['hatchling']}"]

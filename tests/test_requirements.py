"""What is installed is what was locked: every package by its version and its hashes, and from nowhere in particular."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements", "requirements-dev", "requirements-alone", "requirements-tools")


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _asked_for(name: str) -> dict[str, str]:
    """name -> version of a requirements file and those that it takes in."""
    found = {}
    for line in (ROOT / f"{name}.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("-r "):
            found |= _asked_for(line.removeprefix("-r ").removesuffix(".txt"))
        elif line:
            package, version = line.split("==")  # all are pinned
            found[_name(package)] = version
    return found


def _locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """name -> version and hashes; raises at a line that is anything else."""
    found = {}
    for entry in (ROOT / f"{name}.lock").read_text().replace("\\\n", " ").splitlines():
        match = re.fullmatch(r"([\w.-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", entry)
        assert match, f"Not a package with its hashes: {entry[:80]!r}"
        found[_name(match[1])] = match[2], re.findall(r"sha256:(\w+)", match[3])
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_what_is_asked_for(name):
    locked = _locked(name)
    versions = {package: version for package, (version, _) in locked.items()}
    asked = _asked_for(name)
    assert asked.items() <= versions.items(), f"Run `make lock`: {dict(asked.items() - versions.items())}"
    assert all(len(set(hashes)) == len(hashes) for _, hashes in locked.values())


def test_product_and_development_are_locked_alike():
    product, development = _locked("requirements"), _locked("requirements-dev")
    assert product.items() <= {package: development.get(package) for package in product}.items()


def test_make_installs_by_hash_and_nothing_else():
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes" in re.search(r"^INSTALL := (.+)$", makefile, re.MULTILINE)[1]
    installs = [line for line in makefile.splitlines() if "pip install" in line and not line.startswith("INSTALL")]
    installs = [line for line in installs if ".venv-peers/" not in line]  # what others run, for comparison alone
    assert not installs, installs
    for name in LOCKS:
        assert re.search(rf"\$\(INSTALL\)( --no-deps)? -r {name}\.lock$", makefile, re.MULTILINE)

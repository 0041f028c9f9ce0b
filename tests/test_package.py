"""What a release is made of: an sdist that has all it needs, a wheel of it that old Linuxes load, and what that does where
there is no compiler. tools/release.py makes the real ones."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fxjit import pythons, torch_compat

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import release  # noqa: E402

pytest.importorskip("setuptools")
pytest.importorskip("pip")


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("FXJIT_", "PYTHONPATH", "CXX"))}
    return subprocess.run([sys.executable, *command], cwd=cwd, env=plain | environment, capture_output=True, text=True,
                          timeout=300, check=False)


def made(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """An sdist of this tree, a wheel of that sdist, and a folder with the wheel alone in it."""
    folder = tmp_path_factory.mktemp("package")
    tree = folder / "tree"
    left_out = (".*", "*.so", "build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*left_out))
    sdist = made(run("-c", "from setuptools import build_meta; print(build_meta.build_sdist('.'))", cwd=tree)).split()[-1]
    with tarfile.open(tree / sdist) as files:
        files.extractall(folder, filter="data")
    unpacked = folder / sdist.removesuffix(".tar.gz")
    alone = ("--no-deps", "--no-index")
    # As it is compiled for a release, but for the optimizer, which is three quarters of the time.
    made(run("-m", "pip", "wheel", *alone, "--no-build-isolation", "-w", str(folder), str(unpacked), cwd=folder, CFLAGS="-O0"))
    wheel = next(folder.glob("*.whl"))
    made(run("-m", "pip", "install", *alone, "--target", str(folder / "installed"), str(wheel), cwd=folder))
    return SimpleNamespace(tree=tree, unpacked=unpacked, wheel=wheel, installed=folder / "installed")


def files_below(folder: Path, *endings: str) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")
            if path.is_file() and (path.suffix in endings or "templates" in path.parts)}


def test_the_sdist_has_every_source_and_every_table(package):
    endings = (".py", ".pyi", ".c", ".h", ".def", ".tsv", ".typed")
    assert files_below(package.unpacked / "src", *endings) == files_below(package.tree / "src", *endings)
    top = {each.name for each in package.unpacked.iterdir()}
    assert {"LICENSE", "README.md", "SECURITY.md", "CHANGELOG.md", "setup.py"} <= top


def test_the_wheel_has_what_runs_and_no_sources_in_c(package):
    endings = (".py", ".pyi", ".tsv", ".typed")
    assert files_below(package.installed / "fxjit", *endings) == files_below(package.tree / "src/fxjit", *endings)
    assert not list(package.installed.glob("fxjit/*.c")) and not list(package.installed.glob("fxjit/**/*.def"))


def test_the_wheel_loads_where_torchs_wheels_load(package):
    assert release.complaints(package.wheel) == []


def test_a_newer_c_library_and_another_library_are_complained_of(tmp_path):
    wheel = tmp_path / "fxjit-0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("fxjit/_C.so", b"\0libc.so.6\0libtorch.so\0libstdc++.so.6\0GLIBC_2.14\0GLIBC_2.34\0")
    assert release.complaints(wheel) == ["fxjit/_C.so needs glibc 2.34", "fxjit/_C.so is linked against libstdc++.so.6",
                                         "fxjit/_C.so is linked against libtorch.so"]


def metadata(package: SimpleNamespace) -> Message:
    return Parser().parsestr(next(package.installed.glob("fxjit-*.dist-info/METADATA")).read_text())


def test_what_pip_is_told_is_what_the_code_refuses(package):
    (oldest, *_, newest), told = pythons.SUPPORTED, metadata(package)
    assert set(told["Requires-Python"].split(",")) == {">={}.{}".format(*oldest), f"<{newest[0]}.{newest[1] + 1}"}
    named = {line.rpartition(" ")[2] for line in told.get_all("Classifier", []) if " :: Python :: 3." in line}
    assert named == {"{}.{}".format(*each) for each in pythons.SUPPORTED}
    wanted = next(line for line in told.get_all("Requires-Dist", []) if line.startswith("torch") and "extra" not in line)
    assert set(wanted.removeprefix("torch").split(",")) == set(torch_compat.REQUIREMENT.removeprefix("torch").split(","))


WITHOUT_COMPILER = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
import torch, fxjit
assert fxjit.__file__.startswith(sys.argv[1])
def f(x, y):
    return torch.nn.functional.gelu(x + y) * 2
x, y = torch.randn(400, 300), torch.randn(400, 300)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert torch.equal(fxjit.compile(f, backend="eager")(x, y), f(x, y))
    assert not caught, caught[0].message
    torch.testing.assert_close(fxjit.compile(f)(x, y), f(x, y))
print(*(each.message for each in caught if "compiler" in str(each.message)))
"""


def test_without_a_compiler_it_runs_and_names_what_the_kernels_need(package, tmp_path):
    said = made(run("-c", WITHOUT_COMPILER, str(package.installed), cwd=tmp_path, PATH="/nonexistent",
                    FXJIT_CACHE_DIR=str(tmp_path / "cache")))
    assert "g++" in said and "fxjit calls ATen for every operator instead" in said


OTHERS = ((3, 8), (3, 10), (3, 14))


@pytest.mark.parametrize("running", OTHERS)
def test_other_pythons_are_refused_with_a_sentence(running):
    said = pythons.refusal(running)
    assert said.startswith("fxjit runs on CPython 3.11, 3.12 and 3.13; this is CPython {}.{}".format(*running))
    assert "Make an environment with one of those." in said


def test_other_implementations_and_builds_are_refused_with_a_sentence():
    assert "this is PyPy 3.11. It reads CPython's bytecode" in pythons.refusal((3, 11), "PyPy")
    assert "this is CPython 3.13 without the GIL" in pythons.refusal((3, 13), has_gil=False)
    assert pythons.refusal_here() == ""


@pytest.mark.parametrize("running", OTHERS)
def test_importing_a_clone_with_another_python_is_refused(running, tmp_path):
    """Where there is one: the sentence comes before anything that this Python cannot read, and setup.py says the same."""
    name = "python{}.{}".format(*running)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [*pyenv.glob(f"{running[0]}.{running[1]}.*/bin/{name}"), *filter(None, [shutil.which(name)])]
    if not found or subprocess.run([found[0], "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no {name}")
    for script in ("import fxjit", "import runpy; runpy.run_path('setup.py')"):
        done = subprocess.run([found[0], "-B", "-c", script], cwd=ROOT, env={"PYTHONPATH": str(ROOT / "src")},
                              capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode and pythons.refusal(running) in done.stderr, done.stderr


def test_the_version_is_told_once():
    import fxjit

    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{fxjit.__version__}"' in text
    assert importlib.metadata.version("torch").startswith(torch.__version__.partition("+")[0])


def workflows() -> list[Path]:
    return sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_the_workflows_run_what_there_is():
    """Each session of nox and each tool that a workflow names exists, and the matrix is noxfile.py's."""
    nox_sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.M))
    named: set[str] = set()
    for path in workflows():
        text = path.read_text()
        named |= set(re.findall(r'nox -s "?(\w+)', text))
        assert all((ROOT / tool).exists() for tool in re.findall(r"\b(?:tools|src)/[\w/]+\.py", text))
        for pythons_listed in re.findall(r"^ +python: (\[.*\])", text, re.M):
            assert json.loads(pythons_listed) == ["{}.{}".format(*each) for each in pythons.SUPPORTED]
    assert named == {"tests", "names", "lint", "docs"} <= nox_sessions
    everywhere = (ROOT / ".github/workflows/tests.yml").read_text()
    torches = json.loads(re.search(r"torch: (\[.*\])", everywhere)[1])
    assert torches == re.findall(r'"([\d.]+)"', re.search(r"^TORCHES = (.*)$", (ROOT / "noxfile.py").read_text(), re.M)[1])
    (_, oldest), (_, newest) = torch_compat.OLDEST, torch_compat.NEWEST
    assert torches == [f"2.{minor}" for minor in range(oldest, newest + 1)]

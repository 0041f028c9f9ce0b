"""Builds the one C extension, `fxjit._C`, against CPython's headers alone. All other facts are in pyproject.toml.

The C sources live in the package they belong to; all of them are linked into one module.
"""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PACKAGE = "src/fxjit"
if refused := runpy.run_path(f"{PACKAGE}/pythons.py")["refusal_here"]():
    sys.exit(f"\n{refused}\n")
# A level of optimization in CFLAGS is the builder's own choice; what stands here would come after it, and win.
FLAGS = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O2"]
FLAGS += ["-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]
# CPython's own internal headers compare signed with unsigned and cast function types freely.
FLAGS += ["-Wno-sign-compare", "-Wno-cast-function-type", "-fvisibility=hidden"]
if platform.libc_ver()[0] == "glibc":
    FLAGS += ["-include", f"{PACKAGE}/glibc_versions.h"]


def c_files() -> list[str]:
    return sorted(glob(f"{PACKAGE}/**/*.c", recursive=True))


def header_files() -> list[str]:
    return sorted(path for ending in ("h", "def") for path in glob(f"{PACKAGE}/**/*.{ending}", recursive=True))


class BuildExtension(build_ext):
    """build_ext that compiles its sources side by side, on all processors, and says what is missing in words a user can act
    on, before the compiler does in its own."""

    def build_extensions(self) -> None:
        self._require_python_headers()
        self._require_compiler()
        self._compile_side_by_side()
        super().build_extensions()

    def _compile_side_by_side(self) -> None:
        compile_in_turn = self.compiler.compile

        def compile_sources(sources: list[str], **settings: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_in_turn([source], **settings), sources)
                return [each for one in objects for each in one]

        self.compiler.compile = compile_sources

    def _require_python_headers(self) -> None:
        wanted = ("Python.h", os.path.join("internal", "pycore_frame.h"))
        folders = [sysconfig.get_path("include"), sysconfig.get_path("platinclude"), *self.compiler.include_dirs]
        for header in wanted:
            if not any(folder and os.path.exists(os.path.join(folder, header)) for folder in folders):
                version = f"{sys.version_info.major}.{sys.version_info.minor}"
                sys.exit(
                    f"\nfxjit builds one small C extension and needs CPython's headers; {header} was not found in\n"
                    f"  {sysconfig.get_path('include')}\n"
                    f"Install them and try again:\n"
                    f"  Debian, Ubuntu:  apt install python{version}-dev\n"
                    f"  Fedora:          dnf install python{version}-devel\n"
                    f"  conda:           the python package has them\n"
                )

    def _require_compiler(self) -> None:
        command = getattr(self.compiler, "compiler_so", None) or getattr(self.compiler, "compiler", None)
        if not command:
            return
        # `CC="ccache gcc"` names two programs; environment assignments before them do not occur here.
        if shutil.which(command[0]) is None:
            sys.exit(
                f"\nfxjit builds one small C extension and needs a C compiler; {command[0]!r} was not found.\n"
                f"Install one and try again, or name yours with CC=...:\n"
                f"  Debian, Ubuntu:  apt install gcc g++   (g++ also compiles fxjit's kernels at run time)\n"
                f"  Fedora:          dnf install gcc gcc-c++\n"
            )


setup(
    ext_modules=[
        Extension(
            "fxjit._C",
            sources=c_files(),
            depends=header_files(),
            include_dirs=[PACKAGE],
            extra_compile_args=FLAGS,
            libraries=["dl"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)

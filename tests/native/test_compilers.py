"""Compilers that are missing, fail, vanish, hang or say what cannot be read, and disks that take nothing: the graph then runs
unfused, with one warning that names the cause, and nothing is left behind."""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import config
from fxjit.backends.native import compiled, entry
from fxjit.backends.native.runtime import cc, library
from fxjit.backends.native.runtime.child import Child
from fxjit.counters import counters
from fxjit.errors import CppCompileError

SOURCE = 'extern "C" int k0(void *const *P, const long *S) {{ return {}; }}\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache and a folder for temporary files of the test's own, and warnings that nobody has seen yet."""
    monkeypatch.setattr(compiled, "_warned", set())
    temporary(monkeypatch, tmp_path / "temporary")
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache" / "kernels"


def temporary(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    path.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    cc._temporary_folder.cache_clear()


def executable(path: Path, script: str) -> str:
    """A compiler that knows its version; the rest is the script."""
    path.write_text(f"#!/bin/sh\ncase $1 in --version) echo odd 1; exit;; esac\n{script}\n")
    path.chmod(0o755)
    return str(path)


def compile_one(number: int) -> cc.Compilation:
    done = cc.start(SOURCE.format(number))
    assert done.library().k0(None, None) == number
    return done


def processes_with(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and path.parent.name != str(os.getpid()):
            found.append(command)
    return found


def soon(holds: Callable[[], bool]) -> bool:
    """Whether it holds now or within half a minute: a shell becomes the compiler, a killed program ends, in its own time."""
    for _ in range(600):
        if holds():
            return True
        time.sleep(0.05)
    return False


def appears(text: str) -> bool:
    return soon(lambda: bool(processes_with(text)))


def none_left(text: str) -> bool:
    return soon(lambda: not processes_with(text))


# One warning, and eager's results


ODD = {
    "fails": ("echo 'error: out of sorts' >&2; exit 1", "out of sorts"),
    "fails with nothing to say": ("exit 3", "exit status 3"),
    "is killed": ("kill -9 $$", "Killed"),
    "crashes": ("kill -SEGV $$", "Segmentation fault"),
    "says no UTF-8": (r"printf '\377\376 \200 odd bytes'; exit 1", "odd bytes"),
    "says very much": ("head -c 3000000 /dev/zero | tr '\\0' x; exit 1", "xxxx"),
    "makes nothing": ("exit 0", "cannot be loaded"),
    "makes nonsense": ('while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"',
                       "cannot be loaded"),
    "makes another library": ('while [ "$1" != -o ]; do shift; done; echo "int other;" | gcc -shared -fPIC -x c - -o "$2"',
                              "without a kernel"),
    "hangs": ("exec sleep 600.25", "does not finish"),
    "hangs in what it started": ("sleep 600.25 & wait", "does not finish"),
    "leaves something running": ("sleep 600.25 & echo 'error: out of sorts'; exit 1", "out of sorts"),
    "has no room anywhere": ("echo 'ld: final link failed: No space left on device'; exit 1", "No space left on device"),
    "may write too little": ("echo 'ld: final link failed: File too large'; exit 1", "File too large"),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
def test_a_compiler_that(what: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, cause = ODD[what]
    monkeypatch.setattr(cc, "TIMEOUT", 0.7)
    path = executable(tmp_path / "odd++", script)
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2 + 1).relu()

    with config.patch({"cpp.compiler": path}), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fxjit.reset()
        results = [fxjit.compile(f)(x) for _ in range(2)] + [fxjit.compile(lambda x: f(x) + 1)(x) - 1]
    ours = [str(each.message) for each in caught if issubclass(each.category, RuntimeWarning)]
    assert len(ours) == 1 and cause in ours[0] and "calls ATen for every operator" in ours[0], ours
    assert counters["native"]["without compiler"] > 0
    for result in results:
        torch.testing.assert_close(result, f(x))
        torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], torch.autograd.grad(f(x).sum(), x)[0])
    assert none_left("600.25"), "no compiler outlives its call"
    assert not list((tmp_path / "temporary").glob("fxjit-*")) and not list(folder.glob("fxjit-*"))


def test_a_compiler_that_vanishes_is_no_trouble_of_the_cache(tmp_path: Path) -> None:
    path = Path(executable(tmp_path / "gone++", 'exec g++ "$@"'))
    with config.patch({"cpp.compiler": str(path)}):
        compile_one(1)
        path.unlink()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = torch.ones(3)
            torch.testing.assert_close(fxjit.compile(lambda x: x.exp() + 3)(x), x.exp() + 3)
        (said,) = [str(each.message) for each in caught]
        assert "gone++" in said and "cannot keep" not in said


@pytest.mark.parametrize("said", ["exec sleep 600.25", "sleep 600.25 &", r"printf '\377\376'", "exit 1", "kill -9 $$"])
def test_a_compiler_that_is_odd_when_asked_what_it_is(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cc, "QUICK_TIMEOUT", 0.7)
    path = tmp_path / "odd++"
    path.write_text(f'#!/bin/sh\ncase $1 in --version) {said};; *) exec g++ "$@";; esac\n'.replace("&;;", "& exit;;"))
    path.chmod(0o755)
    x = torch.ones(3)
    with config.patch({"cpp.compiler": str(path)}), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(fxjit.compile(lambda x: x.exp() + 4)(x), x.exp() + 4)
    assert ["does not finish" in str(each.message) for each in caught] == ([True] if said.startswith("exec") else [])
    assert none_left("600.25")


def test_no_compiler_warns_once_and_calls_aten() -> None:
    x = torch.randn(4)
    with config.patch({"cpp.compiler": "no-such-compiler"}):
        with pytest.warns(RuntimeWarning, match="no-such-compiler"):
            run = entry.compile_aten(make_fx(lambda x: x.exp() + 1, tracing_mode="fake")(x), [x], "inference")
        torch.testing.assert_close(run([x]), x.exp() + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            entry.compile_aten(make_fx(lambda x: x.exp() + 2, tracing_mode="fake")(x), [x], "inference")


@pytest.mark.parametrize("script", [None, "echo 'error: out of sorts'; exit 1"], ids=["missing", "fails"])
def test_a_compiler_that_is_required_is_an_error(script: str | None, tmp_path: Path) -> None:
    path = executable(tmp_path / "odd++", script) if script else "no-such-compiler"
    with config.patch({"cpp.compiler": path, "cpp.require": True}), pytest.raises(CppCompileError, match=r"sorts|no-such"):
        fxjit.compile(lambda x: x.exp() + 1)(torch.ones(3))


def test_a_compiler_that_hung_is_not_waited_for_all_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cc, "TIMEOUT", 0.3)
    with config.patch({"cpp.compiler": executable(tmp_path / "slow++", "exec sleep 600.25")}):
        for _ in range(cc.MOST_HANGS):
            with pytest.raises(CppCompileError, match="it was stopped after"):
                cc.start(SOURCE.format(1)).library()
        with pytest.raises(CppCompileError, match="is not tried again"):
            cc.start(SOURCE.format(1))


# What is left


def test_a_failing_compile_keeps_its_source_once(folder: Path, tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(CppCompileError, match="not_declared") as caught:
            cc.start("int f() { return not_declared; }").library()
    (kept,) = folder.glob("*.cpp")
    command = str(caught.value).rsplit("\n", 1)[-1].split()
    assert str(kept) in command and "not_declared" in kept.read_text()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1, "the command can be run again"
    assert not list((tmp_path / "temporary").iterdir())


ENDS: dict[str, Callable[[], object]] = {
    "dropped": lambda: gc.collect(),
    "an error": lambda: 1 / 0,
    "Ctrl-C": lambda: signal.raise_signal(signal.SIGINT),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_compiler_that_nobody_waits_for_is_stopped(how: str, tmp_path: Path) -> None:
    slow = executable(tmp_path / "slow++", "exec sleep 600.25")

    def begin() -> None:
        with cc.compiling():
            held.append(cc.start(SOURCE.format(1)))
            assert appears("600.25")
            ENDS[how]()

    held: list[cc.Compilation] = []
    with config.patch({"cpp.compiler": slow}):
        try:
            begin()
        except (ZeroDivisionError, KeyboardInterrupt):
            pass
    assert none_left("600.25")
    assert not list((tmp_path / "temporary").iterdir())
    assert held[0].child is None


def test_ctrl_c_while_waiting_stops_the_compiler(tmp_path: Path) -> None:
    slow = executable(tmp_path / "slow++", f"kill -INT {os.getpid()}; exec sleep 600.25")
    with config.patch({"cpp.compiler": slow}), pytest.raises(KeyboardInterrupt):
        cc.start(SOURCE.format(1)).library()
        time.sleep(5)
    assert none_left("600.25")


def test_a_process_that_ends_stops_its_compilers(tmp_path: Path, folder: Path) -> None:
    slow = executable(tmp_path / "slow++", "exec sleep 600.25")
    code = f"from fxjit.backends.native.runtime import cc\nheld = cc.start({SOURCE.format(1)!r})\n"
    environment = config.child_environment(FXJIT_CACHE_DIR=str(folder.parent), FXJIT_CPP_COMPILER=slow, TMPDIR=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, check=True)
    assert none_left("600.25")


def test_a_fork_in_the_middle_compiles_for_itself() -> None:
    under_way = cc.start(SOURCE.format(77))
    child = os.fork()
    if child == 0:
        done = under_way.library().k0(None, None) == 77
        os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert under_way.library().k0(None, None) == 77


def test_a_program_that_takes_the_status_of_every_child() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        compile_one(78)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_process_that_may_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at its limit, or at its end."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    compile_one(79)
    with pytest.raises(CppCompileError, match="cannot be started"):
        cc.start_child(["/no/such/compiler"])


def test_a_child_says_how_it_ended() -> None:
    assert Child(["sh", "-c", "echo said; exit 4"]).wait(10) == ("exit status 4", "said\n")
    assert Child(["sh", "-c", "kill -9 $$"]).wait(10) == ("Killed", "")
    assert Child(["sh", "-c", "exec >&- 2>&-; sleep 0.2"]).wait(10) == ("", "")
    start = time.monotonic()
    assert Child(["sh", "-c", "sleep 600.25 & echo said"]).wait(10) == ("", "said\n")
    with pytest.raises(TimeoutError):
        Child(["sh", "-c", "exec >&- 2>&-; sleep 600.25"]).wait(0.2)
    assert time.monotonic() - start < 60 and none_left("600.25")


# Disks


def test_a_full_disk_for_temporary_files_is_left_for_the_caches(folder: Path, tmp_path: Path) -> None:
    full = f'case "$*$TMPDIR" in *{tmp_path}/temporary*) echo "ld: final link failed: No space left on device"; exit 1;; esac'
    with config.patch({"cpp.compiler": executable(tmp_path / "full++", f'{full}; exec g++ "$@"')}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compile_one(30)
        assert {path.suffix for path in folder.iterdir() if path.name != "trimmed"} == {".so", ".cpp"}
        assert not list((tmp_path / "temporary").iterdir())


def test_a_folder_for_temporary_files_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    compile_one(31)
    with config.patch(disk_cache=False), pytest.raises(CppCompileError, match="no place to compile .*nowhere"):
        cc.start(SOURCE.format(32))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system of such options."""
    made: list[Path] = []

    def mount(options: str) -> Path:
        path = tmp_path / f"mounted-{len(made)}"
        path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("nothing can be mounted here")
        made.append(path)
        return path

    yield mount
    for path in made:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_cache_where_nothing_may_be_executed(mounted: Callable[[str], Path]) -> None:
    with config.patch(cache_dir=str(mounted("noexec,mode=700"))), warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_one(33)
        assert not compile_one(33).command, "found, and loaded"


def test_a_full_cache_and_no_room_for_temporary_files(mounted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Really full: a first kernel fits nowhere, and the graph runs unfused."""
    full, also_full = mounted("size=4k,mode=700,noexec"), mounted("size=4k,mode=700")
    (full / "kernels").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(also_full))
    cc._temporary_folder.cache_clear()
    for path in (full, also_full):
        with open(path / "filler", "wb") as file, pytest.raises(OSError, match="No space"):
            file.write(b"x" * 100_000)
            file.flush()
    x = torch.ones(3)
    with config.patch(cache_dir=str(full)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(fxjit.compile(lambda x: x.exp() + 5)(x), x.exp() + 5)
    (said,) = [str(each.message) for each in caught]
    assert "No space left on device" in said and "ATen for every operator" in said


def test_a_limit_on_the_size_of_files(tmp_path: Path, folder: Path) -> None:
    code = (
        "import resource, warnings\n"
        "import torch, fxjit\n"
        "x = torch.ones(3)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    assert torch.equal(fxjit.compile(lambda x: x.exp() + 5)(x), x.exp() + 5)\n"
        "(said,) = [str(each.message) for each in caught]\n"
        "print(said)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    environment = config.child_environment(FXJIT_CACHE_DIR=str(folder.parent), TMPDIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert "too large" in done.stdout or "size limit" in done.stdout


# Loading


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EFBIG])
def test_without_files_in_memory_a_copy_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse)
    compile_one(60)
    compile_one(61)
    assert not list((tmp_path / "temporary").iterdir())


def test_libraries_are_told_apart_though_they_are_loaded_from_the_same_descriptor() -> None:
    contents = [Path(subprocess_library(number)).read_bytes() for number in range(4)]
    for turn in (1, -1, 1):
        for number, content in list(enumerate(contents))[::turn]:
            assert library.load("k", content).f() == number


def subprocess_library(number: int) -> str:
    path = Path(tempfile.gettempdir(), f"f{number}.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=f"int f(void) {{ return {number}; }}",
                   text=True, check=True)
    return str(path)


# A command with arguments


@pytest.mark.parametrize("behind", ["", " -DASKED=1"], ids=["launcher", "launcher and option"])
def test_a_compiler_that_is_named_with_arguments(behind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`CXX="ccache g++"`: the launcher is run, with what stands behind it in front of the rest."""
    launcher = tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec "$@"\n')
    launcher.chmod(0o755)
    usual = cc.require_compiler()[0]
    monkeypatch.setenv("CXX", f"{launcher} {usual}{behind}")
    compile_one(11)
    version, compilation = (tmp_path / "calls").read_text().splitlines()
    assert version.split() == [usual, *behind.split(), "--version"]
    assert compilation.startswith(f"{usual}{behind} -std=c++17")
    assert cc.which().split("\0")[:2] == [str(launcher), usual]


def test_a_compiler_in_a_folder_with_a_space_and_one_that_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    (folder / "g++").symlink_to(cc.require_compiler()[0])
    assert config.command(str(folder / "g++")) == (str(folder / "g++"),)
    for text in ("", "no-such-program g++", "'g++"):
        assert config.command(text) is None

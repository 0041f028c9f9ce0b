"""The compiler and the cache: what is found again, and what happens when something is missing, broken or in the way."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import config
from fxjit.backends.native import entry, pipeline
from fxjit.backends.native.runtime import cache, cc
from fxjit.counters import counters
from fxjit.errors import CppCompileError

SOURCE = 'extern "C" int k0(void *const *P, const long *S) {{ return {}; }}\n'


@pytest.fixture
def folder(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache" / "kernels"


def traced(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*inputs)


def compile_one(number: int) -> cc.Compilation:
    done = cc.start(SOURCE.format(number))
    done.library()
    return done


def test_a_library_is_found_again(folder):
    before = dict(counters["cache"])
    first = compile_one(1)
    assert first.process is not None
    second = compile_one(1)
    assert second.process is None and second.key == first.key
    assert counters["cache"]["miss"] - before.get("miss", 0) == 1 and counters["cache"]["hit"] - before.get("hit", 0) == 1
    assert compile_one(2).key != first.key


def test_the_folder_is_for_its_owner_alone(folder):
    compile_one(3)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not [path for path in folder.iterdir() if path.name.startswith("tmp-")]


def test_settings_that_change_code_change_the_key(folder):
    key = compile_one(4).key
    with config.patch({"cpp.fast_math": True}):
        assert compile_one(4).key != key
        assert "-fassociative-math" in cc.flags()
    assert "-fassociative-math" not in cc.flags()


def test_fast_math_is_for_the_kernels_alone(folder):
    """Code linked with `-ffast-math` takes denormal numbers for zero in all of the process that loads it."""
    with config.patch({"cpp.fast_math": True}):
        x = torch.rand(100) + 1
        torch.testing.assert_close(fxjit.compile(lambda x: (x / 3 + x * 2) / 3)(x), (x / 3 + x * 2) / 3)
    assert torch.tensor(1e-310, dtype=torch.float64) * 0.5 != 0
    assert 1e-310 * 0.5 != 0


@pytest.mark.parametrize("damage", ["truncated", "foreign", "no sum", "empty sum"])
def test_a_damaged_entry_is_made_again(folder, damage):
    key = compile_one(5).key
    library, checksum = folder / f"{key}.so", folder / f"{key}.sum"
    whole = library.read_bytes()
    if damage in ("truncated", "foreign"):
        library.unlink()  # a file of its own: this process has the old one mapped, and would die of a shorter one
    if damage == "truncated":
        library.write_bytes(whole[:100])
    elif damage == "foreign":
        library.write_bytes(b"\x7fELF something else")
    elif damage == "no sum":
        checksum.unlink()
    else:
        checksum.write_text("")
    again = compile_one(5)
    assert again.process is not None
    assert compile_one(5).process is None


def test_an_entry_others_may_write_to_is_not_loaded(folder):
    key = compile_one(6).key
    (folder / f"{key}.so").chmod(0o777)
    assert compile_one(6).process is not None


def test_a_folder_that_cannot_be_used_warns_once_and_is_replaced(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with config.patch(cache_dir=str(blocked)):
        with pytest.warns(RuntimeWarning, match="cannot keep compiled kernels"):
            compile_one(7)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert compile_one(7).process is None


def test_without_the_disk_cache_nothing_is_kept(folder):
    with config.patch(disk_cache=False):
        compile_one(8)
    assert not folder.exists() or not list(folder.iterdir())


def test_the_cache_stays_within_its_bound(folder):
    for number in range(20, 26):
        compile_one(number)
    kept = cache.KernelCache(folder)
    assert kept.entries() == 6
    kept.trim(kept.size() // 2)
    assert kept.entries() == 3
    kept.clear()
    assert kept.entries() == 0


def test_two_processes_at_once(folder, tmp_path):
    script = tmp_path / "one.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        from fxjit import config
        config.cache_dir = sys.argv[1]
        from fxjit.backends.native.runtime import cc
        source = 'extern "C" int k0(void *const *P, const long *S) { return 9; }'
        assert cc.start(source).library().k0(None, None) == 9
    """)
    )
    command = [sys.executable, str(script), str(folder.parent)]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]


def test_a_compiler_that_fails_says_what_it_said_and_keeps_the_source(folder):
    with pytest.raises(CppCompileError, match="not_declared") as caught:
        cc.start("int f() { return not_declared; }").library()
    command = str(caught.value).rsplit("\n", 1)[-1].split()
    source = next(word for word in command if word.endswith(".cpp"))
    assert "not_declared" in Path(source).read_text()


def test_a_compiler_that_hangs_is_stopped(folder, tmp_path, monkeypatch):
    sleeper = executable(tmp_path / "slow++", "case $1 in --version) echo slow 1;; *) exec sleep 60;; esac")
    monkeypatch.setattr(cc, "TIMEOUT", 0.5)
    with config.patch({"cpp.compiler": sleeper}), pytest.raises(CppCompileError, match="did not finish"):
        cc.start(SOURCE.format(0)).library()


def test_what_a_hanging_compiler_started_is_stopped_with_it(folder, tmp_path, monkeypatch):
    """g++ is a driver: what hangs is a child of it, which holds the pipe."""
    driver = executable(tmp_path / "slow++", "case $1 in --version) echo slow 1;; *) sleep 60 & wait;; esac")
    monkeypatch.setattr(cc, "TIMEOUT", 0.5)
    start = time.monotonic()
    with config.patch({"cpp.compiler": driver}), pytest.raises(CppCompileError, match="did not finish"):
        cc.start(SOURCE.format(0)).library()
    assert time.monotonic() - start < 30


def test_a_full_disk_is_left_for_a_temporary_folder(folder, tmp_path):
    """With a warning, whether it is the linker that finds no room or the writing of the source."""
    compiler = f'case "$*" in *{folder}*) echo "ld: final link failed: No space left on device"; exit 1;; esac; exec g++ "$@"'
    with config.patch({"cpp.compiler": executable(tmp_path / "full++", compiler)}):
        with pytest.warns(RuntimeWarning, match="cannot keep compiled kernels .*No space left"):
            assert compile_one(30).process is not None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert compile_one(30).process is None  # found where it was put


def test_a_source_that_cannot_be_written_goes_to_a_temporary_folder(folder, monkeypatch):
    scratch = cache.KernelCache.scratch

    def full(self, suffix):
        if self.folder == folder:
            raise OSError(errno.ENOSPC, "No space left on device")
        return scratch(self, suffix)

    monkeypatch.setattr(cache.KernelCache, "scratch", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert compile_one(31).loaded.k0(None, None) == 31


def test_an_entry_that_goes_while_it_is_loaded_is_made_again(folder):
    """Another process may trim the folder, or find an entry that a third one is replacing."""
    key = compile_one(32).key
    found = cc.start(SOURCE.format(32))
    assert found.process is None
    cache.KernelCache(folder).remove(key)
    assert found.library().k0(None, None) == 32 and found.process is not None


def test_what_killed_processes_left_is_removed_in_time(folder):
    compile_one(33)
    old, new = folder / "tmp-old.so", folder / "tmp-new.so"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.KernelCache(folder).trim(1 << 30)
    assert new.exists() and not old.exists() and cache.KernelCache(folder).entries() == 1


def executable(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_no_compiler_warns_once_and_calls_aten(monkeypatch):
    monkeypatch.setattr(entry, "_warned_of_compiler", False)
    x = torch.randn(4)
    with config.patch({"cpp.compiler": "no-such-compiler"}):
        with pytest.warns(RuntimeWarning, match="no-such-compiler"):
            compiled = entry.compile_aten(traced(lambda x: x.exp() + 1, x), [x], "inference")
        torch.testing.assert_close(compiled([x]), x.exp() + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            entry.compile_aten(traced(lambda x: x.exp() + 2, x), [x], "inference")


def test_no_compiler_is_an_error_where_one_is_required():
    x = torch.randn(4)
    with (
        config.patch({"cpp.compiler": "no-such-compiler", "cpp.require": True}),
        pytest.raises(CppCompileError, match="no-such-compiler"),
    ):
        entry.compile_aten(traced(lambda x: x.exp() + 1, x), [x], "inference")


@pytest.mark.parametrize(
    "settings", [{"cpp.simd": False}, {"cpp.openmp": False}, {"num_threads": 1}, {"cpp.fast_math": True}], ids=str
)
def test_settings_of_the_target(settings):
    x = torch.randn(300, 40)
    with config.patch(settings):
        compiled = pipeline.compile_graph(traced(lambda x: torch.softmax(x.exp() * 0.1 + 1, 1).sum(0), x), [x])
        torch.testing.assert_close(compiled([x]), torch.softmax(x.exp() * 0.1 + 1, 1).sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(cc.find_compiler("clang++", "") is None, reason="no clang++ here")
def test_clang():
    x = torch.randn(300, 40)
    with config.patch({"cpp.compiler": "clang++"}):
        compiled = pipeline.compile_graph(traced(lambda x: torch.softmax(x.exp() + 1, 1), x), [x])
        torch.testing.assert_close(compiled([x]), torch.softmax(x.exp() + 1, 1))


def test_results_do_not_depend_on_threads():
    x = torch.randn(200_000)
    compiled = pipeline.compile_graph(traced(lambda x: (x * 2).sum() + (x.exp() * x).mean(), x), [x])
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(compiled([x]).item())
    finally:
        torch.set_num_threads(before)
    assert len(set(results)) == 1


def test_another_users_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.warns(RuntimeWarning, match="belongs to user"):
        assert cache.usable(tmp_path / "mine") != tmp_path / "mine"

"""The cache on the disk: what is found again, what heals, what is removed and what is not."""

from __future__ import annotations

import errno
import json
import os
import pwd
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

import fxjit
from fxjit import config
from fxjit.backends.native import pipeline
from fxjit.backends.native.runtime import cc
from fxjit.backends.store import artifacts as cache
from fxjit.counters import counters

SOURCE = 'extern "C" int k0(void *const *P, const long *S) {{ return {}; }}\n'
KEY, OTHER = "0" * 40, "1" * 40


@pytest.fixture
def folder(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache" / "kernels"


def compile_one(number: int) -> cc.Compilation:
    done = cc.start(SOURCE.format(number))
    assert done.library().k0(None, None) == number
    return done


# What is not what was written counts as absent, and is made again


DAMAGES = {
    "cut short": lambda data: data[:100],
    "empty": lambda data: b"",
    "another file": lambda data: b"\x7fELF something else",
    "a bit": lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
    "no seal": lambda data: data[:-64],
    "a seal that is not text": lambda data: data[:-64] + b"\xff" * 64,
    "more behind the seal": lambda data: data + b"\n",
}


@pytest.mark.parametrize("suffix", [cache.LIBRARY, cache.BINARY, cache.FACTS])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_absent_and_is_written_again(folder, suffix, damage):
    kept = cache.KernelCache(folder)
    kept.put(KEY, suffix, b"content" * 100)
    assert kept.get(KEY, suffix) == b"content" * 100
    path = folder / f"{KEY}{suffix}"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert kept.get(KEY, suffix) is None
    kept.put(KEY, suffix, b"content" * 100)
    assert kept.get(KEY, suffix) == b"content" * 100


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_compiled_again(folder, damage):
    path = folder / f"{compile_one(5).key}.so"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert compile_one(5).command
    assert not compile_one(5).command


def test_two_entries_that_were_exchanged_are_absent(folder):
    """Each is whole, and under the name of the other."""
    first, second = folder / f"{compile_one(1).key}.so", folder / f"{compile_one(2).key}.so"
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    assert compile_one(1).command and compile_one(2).command
    kept = cache.KernelCache(folder)
    kept.put(KEY, cache.FACTS, b"1")
    os.rename(folder / f"{KEY}.json", folder / f"{KEY}.so")
    assert kept.get(KEY, cache.LIBRARY) is None


ODD_FACTS = {
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep dicts": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "no JSON": b"{",
    "not UTF-8": b"\xff\xfe\x00",
    "nothing": b"",
    "a huge number": b"1" * 10_000,
}


@pytest.mark.parametrize("odd", ODD_FACTS)
def test_facts_that_cannot_be_read_are_absent(folder, odd):
    cache.open_cache().put(KEY, cache.FACTS, ODD_FACTS[odd])
    assert cache.get_facts(KEY) is None
    cache.put_facts(KEY, {"chosen": 1})
    assert cache.get_facts(KEY) == {"chosen": 1}


def deeply(value: object, times: int) -> object:
    for _ in range(times):
        value = ["tuple", value]
    return value


ODD_GRAPHS = [1, None, [], "text", {}, {"operators": 1}, {"operators": {}, "plan": ["Plan"], "graphs": {}},
              {"operators": {}, "plan": ["no such kind"], "graphs": {}},
              {"operators": {"a.b.c": "x"}, "plan": None, "graphs": {}},
              {"operators": {}, "plan": ["device", "no such device"], "graphs": {}, "asked": [], "counted": []},
              {"operators": {}, "plan": ["float", "0x1p+99999"], "graphs": {}, "asked": [], "counted": []},
              {"operators": {}, "plan": None, "graphs": {"inference": [None, "2" * 40]}, "asked": [], "counted": []},
              {"operators": {}, "plan": None, "graphs": {}, "asked": [], "counted": [["aot"]]},
              {"operators": {}, "plan": deeply(None, 900), "graphs": {}, "asked": [], "counted": []}]  # fmt: skip


@pytest.mark.compiles
@pytest.mark.parametrize("odd", ODD_GRAPHS, ids=lambda odd: str(odd)[:40])
def test_a_graph_whose_entry_says_something_odd_is_compiled_again(folder, odd, monkeypatch):
    monkeypatch.setattr(pipeline, "verifier", None)  # graphs from the disk go through no stages
    x = torch.arange(6.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + 1).relu()

    monkeypatch.setattr(config, "cache_graphs", True)
    fxjit.reset()
    fxjit.compile(f)(x)
    (path,) = [path for path in folder.iterdir() if path.suffix == ".json"]
    cache.KernelCache(folder).put(path.stem, cache.FACTS, json.dumps(odd).encode())
    for expected in ("graph miss", "graph hit"):
        fxjit.reset()
        torch.testing.assert_close(fxjit.compile(f)(x), f(x))
        assert counters["cache"][expected] == 1


@pytest.mark.parametrize("mode", [0o777, 0o666, 0o620, 0o602], ids=oct)
def test_an_entry_others_may_write_to_is_not_read(folder, mode):
    key = compile_one(6).key
    (folder / f"{key}.so").chmod(mode)
    assert compile_one(6).command


@pytest.mark.parametrize("what", ["a link", "a folder", "a pipe"])
def test_what_is_no_file_is_not_read(folder, tmp_path, what):
    key = compile_one(6).key
    path = folder / f"{key}.so"
    (tmp_path / "other.so").write_bytes(path.read_bytes())
    path.unlink()
    if what == "a link":
        path.symlink_to(tmp_path / "other.so")
    elif what == "a folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert compile_one(6).command


def test_an_entry_that_goes_while_it_is_loaded_does_no_harm(folder):
    """Another process may trim the folder, or find an entry that a third one is replacing."""
    key = compile_one(32).key
    found = cc.start(SOURCE.format(32))
    cache.KernelCache(folder).remove(key)
    assert found.library().k0(None, None) == 32


def test_a_loaded_library_is_not_what_is_in_the_folder(folder):
    """Whatever becomes of the file, by a truncation too, the process goes on."""
    loaded = compile_one(34).loaded
    for path in folder.iterdir():
        path.write_bytes(b"")
    assert loaded.k0(None, None) == 34


def test_the_folder_is_held_anew_where_it_was_removed_or_its_descriptor_closed(folder):
    kept = cache.KernelCache(folder)
    kept.put(KEY, cache.FACTS, b"1")
    descriptor = kept.folder.descriptor
    other = os.open("/", os.O_RDONLY)
    os.dup2(other, descriptor)  # a daemon closes all it has, and the numbers are given out again
    assert kept.get(KEY, cache.FACTS) == b"1"
    assert os.path.samestat(os.fstat(descriptor), os.stat("/"))
    os.close(descriptor)
    assert kept.get(KEY, cache.FACTS) == b"1"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    kept.put(KEY, cache.FACTS, b"2")
    assert kept.get(KEY, cache.FACTS) == b"2" and folder.stat().st_mode & 0o777 == 0o700


# What is removed


def test_the_entries_used_longest_ago_leave_first(folder):
    kept = cache.KernelCache(folder)
    for digit in "01234":
        kept.put(digit * 40, cache.LIBRARY, b"x" * 936)
        kept.put_source(digit * 40, "y" * 1000)
        os.utime(folder / f"{digit * 40}.so", (1000 + int(digit), 1000 + int(digit)))
        os.utime(folder / f"{digit * 40}.cpp", (1, 1))
    assert kept.get("1" * 40, cache.LIBRARY)  # is used now
    kept.trim(4000)
    assert sorted(path.name[0] for path in folder.iterdir()) == ["1", "1", "4", "4"]
    kept.trim(4000)
    assert len(kept.names()) == 2
    kept.trim(0)
    assert not kept.names()


def test_a_folder_is_looked_through_once_an_hour_or_for_another_size(folder, monkeypatch):
    kept, trims = cache.KernelCache(folder), []
    monkeypatch.setattr(kept, "trim", trims.append)
    for limit in (4000, 4000, 3000):
        kept.trim_in_turn(limit)
    assert trims == [4000, 3000]
    stamp = folder / "trimmed"
    for age in (2 * cache.TRIM_EVERY, -100.0):  # of a clock that was set back, too
        os.utime(stamp, (time.time() - age,) * 2)
        kept.trim_in_turn(3000)
    stamp.write_text("damaged")
    kept.trim_in_turn(3000)
    kept.trim_in_turn(3000)
    assert trims == [4000, 3000, 3000, 3000, 3000]
    assert not kept.names()


def test_orphans_leave_before_any_entry_does(folder):
    """Sources of failed compiles and sums of an older version stand beside no entry, however new they are; what is not ours
    does not count, and stays."""
    kept = cache.KernelCache(folder)
    kept.put(KEY, cache.LIBRARY, b"x" * 1000)
    os.utime(folder / f"{KEY}.so", (1, 1))
    kept.put_source(OTHER, "y" * 100_000)
    (folder / f"{'2' * 40}.sum").write_bytes(b"z" * 100_000)
    (folder / "users.txt").write_bytes(b"u" * 100_000)
    kept.trim(2000)
    assert sorted(path.name for path in folder.iterdir()) == [f"{KEY}.so", "users.txt"]


def test_what_killed_processes_left_is_removed_and_nothing_that_is_in_use(folder):
    kept = cache.KernelCache(folder)
    mine = cc.Scratch(kept.folder)
    dead, young = folder / "fxjit-tmp-dead", folder / "fxjit-tmp-young"
    half, users = folder / "fxjit-tmp-half", folder / "tmp-users"
    for path in (dead, young):
        path.mkdir()
        (path / "kernel.o").write_bytes(b"x")
    for path in (half, users):
        path.write_bytes(b"x")
    for path in (dead, half, users, mine.path):
        os.utime(path, (0, 0))
    kept.trim(1 << 30)
    assert {path.name for path in folder.iterdir()} == {young.name, users.name, mine.path.name}
    mine.discard()
    assert not mine.path.exists()


def test_a_directory_that_another_thread_writes_to_is_removed_all_the_same(folder, monkeypatch):
    mine = cc.Scratch(cache.KernelCache(folder).folder)
    rmdir, late = os.rmdir, [b"a library", b"its sum"]

    def rmdir_too_late(path, **known):
        if late:
            (mine.path / f"late {len(late)}").write_bytes(late.pop())
        rmdir(path, **known)

    monkeypatch.setattr(os, "rmdir", rmdir_too_late)
    mine.discard()
    assert not late and not mine.path.exists()


def test_a_killed_compile_leaves_nothing_for_long(folder, tmp_path):
    """kill -9 in the middle: the next process removes what is there, though the time is not over in which it could be young."""
    code = (
        "import os, signal\n"
        "from fxjit.backends.native.runtime import cc\n"
        f"cc.start({SOURCE.format(1)!r})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = config.child_environment(FXJIT_CACHE_DIR=str(folder.parent), TMPDIR=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, check=False)
    (left,) = tmp_path.glob("fxjit-tmp-*")
    os.utime(left, (0, 0))
    code = code.replace("cc.start", "loaded = cc.start").replace("os.kill(os.getpid(), signal.SIGKILL)", "loaded.library()")
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, check=True)
    assert not list(tmp_path.glob("fxjit-tmp-*"))


# Where the folder is


@pytest.mark.parametrize("home", ["/home/of/mine", "", "relative", None])
@pytest.mark.parametrize("xdg", ["/xdg", "~/xdg", "relative", "", None])
@pytest.mark.parametrize("chosen", ["", "~/mine", "~", "/absolute", "relative", "~root/mine"])
def test_the_folder_is_the_same_for_everything(monkeypatch, tmp_path, home, xdg, chosen):
    """`~` is never a folder of that name, and never one below the folder that the program happens to be in."""
    for name, value in (("HOME", home), ("XDG_CACHE_HOME", xdg)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with config.patch(cache_dir=chosen):
        folder = cache.kernels_folder()
    own = home if home and home.startswith("/") else pwd.getpwuid(os.getuid()).pw_dir
    roots = pwd.getpwnam("root").pw_dir
    below = {"/xdg": "/xdg/fxjit", "~/xdg": f"{own}/xdg/fxjit"}.get(xdg or "", f"{own}/.cache/fxjit")
    expected = {"": below, "~/mine": f"{own}/mine", "~": own, "/absolute": "/absolute", "relative": f"{tmp_path}/relative",
                "~root/mine": f"{roots}/mine"}[chosen]
    assert folder == Path(expected) / "kernels"


def test_no_home_folder_is_one_warning_and_no_folder_called_tilde(monkeypatch, tmp_path):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    monkeypatch.chdir(tmp_path)
    with config.patch(cache_dir=""):
        with pytest.warns(RuntimeWarning, match="no home folder"):
            compile_one(40)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not compile_one(40).command
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("chosen", ["/a\0b", "/" + "x" * 5000, "/proc/1/nowhere", "relative"])
def test_a_folder_that_cannot_be_is_one_warning(monkeypatch, tmp_path, chosen):
    """As for `relative` in a folder that was removed."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with config.patch(cache_dir=str(tmp_path / "absolute")), warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_one(41)
    with config.patch(cache_dir=chosen):
        with pytest.warns(RuntimeWarning, match="cannot keep compiled kernels") as caught:
            compile_one(42)
            compile_one(43)
        assert len(caught) == 1


def test_the_folder_for_people_to_look_at_knows_home_too(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    with config.patch(debug_dir="~/out"):
        assert config.debug_folder() == tmp_path / "out"


# Disks that take nothing


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES])
def test_a_disk_that_takes_nothing_costs_one_warning(folder, monkeypatch, number):
    def refuse(self, name, content):
        if self.path == folder:
            raise OSError(number, os.strerror(number))
        return write(self, name, content)

    write = cc.Folder.write
    monkeypatch.setattr(cc.Folder, "write", refuse)
    with pytest.warns(RuntimeWarning, match=f"cannot keep compiled kernels .*{os.strerror(number)}") as caught:
        compile_one(50)
        compile_one(51)
    assert len([each for each in caught if "cannot keep" in str(each.message)]) == 1
    assert not compile_one(50).command  # found in memory

"""Another user must not decide what is loaded (SECURITY.md): folders that could be exchanged are not used, and what was hashed
is what is loaded."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fxjit import config
from fxjit.backends.native.runtime import cc
from fxjit.backends.store import artifacts as cache
from fxjit.backends.store.folder import MOST_LINKS, Untrusted, hold, hold_own

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
OTHER = 65534
KEY = "0" * 40


@contextlib.contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("value", [0, 0o002, 0o022, 0o077], ids=oct)
def test_what_is_made_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, value: int) -> None:
    with umask(value):
        kept = cache.KernelCache(tmp_path / "a" / "b" / "kernels")
        kept.put(KEY, cache.FACTS, b"1")
        kept.put_source(KEY, "int x;")
        with config.patch(cache_dir=str(tmp_path / "a")):
            assert cc.start('extern "C" int k0() { return 5; }').library().k0() == 5
    for path in (tmp_path / "a").rglob("*"):
        assert not path.stat().st_mode & 0o077, path


# The way down


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def open_to_a_group(path: Path) -> None:
    os.chown(path, -1, 54321)
    path.chmod(0o775)


def anothers(path: Path) -> None:
    os.chown(path, OTHER, OTHER)


@needs_root
@pytest.mark.parametrize("above", range(3))
@pytest.mark.parametrize("change", [open_to_all, open_to_a_group, anothers])
def test_no_folder_above_may_be_exchanged(tmp_path: Path, change: Callable[[Path], None], above: int) -> None:
    path = tmp_path / "a" / "b" / "c" / "kernels"
    path.mkdir(parents=True)
    hold_own(path).close()
    change(path.parents[above])
    with pytest.raises(Untrusted, match=str(path.parents[above])):
        hold_own(path)
    with config.patch(cache_dir=str(path.parent)):
        with pytest.warns(RuntimeWarning, match=f"cannot keep compiled kernels in .*{path.parents[above]}"):
            assert cc.start('extern "C" int k0() { return 5; }').library().k0() == 5
    assert not list(path.iterdir())


def test_the_folder_itself_is_taken_back_from_others(tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    path.mkdir()
    path.chmod(0o777)
    hold_own(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_sticky_folder_is_a_way_for_what_is_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "like-tmp" / "mine"
    path.mkdir(parents=True)
    path.parent.chmod(0o1777)
    hold(path).close()
    hold(path.parent / "new").close()


@needs_root
def test_a_sticky_folder_is_no_way_to_what_is_anothers(tmp_path: Path) -> None:
    path = tmp_path / "like-tmp" / "theirs"
    path.mkdir(parents=True)
    path.parent.chmod(0o1777)
    anothers(path)
    with pytest.raises(Untrusted, match="belongs to user 65534"):
        hold(path / "kernels")
    link = path.parent / "link"
    link.symlink_to("/")
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(Untrusted, match="the link .* belongs to user 65534"):
        hold(link)


def test_links_of_ones_own_are_followed_and_what_they_lead_to_is_checked(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "a" / "relative").symlink_to("../real/./deep/..")
    (tmp_path / "a" / "link to a link").symlink_to("relative")
    (tmp_path / "a" / "round").symlink_to("round")
    for name in ("absolute", "relative", "link to a link"):
        folder = hold(tmp_path / "a" / name / "deep" / ".." / "deep", make=False)
        assert os.path.samestat(os.fstat(folder.descriptor), (tmp_path / "real" / "deep").stat())
    with pytest.raises(OSError, match="Too many levels"):
        hold(tmp_path / "a" / "round")
    assert MOST_LINKS == 40
    open_to_all(tmp_path / "real")
    for name in ("absolute", "relative", "link to a link"):
        with pytest.raises(Untrusted, match="every user may write"):
            hold(tmp_path / "a" / name / "deep")


def test_what_is_missing_and_may_not_be_made_says_where(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/a"):
        hold(tmp_path / "a" / "b", make=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=f"{tmp_path}/file"):
        hold(tmp_path / "file" / "b")


@needs_root
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    kept = cache.KernelCache(tmp_path / "kernels")
    kept.put(KEY, cache.FACTS, b"1")
    os.chown(tmp_path / "kernels" / f"{KEY}.json", OTHER, OTHER)
    assert kept.get(KEY, cache.FACTS) is None


# A user who exchanges folders

EVIL = "__attribute__((constructor)) static void run() { __builtin_abort(); }"
PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, fxjit
from fxjit import config
from fxjit.backends.native.runtime import cc
from fxjit.backends.store import artifacts as cache
config.cache_graphs = sys.argv[1] == "graphs"
x = torch.arange(6.0)
for turn in range(int(sys.argv[2])):
    cache._opened.clear()
    for key in sys.argv[3:]:
        try:
            cc.kept(key)
        except FileNotFoundError:
            pass
        assert cache.get_facts(key) is None
    if turn % 100 == 0:
        fxjit.reset()
        torch.testing.assert_close(fxjit.compile(lambda x: x.exp() * 2 + 1)(x), x.exp() * 2 + 1)
print("done", len(cache.open_cache().names()) if isinstance(cache.open_cache(), cache.KernelCache) else "memory")
"""


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that other users may pass through: not in pytest's own, which each run of pytest closes to others."""
    with tempfile.TemporaryDirectory(prefix="fxjit-passable-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@needs_root
@pytest.mark.parametrize("graphs", ["graphs", "kernels alone"])
def test_a_user_who_exchanges_folders_never_has_code_run(passable: Path, graphs: str) -> None:
    """300 times, under the same names as the real entries, sealed and all: another user owns a folder above, and for a while in
    each turn what lies there is theirs."""
    theirs = passable / "theirs"
    real = theirs / "cache"
    # What the victim would find there, were it to trust the folder: made while the way was its own.
    environment = config.child_environment(FXJIT_CACHE_DIR=str(real))
    run = [sys.executable, "-c", PROGRAM, graphs]
    subprocess.run([*run, "1"], env=environment, check=True, timeout=300)
    evil = theirs / "evil"
    subprocess.run(["cp", "-r", str(real), str(evil)], check=True)
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(passable / "evil.so")]
    subprocess.run(command, input=EVIL, text=True, check=True)
    keys = [path.stem for path in (evil / "kernels").iterdir() if path.suffix in (".so", ".json")]
    for key in keys:
        kept = cache.KernelCache(evil / "kernels")
        kept.put(key, cache.LIBRARY, (passable / "evil.so").read_bytes())
        kept.put(key, cache.FACTS, b'{"evil": true}')
    os.chown(theirs, OTHER, OTHER)
    exchange = textwrap.dedent(f"""
        import os, time
        os.setuid({OTHER})
        os.chdir({str(theirs)!r})
        while True:
            for a, b in (("cache", "kept"), ("evil", "cache"), ("cache", "evil"), ("kept", "cache")):
                os.rename(a, b)
                time.sleep(0.0005)
    """)
    attacker = subprocess.Popen([sys.executable, "-c", exchange])
    try:
        done = subprocess.run([*run, "300", *keys], env=environment, capture_output=True, text=True, timeout=570, check=False)
    finally:
        attacker.kill()
        attacker.wait()
    assert attacker.returncode == -9, "it exchanged folders to the end"
    assert (done.returncode, done.stdout) == (0, "done memory\n"), done.stderr


@needs_root
def test_a_folder_exchanged_after_it_was_held_is_not_looked_at(tmp_path: Path) -> None:
    """The way was the user's own when the cache was opened, and no longer is."""
    real = tmp_path / "mine" / "kernels"
    kept = cache.KernelCache(real)
    kept.put(KEY, cache.FACTS, b"ours")
    other = cache.KernelCache(tmp_path / "evil" / "kernels")
    other.put(KEY, cache.FACTS, b"evil")
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for a, b in (("mine", "kept"), ("evil", "mine"), ("mine", "evil"), ("kept", "mine")):
                os.rename(tmp_path / a, tmp_path / b)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3000):
                assert kept.get(KEY, cache.FACTS) == b"ours"
                kept.put("1" * 40, cache.FACTS, b"more")
    finally:
        stop.set()
        thread.join()
    assert (real / f"{'1' * 40}.json").exists() and not (tmp_path / "evil" / "kernels" / f"{'1' * 40}.json").exists()


def test_a_library_that_is_exchanged_after_the_check_is_not_loaded(tmp_path: Path) -> None:
    """What was hashed is what is loaded, though the file becomes another one in between."""
    with config.patch(cache_dir=str(tmp_path)):
        source = 'extern "C" int k0() { return %d; }'
        cc.start(source % 1).library()
        other = cc.start(source % 2)
        other.library()
        found = cc.start(source % 1)
        assert not found.command, "it is in the cache, and was read and checked"
        for path in (tmp_path / "kernels").glob("*.so"):
            path.write_bytes((tmp_path / "kernels" / f"{other.key}.so").read_bytes())
        assert found.library().k0() == 1

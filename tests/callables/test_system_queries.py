"""Queries of the process, the machine and its files: constants for as long as each query gives what it gave."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fxjit

X = torch.ones(3)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    fxjit.reset()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "file").write_text("text", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    os.symlink(tmp_path / "file", tmp_path / "link")
    before = os.getcwd()
    yield tmp_path
    os.chdir(before)


def _toggle(path: Path) -> None:
    path.unlink() if path.exists() else path.write_text("", encoding="utf-8")


QUERIES: dict[str, Callable[[str], Any]] = {
    "exists": lambda at: os.path.exists(at),
    "lexists": lambda at: os.path.lexists(at),
    "isfile": lambda at: os.path.isfile(at),
    "isdir": lambda at: os.path.isdir(at),
    "islink": lambda at: os.path.islink(at),
    "ismount": lambda at: os.path.ismount(at),
    "access": lambda at: os.access(at, os.R_OK),
    "which": lambda at: shutil.which(at),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("at", ["file", "folder", "link", "nothing", "\0", ""])
def test_answers_are_eagers(files: Path, name: str, at: str) -> None:
    query, where = QUERIES[name], str(files / at) if at not in ("\0", "") else at

    def f(x: Tensor) -> tuple[Tensor, Any]:
        return x * 2, query(where)

    def told(fn: Callable[[Tensor], Any]) -> Any:
        try:
            return fn(X)[1]
        except ValueError as error:
            return str(error)

    assert told(fxjit.compile(f, backend="eager")) == told(f)


@pytest.mark.parametrize("name", ["exists", "lexists", "isfile", "access"])
def test_what_changes_between_calls_is_seen(files: Path, name: str) -> None:
    query, path = QUERIES[name], files / "comes and goes"

    def f(x: Tensor) -> Tensor:
        return x.sin() if query(str(path)) else x.cos()

    compiled = fxjit.compile(f, backend="eager", fullgraph=True)
    for _ in range(4):
        assert torch.equal(compiled(X), f(X))
        _toggle(path)
    assert fxjit.counters["stats"]["unique_graphs"] == 2


def test_the_process_and_the_machine(files: Path) -> None:
    def f(x: Tensor) -> tuple[Tensor, Any]:
        return x + 1, (os.getcwd(), os.getpid(), os.getppid(), os.cpu_count(), socket.gethostname(), os.path.isdir("folder"))

    compiled = fxjit.compile(f, backend="eager", fullgraph=True)
    for folder in (files, files / "folder", files):
        os.chdir(folder)
        assert compiled(X)[1] == f(X)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_has_a_number_of_its_own() -> None:
    def f(x: Tensor) -> tuple[Tensor, int]:
        return x + 1, os.getpid()

    compiled = fxjit.compile(f, backend="eager", fullgraph=True)
    assert compiled(X)[1] == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if compiled(X)[1] == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_path_that_the_frame_is_given(files: Path) -> None:
    def f(x: Tensor, at: str) -> Tensor:
        return x.sin() if os.path.isfile(os.path.join(at, "file")) else x.cos()

    compiled = fxjit.compile(f, backend="eager", fullgraph=True)
    for at in (str(files), str(files / "folder"), str(files)):
        assert torch.equal(compiled(X, at), f(X, at))


# -- what the frame itself may change ------------------------------------------------------------------------------------------

PLACE: list[Path] = []


@torch.library.custom_op("fxjit_queries::make_file", mutates_args=())
def make_file(x: Tensor) -> Tensor:
    _toggle(PLACE[0])
    return x.clone()


@make_file.register_fake
def _(x: Tensor) -> Tensor:
    return x.clone()


@fxjit.allow_in_graph
def make_file_unseen(x: Tensor) -> Tensor:
    if type(x) is Tensor:
        _toggle(PLACE[0])
    return x.clone()


def _write(path: Path) -> None:
    _toggle(path)


def _after_an_operator(x: Tensor) -> tuple[Tensor, bool]:
    return make_file(x) + 1, os.path.exists(str(PLACE[0]))


def _between_operators(x: Tensor) -> tuple[Tensor, bool, bool]:
    before = os.path.exists(str(PLACE[0]))
    return make_file(x) + 1, before, os.path.exists(str(PLACE[0]))


def _after_an_allowed_function(x: Tensor) -> tuple[Tensor, bool]:
    return make_file_unseen(x) + 1, os.path.exists(str(PLACE[0]))


def _after_a_write(x: Tensor) -> tuple[Tensor, bool]:
    y = x + 1
    with open(PLACE[0], "a", encoding="utf-8") as file:
        file.write("text")
    return y, os.path.exists(str(PLACE[0]))


def _after_a_subgraph(x: Tensor) -> tuple[Tensor, bool]:
    y = torch.utils.checkpoint.checkpoint(lambda x: make_file(x) * 2, x, use_reentrant=False)
    return y, os.path.exists(str(PLACE[0]))


@pytest.mark.parametrize("f", [_after_an_operator, _between_operators, _after_an_allowed_function, _after_a_write,
                               _after_a_subgraph])
def test_what_the_frame_changes_before_is_seen(tmp_path: Path, f: Callable[[Tensor], Any]) -> None:
    PLACE[:] = [tmp_path / "made"]
    compiled = fxjit.compile(f, backend="eager")
    given = X.clone().requires_grad_() if f is _after_a_subgraph else X
    for _ in range(3):
        PLACE[0].unlink(missing_ok=True)
        expected = f(given)[1:]
        PLACE[0].unlink(missing_ok=True)
        assert compiled(given)[1:] == expected


def test_a_call_that_is_put_off_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "made"

    def f(x: Tensor) -> tuple[Tensor, bool]:
        y = x + 1
        _write(path)
        return y, os.path.exists(str(path))

    with fxjit.config.patch(reorderable_functions={_write}):
        compiled = fxjit.compile(f, backend="eager")
        assert compiled(X)[1] is True
        assert compiled(X)[1] is False

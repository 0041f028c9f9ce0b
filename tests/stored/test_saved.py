"""Artifacts of one function: `compiled.save(path)`, `fxjit.load(path)`, `compiled.aot_compile(...)`."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.differential import assert_same
from tests.stored.test_entries import HEAD, PROGRAMS

import fxjit
from fxjit import config
from fxjit.backends.store import artifacts, bundle
from fxjit.counters import counters
from fxjit.errors import ArtifactError, InvalidArgument

NewProcess = Callable[[str], ModuleType]
ADD = HEAD + "def fn(x, y):\n    return (x * 2 + y).relu().sum(-1)\n"
GIVEN = (torch.tensor([[-1.0, -0.5, 0.0, 0.5], [1.0, 2.0, -3.0, 4.0], [0.1, 0.2, 0.3, -0.4]]), torch.ones(4))

SAVING = """
import importlib, sys, fxjit
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    module = importlib.import_module(name)
    fn, args = module.make()
    compiled = fxjit.compile(fn)
    compiled(*args)
    report = compiled.save(f"{sys.argv[1]}/artifacts/{name}")
    assert report.functions and not report.left_out, report
    fxjit.reset()
"""
#: Neither the pipeline nor AOTAutograd can be imported, and there is no compiler of C++.
LOADING = """
import importlib, os, shutil, sys, torch, fxjit
sys.path.insert(0, sys.argv[1])
sys.modules.update(dict.fromkeys(["fxjit.pipeline", "torch._functorch._aot_autograd.schemas"]))
assert not any(map(shutil.which, ("g++", "c++", "clang++")))
def gradients(found, args):
    leaves = [each for each in torch.utils._pytree.tree_leaves(found) if isinstance(each, torch.Tensor) and each.requires_grad]
    inputs = [each for each in args if isinstance(each, torch.Tensor) and each.requires_grad]
    return torch.autograd.grad(sum(each.sum() for each in leaves), inputs, allow_unused=True) if leaves and inputs else []
for name in sys.argv[2:]:
    module = importlib.import_module(name)
    (eager, given), (fn, args) = module.make(), module.make()
    expected, found = eager(*given), fxjit.load(f"{sys.argv[1]}/artifacts/{name}", fn)(*args)
    tests = importlib.import_module("tests.differential")
    for each in ((found, expected), (gradients(found, args), gradients(expected, given))):
        tests.assert_same(*each, rtol=1e-5)
    cache = fxjit.counters["cache"]
    assert cache["entry hit"] and not cache["entry miss"] and not cache["graph miss"], (name, cache)
    assert fxjit.counters["frames"]["total"] == cache["entry hit"] + cache["skip hit"], name
    fxjit.reset()
assert not os.path.exists(fxjit.config.cache_dir), "nothing is written"
"""
#: Every call of the first changes what it is given; eager itself imports torch's compiler for the others.
_NOT_SHIPPED = ("arguments that are written to", "branches of torch.cond", "transforms of functions, inside of one another")
SHIPPED = [name for name in PROGRAMS if name not in _NOT_SHIPPED]


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(artifacts, "_shipped", {})
    with config.patch(store_entries=False):
        yield


def run_python(text: str, *args: str, **environment: str) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", text, *args], env=config.child_environment(**environment),
                          cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_a_new_process_without_a_compiler_starts_compiled(tmp_path: Path) -> None:
    """A folder of artifacts that nobody may write to, and no cache."""
    names = [f"program_{place}" for place, _ in enumerate(SHIPPED)]
    for name, program in zip(names, SHIPPED, strict=True):
        (tmp_path / f"{name}.py").write_text(HEAD + PROGRAMS[program])
    folder = tmp_path / "artifacts"
    folder.mkdir()
    run_python(SAVING, str(tmp_path), *names, FXJIT_CACHE_DIR=str(tmp_path / "first"))
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    run_python(LOADING, str(tmp_path), *names, FXJIT_CACHE_DIR=str(tmp_path / "second"), PATH=str(tmp_path), CXX="")


def saved(module: ModuleType, path: Path, **options: object) -> Path:
    """The artifact of the module's `fn`, which forgets what was compiled."""
    compiled = fxjit.compile(module.fn, backend="eager", **options)
    compiled(*GIVEN)
    compiled.save(path)
    return path


def test_a_call_that_no_entry_fits_is_compiled(new_process: NewProcess, traces: list[str], tmp_path: Path) -> None:
    file = saved(new_process(ADD), tmp_path / "artifact")
    traces.clear()
    module = new_process(ADD)
    loaded = fxjit.load(file)
    assert_same(loaded(*GIVEN), module.fn(*GIVEN))
    assert not traces
    other = (torch.ones(5, 4, dtype=torch.float64), torch.ones(4))
    assert_same(loaded(*other), module.fn(*other))
    assert traces == ["fn"]


def test_an_artifact_has_its_options(new_process: NewProcess, traces: list[str], tmp_path: Path) -> None:
    file = saved(new_process(ADD), tmp_path / "artifact", dynamic=True, fullgraph=True)
    traces.clear()
    module = new_process(ADD)
    loaded = fxjit.load(file, module.fn)
    assert loaded.region.key.dynamic is True and loaded.region.key.fullgraph
    for rows in (3, 7):
        given = (torch.ones(rows, 4), torch.ones(4))
        assert_same(loaded(*given), module.fn(*given))
    assert not traces


def test_under_a_stance_that_forbids_compiling(new_process: NewProcess, tmp_path: Path) -> None:
    """Installing what was compiled before is no recompile."""
    file = saved(new_process(ADD), tmp_path / "artifact")
    module = new_process(ADD)
    with fxjit.set_stance("fail_on_recompile"):
        loaded = fxjit.load(file)
        assert_same(loaded(*GIVEN), module.fn(*GIVEN))
        with pytest.raises(fxjit.errors.RecompileError):
            loaded(GIVEN[0].double(), GIVEN[1])
    assert counters["cache"]["entry hit"] == 1


def test_what_is_loaded_can_be_saved_again(new_process: NewProcess, traces: list[str], tmp_path: Path) -> None:
    file = saved(new_process(ADD), tmp_path / "artifact")
    new_process(ADD)
    again = fxjit.load(file)
    again(*GIVEN)
    again.save(tmp_path / "again")
    assert bundle.read_bundle(file.read_bytes(), file) == bundle.read_bundle((tmp_path / "again").read_bytes(), "again")


BREAKING = HEAD + """
def fn(x, y):
    x = x + 1
    print("between")
    return x * y
"""


@pytest.mark.parametrize("text", [ADD, BREAKING], ids=["one graph", "a break"])
def test_aot_compile(new_process: NewProcess, traces: list[str], tmp_path: Path, text: str) -> None:
    """By torch's spelling and names, too."""
    spelled: dict[str, Callable[[Any], object]] = {
        "ours": lambda compiled: compiled.aot_compile(*GIVEN), "torch's": lambda compiled: compiled.aot_compile((GIVEN, {})),
    }  # fmt: skip
    for name, compile_ahead in spelled.items():
        compiled = fxjit.compile(new_process(text).fn, backend="eager")
        assert compile_ahead(compiled) is compiled
        compiled.save_compiled_function(str(tmp_path / name))
        traces.clear()
        module = new_process(text)
        with open(tmp_path / name, "rb") as file:
            loaded = fxjit.load_compiled_function(file, f_globals=vars(module))
        assert_same(loaded(*GIVEN), module.fn(*GIVEN))
        assert not traces


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2


class WithSave(Model):
    def save(self, path: str) -> str:
        return f"the model's own, {path}"


def test_of_a_module(tmp_path: Path, traces: list[str]) -> None:
    x = torch.ones(3)
    fxjit.compile(Model(), backend="eager").aot_compile(x).save(tmp_path / "artifact")
    fxjit.reset()
    traces.clear()
    model = Model()
    assert_same(fxjit.load(tmp_path / "artifact", model)(x), model(x))
    assert not traces
    with pytest.raises(ArtifactError, match="of a module of class Model: give it"):
        fxjit.load(tmp_path / "artifact")


def test_a_module_keeps_methods_of_its_own(tmp_path: Path) -> None:
    compiled = fxjit.compile(WithSave(), backend="eager")
    assert compiled.save("here") == "the model's own, here"
    compiled(torch.ones(3))
    assert fxjit.save(compiled, tmp_path / "artifact").functions == ("Model.forward",)
    with pytest.raises(AttributeError):
        _ = compiled.saved


def test_what_was_not_called_has_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="it was not called yet"):
        fxjit.compile(Model(), backend="eager", dynamic=False).save(tmp_path / "artifact")
    assert not list(tmp_path.glob("artifact*"))
    with pytest.raises(InvalidArgument, match=r"expected what fxjit\.compile returned"):
        fxjit.save(Model(), tmp_path / "artifact")


UNSAID = HEAD + """
class Key:
    pass
KEY = Key()
TABLE = {KEY: 1.5}
def inner(x, y):
    return x * y
def fn(x, y):
    x = x + TABLE[KEY]
    print("between")
    return inner(x, y)
"""


def test_what_has_no_form_is_named_with_its_reason(
    new_process: NewProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of the function is saved; where there is none, that is an error."""
    compiled = fxjit.compile(new_process(UNSAID).fn, backend="eager")
    compiled(*GIVEN)
    with caplog.at_level(logging.WARNING, "fxjit.cache"):
        report = compiled.save(tmp_path / "artifact")
    ((name, why),) = report.left_out
    assert name == "fn" and "no name leads to" in why and why in caplog.text
    assert len(report.functions) == 1

    with config.patch(store_entries=True):
        explained = fxjit.explain(compiled)(*GIVEN)
    assert (explained.stored, explained.not_stored) == (report.functions, report.left_out)
    assert f"Kept on the disk for the next process: {report.functions[0]}\n" in str(explained)
    assert f"Traced again by each process: fn: {why}\n" in str(explained)

    counter = fxjit.testing.CompileCounter()
    compiled = fxjit.compile(new_process(ADD).fn, backend=counter)
    compiled(*GIVEN)
    with pytest.raises(ArtifactError, match="fn: a backend of the program.s own"):
        compiled.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def resealed(file: Path, change: Callable[[dict[str, object]], object]) -> None:
    """The file with another manifest, under a right digest."""
    _, head, body = file.read_bytes().removeprefix(bundle.MAGIC).split(b"\n", 2)
    manifest = json.loads(head)
    change(manifest)
    file.write_bytes(bundle.sealed(manifest, body))


@pytest.mark.parametrize("version", bundle.VERSIONS)
def test_another_version_is_an_error(new_process: NewProcess, tmp_path: Path, version: str) -> None:
    file = saved(new_process(ADD), tmp_path / "artifact")
    resealed(file, lambda manifest: manifest["for"].update({version: "1.0"}))
    with pytest.raises(ArtifactError, match=f"was saved with {version} 1.0, and this process has"):
        fxjit.load(file)


@pytest.mark.parametrize("part", ["processor", "device", "threads"])
def test_on_another_machine_it_is_compiled_anew(
    new_process: NewProcess, traces: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    file = saved(new_process(ADD), tmp_path / "artifact")
    resealed(file, lambda manifest: manifest["for"].update({part: "another"}))
    traces.clear()
    module = new_process(ADD)
    with caplog.at_level(logging.WARNING, "fxjit.cache"):
        loaded = fxjit.load(file)
    (record,) = (each for each in caplog.records if each.name == "fxjit.cache")
    assert f"{part} another and not" in record.message and "\n" not in record.message
    assert_same(loaded(*GIVEN), module.fn(*GIVEN))
    assert traces == ["fn"]


def test_each_changed_byte_is_an_error(new_process: NewProcess, tmp_path: Path) -> None:
    """Wherever it is: in the name of the format, the digest, the manifest, the entries."""
    file = saved(new_process(ADD), tmp_path / "artifact")
    content = file.read_bytes()
    new_process(ADD)
    for place in {*range(140), *range(140, len(content), 97), len(content) - 1}:
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1:])
        with pytest.raises(ArtifactError):
            fxjit.load(file)
    for rest in (content[:-1], content + b"x", b"", bundle.MAGIC):
        file.write_bytes(rest)
        with pytest.raises(ArtifactError):
            fxjit.load(file)
    file.write_bytes(b"fxjit artifacts 1\n" + content)
    with pytest.raises(ArtifactError, match="another version of fxjit"):
        fxjit.load(file)
    assert not artifacts._shipped


#: What is loaded -> what the program has in the place of the function that was saved.
OTHERS = {
    "other code": ADD.replace("* 2", "* 3"),
    "another function": HEAD + "def other(x, y):\n    return x\nfn = other\n",
    "a class": HEAD + "class fn:\n    def __call__(self, x, y):\n        return x\n",
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_function_is_an_error(new_process: NewProcess, tmp_path: Path, other: str) -> None:
    file = saved(new_process(ADD), tmp_path / "artifact")
    module = new_process(OTHERS[other])
    for given in ((), (module.fn,)):
        with pytest.raises(ArtifactError, match=r"is of stored_program\.fn in .*, and not of"):
            fxjit.load(file, *given)
    module = new_process(HEAD)
    with pytest.raises(ArtifactError, match="which is not there by that name: give it"):
        fxjit.load(file)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        fxjit.load(tmp_path / "missing")
    with pytest.raises(InvalidArgument, match="path is the name of a file"):
        fxjit.load(7)
    with pytest.raises(InvalidArgument, match=r"fxjit\.load takes a path"):
        fxjit.load_compiled_function(os.fspath(tmp_path))
    fxjit.save_cache_artifacts(tmp_path / "all")
    with pytest.raises(ArtifactError, match="of no single function"):
        fxjit.load(tmp_path / "all")


def test_what_is_no_plain_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    bundle.write_bundle(pipe, [])
    assert os.read(reader, 10) and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
    for folder in ("/", str(tmp_path)):
        with pytest.raises(InvalidArgument, match="cannot be written"):
            fxjit.save_cache_artifacts(folder)

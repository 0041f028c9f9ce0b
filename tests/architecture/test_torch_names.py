"""The private names of torch (src/fxjit/torch_names.tsv): each use has a row, each row a use; what is off without a name stays
behind its door; and fxjit works without."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fxjit
from fxjit import torch_compat, torch_private
from fxjit.torch_private import CANNOT_RUN, DOORS, FALLBACK, FEATURE_OFF

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import torch_names  # noqa: E402

#: Not in every release, or not in every build.
NOT_EVERYWHERE = {
    "torch.distributions.distribution._all_true_or_runtime_assert", "torch._C._cuda_getCurrentRawStream",
    "torch._library.opaque_object.is_opaque_symbolic_type",
}


@pytest.fixture(scope="module")
def used():
    return torch_names.used()


def test_each_name_that_is_read_is_listed_and_each_row_is_read(used):
    assert sorted(used) == sorted(torch_private.rows()), "python tools/torch_names.py says which file reads it"


def test_every_row_is_decided():
    for row in torch_private.rows().values():
        assert row.policy in (CANNOT_RUN, FEATURE_OFF, FALLBACK) and row.feature
        assert row.shape.split()[0] in ("class", "exception", "function", "module", "value")
    assert set(DOORS) <= {row.feature for row in torch_private.rows().values() if row.policy == FEATURE_OFF}


def test_polyfills_do_not_ask_for_names_while_they_are_traced():
    """Their bodies are traced in place of torch's: what they use is found before, when the module is imported."""
    for path in (ROOT / "src/fxjit/frontend/polyfills").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for each in ast.walk(node) if isinstance(node, ast.FunctionDef) else ():
                inside = isinstance(each, ast.Name) and each.id == "torch_private"
                assert not inside or any(each in ast.walk(other) for other in node.decorator_list), (path.name, node.name)


def test_this_torch_has_them_all():
    assert [problem for row, problem in torch_private.missing() if row.name not in NOT_EVERYWHERE] == []


def test_names_that_may_be_missing_are_read_behind_a_door_or_through_the_accessor():
    """A plain import of such a name fails where torch lacks it, and takes with it what does not need the feature."""
    found = []
    for path in sorted(torch_names.SOURCE.rglob("*.py")):
        file = path.relative_to(torch_names.SOURCE).with_suffix("").as_posix()
        for read in torch_names.reads(path):
            row = torch_private.rows().get(read.name)
            if row is None or row.policy == CANNOT_RUN or read.is_tolerant:
                continue
            if not file.startswith(DOORS.get(row.feature, ())):
                found.append(f"{file}:{read.node.lineno} reads {row.name}")
    assert found == []


@pytest.mark.parametrize("shape, found, fits", [
    ("class .append", list, True), ("class .add", list, False), ("class", len, False), ("exception", ValueError, True),
    ("function sep=", print, True), ("function rows=", torch_private.get, False), ("module", sys, True), ("value", 3, True)])
def test_a_name_is_there_only_if_it_has_its_shape(monkeypatch, shape, found, fits):
    name = "torch._C._len_torch_function_stack"
    row = torch_private.Row(name, CANNOT_RUN, "tracing", shape)
    monkeypatch.setattr(torch_private, "rows", lambda: {name: row})
    monkeypatch.setattr(torch_private, "_find", lambda name: found)
    assert (torch_private._problem.__wrapped__(name) is None) == fits


def test_without_a_name_that_nothing_works_without_the_first_call_says_so():
    text = ("import torch; del torch._C._is_torch_function_enabled; import fxjit\n"
            "fxjit.compile(lambda x: x + 1, backend='eager')(torch.ones(2))")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    said = f"this fxjit was tried with torch 2.11 to 2.15; torch {torch.__version__} lacks torch._C._is_torch_function_enabled"
    assert said in done.stderr.strip().splitlines()[-1] and "TorchLacks" in done.stderr


def test_a_feature_that_is_off_breaks_the_graph_there(monkeypatch):
    """The rest of the function is compiled, and one warning names the feature and the name."""
    name = "torch.amp.autocast_mode._enter_autocast"
    real = torch_private._problem
    monkeypatch.setattr(torch_private, "_problem", lambda asked: f"lacks {name}" if asked == name else real(asked))
    for cached in (torch_private._problem_of, torch_private._tell):
        cached.cache_clear()

    def fn(x):
        y = x @ x
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = y @ x
        return y.float() + 1

    fxjit.reset()
    x = torch.randn(4, 4)
    try:
        with pytest.warns(RuntimeWarning, match=f"without its feature 'autocast in compiled code' here: .* lacks {name}"):
            explained = fxjit.explain(fn)(x)
        assert [each.reason_id for each in explained.break_reasons][:1] == ["torch-lacks-name"]
        assert torch.equal(fxjit.compile(fn, backend="eager")(x), fn(x))
    finally:
        torch_private._problem_of.cache_clear()
        fxjit.reset()


#: Features that a small step uses: without their names fxjit has to say that they are off.
NOTICED = {"compiled graphs", "sizes that vary", "higher-order operators", "transforms of torch.func"}
#: Two names of those with a fallback: nobody notices that they are gone.
UNNOTICED = ("torch._C._dynamo.eval_frame._FrameAction", "torch.utils._device.CURRENT_DEVICE")
FEATURES = sorted({row.feature for row in torch_private.rows().values() if row.policy == FEATURE_OFF})


@pytest.fixture(scope="module")
def sweep(request: pytest.FixtureRequest) -> Iterator[Iterator[str]]:
    """What `python tools/torch_names.py sweep` says of the features and names that were asked for, line by line as it comes."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function) and "without" in item.fixturenames]
    asked = [item.callspec.params["without"] for item in tests]
    command = [sys.executable, str(ROOT / "tools" / "torch_names.py"), "sweep", *asked]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield iter(running.stdout)
        finally:
            running.kill()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("without", [*FEATURES, *UNNOTICED])
def test_a_step_of_training_without_the_names_of_a_feature(sweep: Iterator[str], without: str) -> None:
    """Two backends and sizes that vary give eager's numbers. All names of a feature are taken out at once: that each is read
    behind the feature's door is a test above. The command (`nox -s names`) takes each name out alone."""
    said = next(line for line in sweep if line.startswith(f"{without}: ")).removeprefix(f"{without}: ").strip()
    assert not said.startswith("FAILED"), said
    if without in NOTICED:
        assert f"fxjit works without its feature {without!r} here: torch {torch.__version__} lacks torch." in said
    if without in UNNOTICED:
        assert said == "nothing was missed"


def test_the_names_of_features_are_there_to_be_taken_out() -> None:
    assert NOTICED <= {*FEATURES}
    assert {torch_private.rows()[name].policy for name in UNNOTICED} == {FALLBACK}


def test_arguments_that_only_some_releases_take():
    @dataclasses.dataclass
    class OfThisRelease:
        known: int = 0

    assert torch_compat.taken(OfThisRelease, known=1, of_a_later_one=2) == {"known": 1}


def test_without_shape_environments_each_size_is_compiled_by_itself():
    """Calls, marks of sizes and wrapper subclasses go on; the graphs hold for one size each."""
    text = """if True:
        import warnings
        import torch
        from fxjit import torch_private
        find = torch_private._find
        def others(name):
            if name.endswith(("symbolic_shapes.ShapeEnv", "symbolic_shapes.GuardOnDataDependentSymNode")):
                raise AttributeError(name)
            return find(name)
        torch_private._find = others
        warnings.simplefilter("error", UserWarning)
        import fxjit
        @fxjit.compile(backend="eager", dynamic=True)
        def fn(x, n):
            y = x * n + x.shape[0]
            return y + y.sum().item()
        for size in (3, 4, 5):
            x = torch.ones(size)
            fxjit.mark_dynamic(x, 0)
            assert torch.equal(fn(x, size), x * size + size + (x * size + size).sum())
        print("entries", sum(fxjit.counters["stats"].values()) > 0)
    """
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "fxjit works without its feature" in line]
    assert len(said) == 1 and "'sizes that vary'" in said[0] and "symbolic_shapes.ShapeEnv" in said[0], done.stderr


def test_few_names_are_needed_by_everything():
    """What torch takes away should cost one feature: a name that nothing works without has no other way, and no feature."""
    assert sum(row.policy == CANNOT_RUN for row in torch_private.rows().values()) <= 45

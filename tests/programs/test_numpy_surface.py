"""NumPy's whole surface, called with simple arguments: captured with NumPy's results, or in numpy_breaks.tsv with the reason.

docs/coverage.md lists that file. `python -m tests.programs.test_numpy_surface` prints what each name does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.differential import assert_same
from tests.programs.numpy_surface import CANDIDATES, accepts, array_method, cases, made

import fxjit
from fxjit.frontend.values import numpy_calls

BREAKS = dict(line.split("\t") for line in (Path(__file__).parent / "numpy_breaks.tsv").read_text().splitlines())
if np.lib.NumpyVersion(np.__version__) >= "2.5.0":  # eigenvalues are complex, and it looks whether they come in pairs
    BREAKS["poly"] = "the program decides on numbers"
GROUPS = ["abc", "def", "ghijklm", "nopqr", "stuvwxyz", "linalg fft", "ufuncs", "ndarray"]


#: What NumPy 1 has elsewhere, or not.
pytestmark = pytest.mark.skipif(not hasattr(np.lib, "array_utils"), reason="the table is of NumPy 2")


def group(name: str) -> str:
    prefix, dot, _ = name.partition(".")
    if not dot:
        return next((each for each in GROUPS if name[0].lower() in each), "stuvwxyz")
    return {"linalg": "linalg fft", "fft": "linalg fft", "ndarray": "ndarray"}.get(prefix, "ufuncs")


def outcome(name: str, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What is wrong: nothing, a break, or another result than NumPy's."""
    mine, theirs = made(args), made(args)
    fxjit.reset()
    compiled = fxjit.compile(lambda *given: fn(*given, **kwargs), backend="eager", fullgraph=True)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        want = fn(*theirs, **kwargs)
        with fxjit.config.patch(compile_tensorless_frames=True, allow_empty_graphs=True):
            try:
                got = compiled(*mine)
            except fxjit.errors.Unsupported as error:
                return f"breaks: {error.args[0].splitlines()[0]}"
    try:
        if name not in ("empty", "empty_like"):
            assert_same((want, theirs), (got, mine), rtol=1e-4)
    except AssertionError as error:
        return f"differs: {error}"
    return ""


@pytest.mark.parametrize("part", GROUPS)
def test_each_name_is_captured_or_known_to_break(part: str) -> None:
    found: dict[str, str] = {}
    names = set()
    for name, fn, args, kwargs in cases(only=lambda name: group(name) == part):
        names.add(name)
        found[name] = found.get(name) or outcome(name, fn, args, kwargs)
    wrong = {name: what for name, what in found.items() if what and not (name in BREAKS and what.startswith("breaks"))}
    assert not wrong
    assert not [name for name in BREAKS if name in names and not found[name]], "these are captured: take them out of the file"


@pytest.mark.parametrize("name", sorted(numpy_calls._SIZED | numpy_calls._SIZED_BY_NUMBERS))
def test_the_data_does_not_decide_on_the_result_of_these(name: str) -> None:
    """numpy_calls.py takes these for functions whose result's shape and type follow from those of the arrays."""
    fn = array_method(name.removeprefix("ndarray.")) if name.startswith("ndarray.") else getattr(
        np, name, getattr(np.linalg, name, None))
    if fn is None:
        pytest.skip("a function that NumPy itself calls")
    fills = (np.zeros_like, np.ones_like, np.negative, lambda array: array[::-1].copy())
    seen = 0
    for arguments in CANDIDATES.values():
        if not accepts(fn, arguments, {}):
            continue
        for fill in fills:
            given = tuple(fill(each) if isinstance(each, np.ndarray) and each.dtype.kind == "f" else each
                          for each in made(arguments))
            of_one_array = not any(isinstance(each, np.ndarray) for each in given[1:])
            if accepts(fn, given, {}) and (of_one_array or name not in numpy_calls._SIZED_BY_NUMBERS):
                seen += 1
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    assert facts(fn(*given)) == facts(fn(*made(arguments)))
    assert seen


def facts(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return [facts(each) for each in result]
    return (type(result), result.dtype, result.shape) if isinstance(result, (np.ndarray, np.generic)) else type(result)


if __name__ == "__main__":
    for each in cases():
        print(each[0], outcome(*each) or "captured", sep="\t")

"""Code objects of the standard library, decoded and assembled again: the same instructions, positions and handlers, and
programs that do the same."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from copying import listing, round_trip, round_trip_all
from library import LIBRARY, code_objects

from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.bytecode.normalize import CANONICAL, native_opcodes


@pytest.mark.parametrize("pattern", ["[_a-d]*.py", "[e-o]*.py", "[p-z]*.py", "asyncio/*.py"])
def test_the_standard_library_comes_back_as_it_was(pattern: str) -> None:
    count = 0
    for code in code_objects(pattern):
        made = round_trip(code)
        assert listing(made) == listing(code), code
        assert made.co_stacksize == code.co_stacksize, code
        count += 1
    assert count > 200


def test_every_opcode_has_a_canonical_name() -> None:
    assert set(native_opcodes().values()) <= CANONICAL
    for code in code_objects("a*.py"):
        assert {i.opname for i in decode(code).instructions} <= CANONICAL


def fresh_module(name: str, again: bool) -> ModuleType:
    """The module, executed anew under another name; `again`: from code that went through a round trip."""
    path = LIBRARY / (name.replace(".", "/") + ".py")
    code = compile(path.read_bytes(), str(path), "exec")
    module = ModuleType(f"again_{name}")
    module.__file__ = str(path)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[module.__name__] = module
    exec(round_trip_all(code) if again else code, module.__dict__)
    return module


def wrap_text(textwrap: Any) -> Any:
    return textwrap.wrap("The quick brown fox, jumps over the lazy-dog. " * 3, 17, initial_indent="> ")


def compare_texts(difflib: Any) -> Any:
    return list(difflib.unified_diff("a b c d".split(), "a x c e d".split(), lineterm="")), difflib.get_close_matches(
        "appel", ["ape", "apple", "peach"])  # fmt: skip


def parse_arguments(argparse: Any) -> Any:
    parser = argparse.ArgumentParser(prog="p")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("-v", action="count")
    return vars(parser.parse_args(["a", "b", "--level=5", "-vv"])), parser.format_help()


def statistic(statistics: Any) -> Any:
    data = [1, 2, 2, 3.5, 9]
    return statistics.mean(data), statistics.pstdev(data), statistics.quantiles(data), statistics.multimode(data)


def fractions_(fractions: Any) -> Any:
    half = fractions.Fraction("1/2")
    return str(half**3 + 2), half < 0.75, f"{fractions.Fraction(22, 7)}", round(fractions.Fraction(22, 7), 2) * 1


def data_classes(dataclasses: Any) -> Any:
    point = dataclasses.make_dataclass("Point", [("x", int), ("y", int, dataclasses.field(default=3))], order=True)
    return repr(point(1)), dataclasses.asdict(point(1, 2)), point(1) < point(2)


def pretty(pprint: Any) -> Any:
    return pprint.pformat({"key": [list(range(20)), {"nested": ("x" * 30, "y" * 50)}]})


def heap(heapq: Any) -> Any:
    return list(heapq.merge([1, 4, 7], [2, 5], [3])), heapq.nsmallest(3, [5, 1, 4, 2], key=lambda x: -x)


def calendars(calendar: Any) -> Any:
    return calendar.TextCalendar().formatmonth(2024, 2), list(calendar.Calendar().itermonthdays2(2024, 2))


def colours(colorsys: Any) -> Any:
    return colorsys.rgb_to_hls(0.1, 0.5, 0.9), colorsys.hsv_to_rgb(0.3, 0.7, 0.5)


def tokens(tokenize: Any) -> Any:
    import io

    text = "def f(x):\n    return f'{x!r}' + 'a'  # comment\n"
    return [(t.type, t.string) for t in tokenize.generate_tokens(io.StringIO(text).readline)]


PROGRAMS = {
    "textwrap": wrap_text, "difflib": compare_texts, "argparse": parse_arguments, "statistics": statistic,
    "fractions": fractions_, "dataclasses": data_classes, "pprint": pretty, "heapq": heap, "calendar": calendars,
    "colorsys": colours, "tokenize": tokens,
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_module_that_went_through_it_works_as_before(name: str) -> None:
    program = PROGRAMS[name]
    assert program(fresh_module(name, again=True)) == program(fresh_module(name, again=False))


def test_an_exception_comes_from_the_same_place() -> None:
    import traceback

    source = "def f(x):\n    try:\n        return (x +\n                1 / x)\n    finally:\n        str(x)\n"
    frames = []
    for again in (False, True):
        scope: dict[str, Any] = {}
        code = compile(source, "somewhere.py", "exec")
        exec(round_trip_all(code) if again else code, scope)
        try:
            scope["f"](0)
        except ZeroDivisionError as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            frames.append((frame.filename, frame.name, frame.lineno, frame.end_lineno, frame.colno, frame.end_colno))
    assert frames[0] == frames[1] == ("somewhere.py", "f", 4, 4, 16, 21)

"""Debuggers, profilers and coverage see the user's file, function and lines, in compiled frames too."""

from __future__ import annotations

import bdb
import cProfile
import pstats
import sys

import pytest

from fxjit import _C
from fxjit.frontend import entries


class Key:
    pass


def user(x):
    y = x + 1
    return helper(y)


def helper(y):
    return y * 2


def region_for(mode):
    """`eager`: the frames run as they are; `compiled`: a copy of their code runs in their place, as an entry."""

    def callback(region, func, code, *rest):
        if mode == "eager" or code not in (user.__code__, helper.__code__):
            return None
        entry = _C.Entry(None, code.replace())
        entries.add(code, region.key, entry)
        return entry

    return _C.Region(Key(), callback)


@pytest.fixture(params=["eager", "compiled", "compiled before"])
def compiled(request):
    compiled = _C.CompiledFunction(user, region_for(request.param.split()[0]))
    if "before" in request.param:
        compiled(0)
    return compiled


FIRST, HELPER = user.__code__.co_firstlineno, helper.__code__.co_firstlineno
EVENTS = [
    ("call", "user", FIRST),
    ("line", "user", FIRST + 1),
    ("line", "user", FIRST + 2),
    ("call", "helper", HELPER),
    ("line", "helper", HELPER + 1),
    ("return", "helper", HELPER + 1),
    ("return", "user", FIRST + 2),
]


@pytest.mark.parametrize("under_tracers", [False, True])
def test_settrace_sees_each_line_once(compiled, under_tracers):
    events = []

    def tracer(frame, event, arg):
        if frame.f_code.co_name in ("user", "helper"):
            assert frame.f_code.co_filename == __file__
            events.append((event, frame.f_code.co_name, frame.f_lineno))
            return tracer
        return None

    _C.compile_under_tracers(under_tracers)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        assert compiled(1) == 4
    finally:
        sys.settrace(before)
        _C.compile_under_tracers(False)
    assert events == EVENTS


def test_settrace_sees_exceptions_pass(compiled):
    events = []

    def tracer(frame, event, arg):
        if frame.f_code.co_name in ("user", "helper"):
            if event == "exception":
                events.append((frame.f_code.co_name, arg[0]))
            return tracer
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        with pytest.raises(TypeError):
            compiled(None)
    finally:
        sys.settrace(before)
    assert events == [("user", TypeError)]


def test_setprofile_sees_calls_and_returns(compiled):
    events = []

    def profiler(frame, event, arg):
        if frame.f_code.co_name in ("user", "helper") and event in ("call", "return"):
            events.append((event, frame.f_code.co_name))

    sys.setprofile(profiler)
    try:
        assert compiled(1) == 4
    finally:
        sys.setprofile(None)
    assert events == [("call", "user"), ("call", "helper"), ("return", "helper"), ("return", "user")]


def test_cprofile_counts_calls_under_the_user_s_names(compiled):
    profile = cProfile.Profile()
    profile.runcall(compiled, 1)
    counts = {name: row[0] for (file, _, name), row in pstats.Stats(profile).stats.items() if file == __file__}
    assert counts["user"] == 1 and counts["helper"] == 1


def test_a_debugger_stops_at_a_breakpoint(compiled):
    stops = []

    class Debugger(bdb.Bdb):
        def user_line(self, frame):
            if self.break_here(frame):
                stops.append((frame.f_lineno, dict(frame.f_locals)))
            self.set_continue()

    before = sys.gettrace()
    debugger = Debugger()
    assert debugger.set_break(__file__, FIRST + 2) is None
    debugger.runcall(compiled, 1)
    debugger.clear_all_breaks()
    sys.settrace(before)
    assert stops == [(FIRST + 2, {"x": 1, "y": 2})]


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring is new in 3.12")
def test_monitoring_sees_starts_lines_and_returns_once(compiled):
    events = []
    monitoring = sys.monitoring
    tool, on = 4, monitoring.events

    def note(kind):
        def callback(code, *rest):
            if code.co_name in ("user", "helper"):
                events.append((kind, code.co_name, rest[0] if kind == "line" else None))

        return callback

    monitoring.use_tool_id(tool, "test")
    kinds = {"start": on.PY_START, "line": on.LINE, "return": on.PY_RETURN, "unwind": on.PY_UNWIND, "raise": on.RAISE}
    try:
        for kind, event in kinds.items():
            monitoring.register_callback(tool, event, note(kind))
        mask = 0
        for event in kinds.values():
            mask |= event
        monitoring.set_events(tool, mask)
        assert compiled(1) == 4
        with pytest.raises(TypeError):
            compiled(None)
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    assert events == [
        ("start", "user", None),
        ("line", "user", FIRST + 1),
        ("line", "user", FIRST + 2),
        ("start", "helper", None),
        ("line", "helper", HELPER + 1),
        ("return", "helper", None),
        ("return", "user", None),
        ("start", "user", None),
        ("line", "user", FIRST + 1),
        ("raise", "user", None),
        ("unwind", "user", None),
    ]


def other_user(x):
    return "compiled"


def with_an_entry():
    """`user`, with an entry of quite other code; and what its callback was asked."""
    asked = []
    region = _C.Region(Key(), lambda region, func, code, *rest: asked.append(code.co_name))
    entries.add(user.__code__, region.key, _C.Entry(None, other_user.__code__))
    return _C.CompiledFunction(user, region), asked


def traced(fn, tracer):
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        return fn()
    finally:
        sys.settrace(before)


def test_frames_whose_lines_are_followed_run_as_they_are():
    """A line of the user's program that never runs could not be stopped at."""
    compiled, asked = with_an_entry()
    assert traced(lambda: (compiled(1), compiled(x=1)), lambda *args: None) == (4, 4)
    assert asked == []
    assert compiled(1) == "compiled"


def test_compiling_under_tracers_can_be_asked_for():
    compiled, asked = with_an_entry()
    assert _C.compile_under_tracers(True) is False
    try:
        assert traced(lambda: compiled(1), lambda *args: None) == "compiled"
        assert traced(lambda: compiled.fn(1), lambda *args: None) == 4
    finally:
        assert _C.compile_under_tracers(False) is True


def test_profilers_change_nothing_and_are_not_seen_themselves():
    compiled, asked = with_an_entry()
    sys.setprofile(lambda *args: helper(1))
    try:
        assert compiled(1) == "compiled"
    finally:
        sys.setprofile(None)
    assert asked == []


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring is new in 3.12")
def test_a_breakpoint_of_a_monitoring_tool_in_one_function():
    compiled, asked = with_an_entry()
    monitoring, lines = sys.monitoring, []
    monitoring.use_tool_id(4, "test")
    try:
        monitoring.register_callback(4, monitoring.events.LINE, lambda code, line: lines.append(line))
        monitoring.set_local_events(4, user.__code__, monitoring.events.LINE)
        assert compiled(1) == 4
        assert lines == [FIRST + 1, FIRST + 2] and asked == ["helper"]
    finally:
        monitoring.set_local_events(4, user.__code__, 0)
        monitoring.free_tool_id(4)
    assert compiled(1) == "compiled"


def test_frames_and_their_names_are_visible_from_inside():
    def look():
        frame = sys._getframe()
        names = []
        while frame is not None and len(names) < 3:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        return names

    def f():
        return look()

    def outermost():
        return _C.CompiledFunction(f, region_for("eager"))()

    assert outermost() == ["look", "f", "outermost"]
    region = _C.Region(Key(), lambda region, func, code, *rest: _C.Entry(None, code.replace()) if code is f.__code__ else None)

    def outermost_compiled():
        return _C.CompiledFunction(f, region)()

    assert outermost_compiled() == ["look", "f", "outermost_compiled"]

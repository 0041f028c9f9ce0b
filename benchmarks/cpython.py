"""`python -m benchmarks.cpython`: CPython's own tests of the language, each test method compiled, against the same run plain.

Every module of the running Python's `test` package that benchmarks/cpython.toml names runs twice, in processes of its
own: plain, and with each test method compiled with backend `eager` (breaks allowed, frames without tensors too). What
became of each method (ok, fail, error, skip, expected) must be the same, each time that it runs (`--repeat`). A process that
dies or hangs costs the one test it was in; the rest of the module goes on in a new one. What differs is listed with its reason
from cpython.toml; a difference without one makes the exit status 1, and so does any crash, hang or `InternalError`.
With `--keep FOLDER`, what each test came to is written down as it ends, and a later run with the same options goes on there.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import faulthandler
import fnmatch
import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import tomllib
import unittest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fxjit
from benchmarks.timing import markdown

LISTED: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
HEADER = ("module", "tests", "same", "differ", "frames compiled", "plain, s", "compiled, s")


@dataclasses.dataclass(frozen=True)
class Options:
    """How both runs of a module are made."""

    only: str = "*"
    #: How often each test runs, one time after the other; compiled, each meets what the ones before it left compiled.
    repeat: int = 1
    #: Compiled, whether unittest's own frames are traced too, not called as they stand.
    trace_unittest: bool = False
    #: Seconds that one test may take: many times what the slowest needs, also beside other work.
    limit: float = 900.0


@dataclasses.dataclass
class Run:
    """One module in one mode: what became of each test, in order, as (name, outcome, last line of the traceback)."""

    tests: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    frames: int = 0
    seconds: float = 0.0
    #: Processor time that each test took, by its name.
    each: dict[str, float] = dataclasses.field(default_factory=dict)
    #: Messages of the InternalErrors that were raised, caught by a test or not.
    internal: list[str] = dataclasses.field(default_factory=list)
    #: Why the module gave no tests at all.
    failed: str = ""
    done: bool = False


@dataclasses.dataclass(frozen=True)
class Kept:
    """What became of one module in one mode, in a file of JSON lines: a head, then each test as it ends, then the end.

    A run that was stopped goes on behind the last test whose repetitions are all there."""

    path: Path
    head: dict[str, Any]

    def read(self, repeat: int) -> Run:
        result = Run()
        lines = self._lines()
        if lines[:1] != [self.head]:
            lines = []
        for kind, *rest in lines[1:]:
            if kind == "test":
                _add(result, *rest)
            else:
                result.frames, result.internal, result.seconds, result.failed = rest
                result.done = True
        if not result.done:
            del result.tests[len(result.tests) // repeat * repeat:]
        if not result.done:
            whole = [self.head, *(["test", *test, result.each[test[0]]] for test in result.tests)]
            self.path.write_text("".join(json.dumps(line) + "\n" for line in whole))
        return result

    def _lines(self) -> list[Any]:
        """Those that are whole: the last one may have been cut off."""
        found = []
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def write(self, *line: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _add(result: Run, name: str, outcome: str, detail: str, seconds: float) -> None:
    result.tests.append((name, outcome, detail))
    result.each[name] = seconds


@dataclasses.dataclass(frozen=True)
class Difference:
    """One test that ended otherwise; `reason` is empty where cpython.toml has none."""

    module: str
    test: str
    plain: str
    compiled: str
    detail: str
    reason: str

    def __str__(self) -> str:
        return f"{self.test}: {self.plain} plain, {self.compiled} compiled: {self.reason or 'NO REASON KNOWN'}"


@dataclasses.dataclass
class Row:
    module: str
    plain: Run
    compiled: Run
    differences: list[Difference] = dataclasses.field(default_factory=list)

    def cells(self) -> tuple[str, ...]:
        total, differ = len(self.plain.tests), len(self.differences)
        return (self.module, str(total), str(total - differ), str(differ), str(self.compiled.frames),
                f"{self.plain.seconds:.1f}", f"{self.compiled.seconds:.1f}")

    @property
    def faults(self) -> list[str]:
        """What no reason excuses: InternalErrors, and tests that killed or hung the process."""
        bad = [f"{d.test}: {d.compiled}" for d in self.differences if d.compiled in ("crash", "hang")]
        return bad + [f"InternalError: {text}" for text in self.compiled.internal]


def available(modules: list[str]) -> list[str]:
    """Those of the modules that the running Python has; which tests there are differs between versions."""
    return [each for each in modules if importlib.util.find_spec(f"test.{each}") is not None]


def compare(module: str, options: Options = Options(), keep: Path | None = None) -> Row:
    """Runs a module both ways."""
    row = Row(module, run(module, "plain", options, keep), run(module, "compiled", options, keep))
    if row.plain.failed:
        row.differences.append(Difference(module, "the module", "does not run", "", row.plain.failed, ""))
    lost = [(name, "not run", row.compiled.failed) for name, _, _ in row.plain.tests[len(row.compiled.tests):]]
    for theirs, ours in zip(row.plain.tests, row.compiled.tests + lost, strict=True):
        assert theirs[0] == ours[0], f"the two runs list other tests: {theirs[0]} and {ours[0]}"
        if theirs[1] != ours[1]:
            row.differences.append(Difference(module, theirs[0], theirs[1], ours[1], ours[2], _reason(module, theirs[0])))
    return row


def _reason(module: str, test: str) -> str:
    test = test.partition(" (run ")[0]
    for each in LISTED["difference"]:
        if module in each["modules"] and VERSION in each.get("python", [VERSION]):
            if any(fnmatch.fnmatchcase(test, pattern) for pattern in each["tests"]):
                return str(each["reason"])
    return ""


def run(module: str, mode: str, options: Options, keep: Path | None = None) -> Run:
    """One module in one mode, continued in a new process after a test that killed the last one."""
    kept = None
    result = Run()
    if keep is not None:
        head = {"python": VERSION, "mode": mode, **dataclasses.asdict(options)}
        del head["limit"]
        kept = Kept(keep / f"{module}.{mode}.jsonl", head)
        result = kept.read(options.repeat)
    start = time.perf_counter()
    dead = 0
    while not result.done:
        ended = _one_process(module, mode, options, result, kept)
        if ended == "done":
            result.done = True
        else:
            dead += 1
            if not result.tests or dead > 10:  # it cannot be imported, or dies everywhere
                result.failed, result.done = ended, True
        if result.done:
            result.seconds = time.perf_counter() - start
            if kept is not None:
                kept.write("end", result.frames, result.internal, result.seconds, result.failed)
    return result


def _one_process(module: str, mode: str, options: Options, result: Run, kept: Kept | None) -> str:
    """Tests that the result lacks are added to it; gives "done", or how the process ended before that."""
    current = ""

    def add(*test: Any) -> None:
        _add(result, *test)
        if kept is not None:
            kept.write("test", *test)

    with tempfile.TemporaryDirectory(prefix="fxjit-cpython-") as folder:
        hear, say = _SERVER.Pipe(duplex=False)
        process = _SERVER.Process(target=child, args=(say, folder, mode, module, options, len(result.tests)), daemon=False)
        process.start()
        say.close()
        ended = "hang"
        try:
            while hear.poll(options.limit):
                kind, *rest = hear.recv()
                if kind == "start":
                    current = rest[0]
                elif kind == "test":
                    add(*rest)
                    current = ""
                else:
                    result.frames += rest[0]
                    result.internal += rest[1]
                    return "done"
        except (EOFError, pickle.UnpicklingError):  # the latter where a test has changed what pickling needs
            ended = "crash"
        finally:
            process.kill()
            process.join()
        told = Path(folder, "stderr").read_text(errors="replace")[-3000:] or "no output"
    if current:
        add(current, ended, told, options.limit if ended == "hang" else 0.0)
    return ended if result.tests else told


# Processes fork from one that has imported torch already; what they compile is their own.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch", "fxjit.pipeline", "fxjit.frontend.callables.families", "fxjit.backends.eager",
                                "fxjit.backends.native.stored", "fxjit.stored.entries", "torch.fx.experimental.validator",
                                "test.support"])


def child(pipe: Connection, folder: str, mode: str, module: str, options: Options, first: int) -> None:
    """Runs inside a process of its own, in a folder of its own, and tells through the pipe what becomes of each test."""
    os.chdir(folder)
    os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    faulthandler.enable()
    sys.argv[1:] = []
    gc.freeze()  # torch's objects: a test that collects a hundred times must not look at them each time

    def send(*what: Any) -> None:
        pipe.send(what)

    # As CPython's own runner has it: tests that print what they do would break at each line.
    importlib.import_module("test.support").verbose = 0  # type: ignore[attr-defined]
    internal: list[str] = []
    raised = fxjit.errors.InternalError.__init__

    def note(self: Any, *args: Any) -> None:
        internal.append(str(args[0]) if args else "")
        raised(self, *args)

    fxjit.errors.InternalError.__init__ = note  # type: ignore[method-assign]  # for the time of the run
    loaded = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"test.{module}"))
    chosen = [each for each in _flat(loaded) if fnmatch.fnmatchcase(each.id(), options.only)]
    tests = [each for each in chosen for _ in range(options.repeat)][first:]
    ran = collections.Counter({each.id(): first % options.repeat for each in tests[:1]})
    frames = 0

    def between() -> None:
        """Each test starts without the last one's entries, its repetitions with its own; their number is kept."""
        nonlocal frames
        frames += fxjit.counters["frames"]["ok"]
        fxjit.reset()

    if mode == "plain":
        unittest.TestSuite(tests).run(_Reporter(send, ran))
    else:
        for each in chosen:
            _compile_method(each)
        # From the disk would come what other tests, and other runs, have compiled.
        with fxjit.config.patch(compile_tensorless_frames=True, allow_empty_graphs=True, trace_unittest=options.trace_unittest,
                                store_entries=False):
            unittest.TestSuite(tests).run(_Reporter(send, ran, between))
        between()
    send("end", frames, internal)
    os._exit(0)  # what a test left behind (threads, changed builtins) must not be met at exit


def _flat(suite: Any) -> Any:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        else:
            yield each


def _compile_method(test: Any) -> None:
    """The method is compiled where unittest calls it: what the test finds under its own name stays what it is."""
    call = getattr(test, "_callTestMethod", None)
    if call is not None:
        test._callTestMethod = lambda method: call(fxjit.compile(method, backend="eager"))


class _Reporter(unittest.TestResult):
    """Tells of each test as it ends, under the worst of what it and its subtests came to."""

    def __init__(self, send: Any, ran: collections.Counter[str], before: Any = None) -> None:
        super().__init__()
        #: How often each test ran, and what is done before it runs the first time.
        self.send, self.ran, self.before = send, ran, before
        self.name, self.outcome, self.detail = "", "ok", ""
        self.began = 0.0

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.name = test.id()
        self.ran[self.name] += 1
        number = self.ran[self.name]
        if number > 1:
            self.name += f" (run {number})"
        elif self.before is not None:
            self.before()
        self.outcome, self.detail = "ok", ""
        self.send("start", self.name)
        self.began = time.process_time()

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        self.send("test", self.name, self.outcome, self.detail, round(time.process_time() - self.began, 3))

    def _note(self, outcome: str, text: str = "") -> None:
        if self.outcome not in ("fail", "error"):
            self.outcome, self.detail = outcome, text

    def addFailure(self, test: Any, err: Any) -> None:
        self._note("fail", self._exc_info_to_string(err, test)[-4000:])

    def addError(self, test: Any, err: Any) -> None:
        self._note("error", self._exc_info_to_string(err, test)[-4000:])

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            (self.addFailure if issubclass(err[0], test.failureException) else self.addError)(subtest, err)

    def addSkip(self, test: Any, reason: str) -> None:
        self._note("skip", reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._note("expected")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._note("fail", "unexpected success")


def main(argv: list[str] | None = None) -> int:
    os.environ.update(PYTHONHASHSEED="0", OMP_NUM_THREADS="1")  # for the processes
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpython", description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="modules of the test package; default: all of cpython.toml")
    parser.add_argument("--fast", action="store_true", help="the share that the test suite runs")
    parser.add_argument("--only", default="*", help="a pattern of test ids, as test.test_list.ListTest.*")
    parser.add_argument("--repeat", type=int, default=1, metavar="N",
                        help="run each test N times, with what it left compiled, and compare each time")
    parser.add_argument("--trace-unittest", action="store_true", help="trace unittest's own frames, too")
    parser.add_argument("--jobs", type=int, default=1, help="modules at a time")
    parser.add_argument("--limit", type=float, default=Options.limit, metavar="SECONDS", help="how long one test may take")
    parser.add_argument("--keep", type=Path, metavar="FOLDER",
                        help="keep what each test came to there, and do not run again what is there already")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="list the N tests that take longest")
    parser.add_argument("--verbose", action="store_true", help="with the traceback of each difference")
    args = parser.parse_args(argv)
    if args.repeat < 1:
        parser.error("a test runs once at least")
    options = Options(args.only, args.repeat, args.trace_unittest, args.limit)
    modules = available(args.modules or LISTED["fast" if args.fast else "modules"])
    if args.keep is not None:  # the shortest first: most of the tests are done when half of the time has passed
        args.keep.mkdir(parents=True, exist_ok=True)
        plain = {module: run(module, "plain", options, args.keep) for module in modules}
        modules.sort(key=lambda module: (sum(plain[module].each.values()) > 1.0, len(plain[module].tests)))
    rows = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda module: compare(module, options, args.keep), modules):
            rows.append(row)
            tell(row, args.verbose)
    took = [(seconds, name) for row in rows for name, seconds in row.compiled.each.items()]
    for seconds, name in sorted(took, reverse=True)[:args.slowest]:
        print(f"{seconds:8.1f} s of the processor  {name}")
    return report(rows)


def tell(row: Row, verbose: bool) -> None:
    """Progress, as soon as a module is done."""
    lines = [" | ".join(row.cells())]
    for each in row.differences:
        lines += [f"    {each}", *(f"      {line}" for line in each.detail.splitlines() if verbose)]
    lines += [f"    FAULT {fault}" for fault in row.faults]
    print("\n".join(lines), file=sys.stderr, flush=True)


def report(rows: list[Row]) -> int:
    """The table, the differences, the sums; the exit status."""
    print(markdown(HEADER, [row.cells() for row in rows]))
    differences = [each for row in rows for each in row.differences]
    total = sum(len(row.plain.tests) for row in rows)
    print(f"\nPython {VERSION}: {total} tests in {len(rows)} modules, {total - len(differences)} end the same "
          f"({100 * (1 - len(differences) / max(total, 1)):.2f}%), {len(differences)} otherwise.\n")
    for each in differences:
        print(f"* {each}")
    faults = [fault for row in rows for fault in row.faults]
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults or any(not each.reason for each in differences) else 0


if __name__ == "__main__":
    sys.exit(main())

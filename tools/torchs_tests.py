"""`python tools/torchs_tests.py SOURCES FILE...`: PyTorch's own tests with fxjit in place of torch.compile.

SOURCES is the `test` folder of PyTorch's sources, which wheels do not have; a FILE is a path in it (`dynamo/test_sets.py`).
Each file runs twice, in processes of its own: with torch.compile and under `fxjit.install()`. The table counts the tests that
pass in both, in one, and in none; `--show` lists those that pass with torch.compile alone, each with its error. Many of these
ask about torch.compile itself: texts of graphs and errors, counters, guards' sources, kernels' code.

`--wrapped` compiles every test as a whole, as PyTorch's CI does (`PYTORCH_TEST_WITH_DYNAMO=1`), and compares with eager.
`--native` gives fxjit's own backend to files that call Inductor's `compile_fx` (`inductor/test_torchinductor.py`).

The sources' release should be torch's: names that moved since fail in both. This file is its own plugin of pytest.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent
PLUGIN = Path(__file__).stem
#: What the process that runs a file finds in its environment.
OURS, NATIVE, RESULTS, SECONDS = "FXJIT_TESTS_OURS", "FXJIT_TESTS_NATIVE", "FXJIT_TESTS_RESULTS", "FXJIT_TESTS_SECONDS"
#: Who passes a test, in the order of the table's columns.
GROUPS = ("both pass", "torch.compile alone", "fxjit alone", "neither")


class TooLongError(BaseException):
    """A test took longer than it may. No `Exception`: tests and compilers catch these."""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[1], prog=f"python tools/{PLUGIN}.py")
    parser.add_argument("sources", type=Path, help="the folder `test` of PyTorch's sources")
    parser.add_argument("files", nargs="+", help="files in it, by their paths")
    parser.add_argument("--wrapped", action="store_true", help="compile each test as a whole; beside eager")
    parser.add_argument("--native", action="store_true", help="fxjit's backend where a file calls Inductor's compile_fx")
    parser.add_argument("--select", metavar="EXPRESSION", help="pytest's -k")
    parser.add_argument("--seconds", type=int, default=900, help="the longest that a file may take (%(default)s)")
    parser.add_argument("--each", type=int, default=60, help="the longest that a test may take (%(default)s)")
    parser.add_argument("--show", action="store_true", help="list the tests that pass with torch.compile alone")
    given = parser.parse_args(argv)
    for name in given.files:
        if not (given.sources / name).is_file():
            parser.error(f"{given.sources} has no file {name}")
    return given


def results_of(given: argparse.Namespace, name: str, ours: bool, folder: Path) -> dict[str, dict[str, str]]:
    """What became of each test of a file, by its name: the outcome and the error's last lines."""
    results = folder / f"{name.replace('/', '.')}.{'fxjit' if ours else 'torch'}.jsonl"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", "--noconftest", name]
    command += ["-k", given.select] if given.select else []
    environment = os.environ | {
        OURS: str(int(ours)), NATIVE: str(int(given.native)), RESULTS: str(results), SECONDS: str(given.each),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTORCH_TEST_WITH_DYNAMO": str(int(given.wrapped and ours)),
        "PYTHONPATH": os.pathsep.join((str(TOOLS), str(given.sources), os.environ.get("PYTHONPATH", ""))),
    }  # fmt: skip
    with (folder / f"{results.stem}.txt").open("w") as log:
        try:
            subprocess.run(command, cwd=given.sources, env=environment, stdout=log, stderr=subprocess.STDOUT,
                           timeout=given.seconds, check=False)
        except subprocess.TimeoutExpired:
            print(f"{name}: not all tests ran in {given.seconds} seconds", file=sys.stderr)
    if not results.exists():
        raise SystemExit(f"{name}: no test ran; {log.name} has the reason")
    rows = map(json.loads, results.read_text().splitlines())
    return {row["test"]: row for row in rows}


def compare(theirs: dict[str, dict[str, str]], ours: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Tests by who passes them, of those that ran in both and were skipped in neither."""
    both, alone, fxjit_alone, neither = GROUPS
    names = {(True, True): both, (True, False): alone, (False, True): fxjit_alone, (False, False): neither}
    groups: dict[str, list[str]] = {group: [] for group in GROUPS}
    for test, row in theirs.items():
        outcomes = row["outcome"], ours.get(test, {"outcome": "skipped"})["outcome"]
        if "skipped" not in outcomes:
            groups[names[outcomes[0] == "passed", outcomes[1] == "passed"]].append(test)
    return groups


def main(argv: list[str] | None = None) -> None:
    given = parse(argv)
    folder = Path.cwd() / "torchs_tests"
    folder.mkdir(exist_ok=True)
    print(f"| file | {' | '.join(GROUPS)} |\n{'| --- ' * (len(GROUPS) + 1)}|")
    for name in given.files:
        theirs, ours = (results_of(given, name, which, folder) for which in (False, True))
        groups = compare(theirs, ours)
        print(f"| {name} | {' | '.join(str(len(tests)) for tests in groups.values())} |", flush=True)
        for test in groups["torch.compile alone"] if given.show else ():
            print(f"    {test.split('::', 1)[-1]}: {ours[test]['error']}")


# -- the plugin, in the process that runs a file ---------------------------------------------------------------------------


def pytest_configure(config: Any) -> None:
    if os.environ.get(OURS) == "1":
        import fxjit
        fxjit.install()
        if os.environ.get(NATIVE) == "1":
            _use_native()


def _use_native() -> None:
    """Inductor's `compile_fx`, which its tests call by name, is fxjit's backend."""
    import torch._inductor.compile_fx

    from fxjit.backends.registry import lookup_backend
    native = lookup_backend("native")

    def compile_fx(model: Any, inputs: Any, *args: object, **kwargs: object) -> Any:
        return native(model, inputs)

    torch._inductor.compile_fx.compile_fx = compile_fx


def _interrupt(signum: int, frame: object) -> None:
    raise TooLongError("longer than a test may take")


def pytest_runtest_call(item: Any) -> None:
    signal.signal(signal.SIGALRM, _interrupt)
    signal.alarm(int(os.environ[SECONDS]))


def pytest_runtest_teardown(item: Any) -> None:
    signal.alarm(0)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        error = " / ".join(_last_lines(str(report.longrepr))) if report.outcome == "failed" else ""
        with Path(os.environ[RESULTS]).open("a") as out:
            out.write(json.dumps({"test": report.nodeid, "outcome": report.outcome, "error": error}) + "\n")


def _last_lines(text: str) -> list[str]:
    """The end of an error, without PyTorch's hint of how to run the test."""
    def lines() -> Iterator[str]:
        for line in text.split("\nTo execute this test")[0].splitlines():
            if line.strip(" ^~"):
                yield line.strip()[:200]
    return list(lines())[-2:]


if __name__ == "__main__":
    main()

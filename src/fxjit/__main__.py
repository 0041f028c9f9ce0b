"""`python -m fxjit run script.py`, `report script.py`, `demo`, `doctor`, `cache`, `replay` and `bisect`."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

from . import __version__, config
from .errors import InvalidArgument


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m fxjit", description="Compile PyTorch programs.")
    parser.add_argument("--version", action="version", version=f"fxjit {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    run = commands.add_parser("run", help="run a script, and the processes it starts, whose torch.compile calls use fxjit")
    run.add_argument("script", help="a Python file, or -m and a module's name")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    report = commands.add_parser("report", help="run a script likewise, with a page: fxjit_report/report.html")
    report.add_argument("script", help="a Python file, or -m and a module's name")
    report.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    commands.add_parser("demo", help="train two small models: eager, with fxjit and with torch.compile", add_help=False)
    doctor = commands.add_parser("doctor", help="check this machine, and say what to do about anything that is missing")
    doctor.add_argument("--json", action="store_true", help="the findings as JSON")
    cache = commands.add_parser("cache", help="the cache of compiled kernels: show its size, or clear it")
    cache.add_argument("action", nargs="?", choices=("show", "clear"), default="show")
    again = commands.add_parser("replay", help="a debug folder's graphs through the stages of the backend again, as text")
    again.add_argument("folder", type=Path, help="the folder of one compile, as FXJIT_DEBUG=1 writes it")
    again.add_argument("--stage", help="one stage alone: captured, aten, passes, loops, schedule, cpp or program")
    again.add_argument("--from", dest="first", metavar="STAGE", help="this stage and those after it")
    again.add_argument("--out", type=Path, help="write a file a stage into this folder instead of printing")
    bisect = commands.add_parser("bisect", help="which kernel of a debug folder's graphs differs from eager, which statement")
    bisect.add_argument("folder", type=Path, help="the folder of one compile, as FXJIT_DEBUG=1 writes it")
    bisect.add_argument("--seed", type=int, default=0, help="of the numbers that the graphs are run on")
    if arguments[:1] == ["run"] and len(arguments) > 1 and arguments[1] not in ("-h", "--help"):
        return _run(arguments[1], arguments[2:], run)  # argparse would take the script's options as its own
    if arguments[:1] == ["report"] and len(arguments) > 1 and arguments[1] not in ("-h", "--help"):
        return _report(arguments[1], arguments[2:], report)
    known, rest = parser.parse_known_args(arguments)
    if known.command == "demo":
        from . import demo

        return int(demo.main(rest) or 0)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if known.command in ("replay", "bisect"):
        return _replay(known, parser)
    from .doctor import cache_main, doctor_main

    return doctor_main(known.json) if known.command == "doctor" else cache_main(known.action)


def _replay(known: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from .replay import ALL_STAGES, bisect_main, replay_main

    try:
        if known.command == "bisect":
            return bisect_main(known.folder, known.seed)
        for stage in (known.stage, known.first):
            if stage is not None and stage not in ALL_STAGES:
                parser.error(f"there is no stage {stage}; there are {', '.join(ALL_STAGES)}")
        return replay_main(known.folder, known.stage, known.first, known.out)
    except InvalidArgument as problem:
        print(problem, file=sys.stderr)
        return 2


def _report(script: str, arguments: list[str], parser: argparse.ArgumentParser) -> int:
    """The page is written however the script ends."""
    from .report import finish, start

    folder = config.report or "fxjit_report"
    config.set_environment(FXJIT_REPORT=os.path.abspath(os.path.expanduser(folder)))  # for the processes that the script starts
    start(folder, title=" ".join([script, *arguments]), name="report.html")
    try:
        return _run(script, arguments, parser)
    finally:
        written = finish()
        if written is not None:
            print(f"fxjit: the page of the run is {written}", file=sys.stderr)


def _run(script: str, arguments: list[str], parser: argparse.ArgumentParser) -> int:
    from .install import install

    is_module = script == "-m"
    if is_module and not arguments:
        parser.error("run -m needs a module's name")
    if not is_module and not Path(script).is_file():
        parser.error(f"there is no file {script}")
    install()
    _install_in_children()
    if is_module:
        sys.argv = arguments
        sys.path.insert(0, "")
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [script, *arguments]
        sys.path.insert(0, str(Path(script).resolve().parent))
        runpy.run_path(script, run_name="__main__")
    return 0


def _install_in_children() -> None:
    """Processes that the script starts use fxjit as well: the ranks of torchrun, spawned workers."""
    here = str(Path(__file__).resolve().parent / "bootstrap")
    before = config.child_environment().get("PYTHONPATH")
    others = [each for each in before.split(os.pathsep) if each != here] if before else []
    config.set_environment(PYTHONPATH=os.pathsep.join([here, *others]))


if __name__ == "__main__":
    sys.exit(main())

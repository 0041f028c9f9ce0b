"""`python -m fxjit run script.py`, `demo`, `doctor` and `cache`."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from . import __version__


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m fxjit", description="Compile PyTorch programs.")
    parser.add_argument("--version", action="version", version=f"fxjit {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    run = commands.add_parser("run", help="run a script whose torch.compile calls use fxjit")
    run.add_argument("script", help="a Python file, or -m and a module's name")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    commands.add_parser("demo", help="train two small models: eager, with fxjit and with torch.compile", add_help=False)
    doctor = commands.add_parser("doctor", help="check this machine, and say what to do about anything that is missing")
    doctor.add_argument("--json", action="store_true", help="the findings as JSON")
    cache = commands.add_parser("cache", help="the cache of compiled kernels: show its size, or clear it")
    cache.add_argument("action", nargs="?", choices=("show", "clear"), default="show")
    if arguments[:1] == ["run"] and len(arguments) > 1 and arguments[1] not in ("-h", "--help"):
        return _run(arguments[1], arguments[2:], run)  # argparse would take the script's options as its own
    known, rest = parser.parse_known_args(arguments)
    if known.command == "demo":
        from . import demo

        return int(demo.main(rest) or 0)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    from .doctor import cache_main, doctor_main

    return doctor_main(known.json) if known.command == "doctor" else cache_main(known.action)


def _run(script: str, arguments: list[str], parser: argparse.ArgumentParser) -> int:
    from .install import install

    is_module = script == "-m"
    if is_module and not arguments:
        parser.error("run -m needs a module's name")
    if not is_module and not Path(script).is_file():
        parser.error(f"there is no file {script}")
    install()
    if is_module:
        sys.argv = arguments
        sys.path.insert(0, "")
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [script, *arguments]
        sys.path.insert(0, str(Path(script).resolve().parent))
        runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())

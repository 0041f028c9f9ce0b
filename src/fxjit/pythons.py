"""The Pythons that fxjit runs on, and the sentence that refuses another.

Read before anything else is, by setup.py too: it has to be valid syntax for every Python 3.
"""

from __future__ import annotations

import sys

SUPPORTED = ((3, 11), (3, 12), (3, 13))


def refusal(running: tuple[int, int], implementation: str = "CPython", has_gil: bool = True) -> str:
    """Why fxjit does not run on that Python, and what to do; an empty text for one that it runs on."""
    this = "{} {}.{}".format(implementation, *running)
    names = ["{}.{}".format(*each) for each in SUPPORTED]
    wanted = "fxjit runs on CPython {} and {}; this is {}".format(", ".join(names[:-1]), names[-1], this)
    if implementation != "CPython":
        return wanted + ". It reads CPython's bytecode and frames, which other implementations do not have."
    if not has_gil:
        return wanted + " without the GIL, on which its C extension relies. Use the ordinary build."
    if running < SUPPORTED[0]:
        return wanted + ". Make an environment with one of those."
    if running > SUPPORTED[-1]:
        return wanted + ", whose bytecode and frames it does not know yet. Make an environment with one of those."
    return ""


def refusal_here() -> str:
    """The same of the running Python."""
    implementation = {"cpython": "CPython", "pypy": "PyPy"}.get(sys.implementation.name, sys.implementation.name)
    return refusal(sys.version_info[:2], implementation, "free-threading" not in sys.version)

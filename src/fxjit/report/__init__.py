"""The page of a run: one HTML file that says what was compiled, why graphs broke and frames were compiled again, where the
seconds of compiling went, and which kernels ran for how long. `python -m fxjit report script.py`, or FXJIT_REPORT=folder."""

from .record import Run
from .recorder import finish, start

__all__ = ["Run", "finish", "start"]

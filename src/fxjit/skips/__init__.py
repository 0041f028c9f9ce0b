"""May this frame be touched, and what becomes of a call to this function: the rules, each with its reason."""

from .frames import FrameVerdict, frame_verdict, is_given_tensors, is_librarys, mentions_tensors
from .replaced import any_function_replaced, python_replaced, torch_replaced
from .verdict import Verdict, function_verdict

__all__ = ["FrameVerdict", "Verdict", "any_function_replaced", "frame_verdict", "function_verdict", "is_given_tensors",
           "is_librarys", "mentions_tensors", "python_replaced", "torch_replaced"]

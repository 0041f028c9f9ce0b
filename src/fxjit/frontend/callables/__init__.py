"""What is done for calls of builtins and of the standard library: see table.py. `families.py` imports every file.

The values are imported first: they sign handlers of their own up in the table, and the families need them whole.
"""

from fxjit.frontend import values as values

"""Tiers (`config.tiers`): a graph runs as it was captured while a helper process compiles it, and its code is exchanged
between two calls.

`process.py` has the helper process, `deferred.py` a graph on its way from the first tier to the second, and who waits for it.
The driver (backends/aot/driver.py) defers a graph where the pipeline offers it (`offered`).
"""

from .deferred import Deferred, Offer, Refused, deferrable, offered, wait_for_compiles

__all__ = ["Deferred", "Offer", "Refused", "deferrable", "offered", "wait_for_compiles"]

"""The functions that kernels in Triton call by name: only those that a kernel uses, and those they use, stand before it."""

from __future__ import annotations

import re

from ..ops import PHILOX_ROUNDS

HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
PHILOX_ROUND = """    p = c0.to(tl.uint64) * 0xD2511F53
    q = c2.to(tl.uint64) * 0xCD9E8D57
    c0 = (q >> 32).to(tl.uint32) ^ c1 ^ k0
    c1 = q.to(tl.uint32)
    c2 = (p >> 32).to(tl.uint32) ^ c3 ^ k1
    c3 = p.to(tl.uint32)
    k0 = k0 + 0x9E3779B9
    k1 = k1 + 0xBB67AE85
"""
FUNCTIONS: dict[str, str] = {
    "fx_max": """
def fx_max(a, b):
    return tl.where((a >= b) | (a != a), a, b)
""",
    "fx_min": """
def fx_min(a, b):
    return tl.where((a <= b) | (a != a), a, b)
""",
    "fx_floordiv": """
def fx_floordiv(a, b):
    q = a // b
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)
""",
    "fx_mod": """
def fx_mod(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    "fx_mod_float": """
def fx_mod_float(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    "fx_floordiv_float": """
def fx_floordiv_float(a, b):
    whole = tl.div_rn(a, b)
    r = libdevice.fmod(a, b)
    q = tl.div_rn(a - r, b)
    q = tl.where((r != 0) & ((b < 0) != (r < 0)), q - 1.0, q)
    f = tl.floor(q)
    f = tl.where(q - f > 0.5, f + 1.0, f)
    return tl.where(b == 0, whole, tl.where(q == 0, libdevice.copysign(q, whole), f))
""",
    "fx_floordiv_double": """
def fx_floordiv_double(a, b):
    whole = a / b
    r = libdevice.fmod(a, b)
    q = (a - r) / b
    q = tl.where((r != 0) & ((b < 0) != (r < 0)), q - 1.0, q)
    f = tl.floor(q)
    f = tl.where(q - f > 0.5, f + 1.0, f)
    return tl.where(b == 0, whole, tl.where(q == 0, libdevice.copysign(q, whole), f))
""",
    "fx_shl": """
def fx_shl(a, b, BITS: tl.constexpr):
    return tl.where((b < 0) | (b >= BITS), a ^ a, a << b)
""",
    "fx_shr": """
def fx_shr(a, b, BITS: tl.constexpr):
    return a >> tl.where((b < 0) | (b > BITS - 1), (b ^ b) + (BITS - 1), b)
""",
    "fx_philox": f"""
def fx_philox(seed, number, index):
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    c0 = index.to(tl.uint32)
    c1 = (index >> 32).to(tl.uint32)
    c2 = number.to(tl.uint32)
    c3 = (number >> 32).to(tl.uint32)
{PHILOX_ROUND * PHILOX_ROUNDS}    return (c1.to(tl.uint64) << 32 | c0.to(tl.uint64)).to(tl.int64)
""",
    # Arithmetic on sizes.
    "fx_idiv": """
def fx_idiv(a, b):
    return a // b - ((a % b != 0) & ((a < 0) != (b < 0)))
""",
    "fx_imod": """
def fx_imod(a, b):
    return (a % b + b) % b
""",
    "fx_imax": """
def fx_imax(a, b):
    return tl.maximum(a, b)
""",
    "fx_imin": """
def fx_imin(a, b):
    return tl.minimum(a, b)
""",
    # What two partial results of a reduction make, and the reduction of a block along its rows.
    "fx_add2": "\ndef fx_add2(a, b):\n    return a + b\n",
    "fx_mul2": "\ndef fx_mul2(a, b):\n    return a * b\n",
    "fx_or2": "\ndef fx_or2(a, b):\n    return a | b\n",
    "fx_and2": "\ndef fx_and2(a, b):\n    return a & b\n",
    "fx_logaddexp": """
def fx_logaddexp(a, b):
    low = tl.where((b < a) | (b != b), b, a)
    high = tl.where((b > a) | (b != b), b, a)
    both = libdevice.log1p(libdevice.exp(low - high)) + high
    return tl.where((low == high) & (tl.abs(low) == float("inf")), a, both)
""",
    # Of equal values the later one counts in a scan.
    "fx_later_max": "\ndef fx_later_max(a, b):\n    return fx_max(b, a)\n",
    "fx_later_min": "\ndef fx_later_min(a, b):\n    return fx_min(b, a)\n",
    "fx_scan_sum": "\ndef fx_scan_sum(a):\n    return tl.associative_scan(a, 1, fx_add2)\n",
    "fx_scan_prod": "\ndef fx_scan_prod(a):\n    return tl.associative_scan(a, 1, fx_mul2)\n",
    "fx_scan_max": "\ndef fx_scan_max(a):\n    return tl.associative_scan(a, 1, fx_later_max)\n",
    "fx_scan_min": "\ndef fx_scan_min(a):\n    return tl.associative_scan(a, 1, fx_later_min)\n",
    "fx_scan_logaddexp": "\ndef fx_scan_logaddexp(a):\n    return tl.associative_scan(a, 1, fx_logaddexp)\n",
    "fx_row_logaddexp": "\ndef fx_row_logaddexp(a):\n    return tl.reduce(a, 1, fx_logaddexp, keep_dims=True)\n",
    "fx_row_sum": "\ndef fx_row_sum(a):\n    return tl.reduce(a, 1, fx_add2, keep_dims=True)\n",
    "fx_row_prod": "\ndef fx_row_prod(a):\n    return tl.reduce(a, 1, fx_mul2, keep_dims=True)\n",
    "fx_row_max": "\ndef fx_row_max(a):\n    return tl.reduce(a, 1, fx_max, keep_dims=True)\n",
    "fx_row_min": "\ndef fx_row_min(a):\n    return tl.reduce(a, 1, fx_min, keep_dims=True)\n",
    "fx_row_any": "\ndef fx_row_any(a):\n    return tl.reduce(a.to(tl.int32), 1, fx_or2, keep_dims=True) != 0\n",
    "fx_row_all": "\ndef fx_row_all(a):\n    return tl.reduce(a.to(tl.int32), 1, fx_and2, keep_dims=True) != 0\n",
}


def needed(text: str) -> list[str]:
    """The functions that the text calls, each after those it calls itself."""
    order: list[str] = []

    def visit(source: str, but: str = "") -> None:
        for name in re.findall(r"\bfx_\w+", source):
            if name != but and name not in order:
                visit(FUNCTIONS[name], name)
                order.append(name)

    visit(text)
    return order


def with_prelude(text: str) -> str:
    """A whole module: imports, the functions used, the kernel."""
    return HEAD + "".join(f"\n\n@triton.jit{FUNCTIONS[name]}" for name in needed(text)) + f"\n\n@triton.jit\n{text}"

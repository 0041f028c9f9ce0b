"""Minimax polynomials of elementary functions, from the constant up; made by tools/minimax.py, which says of what.

Beside each: the largest error that it makes in the function's result, relative to it.
"""

from __future__ import annotations

from typing import Final

#: 2^-33.3, from -0.34658 to 0.34658
EXP: Final = (
    "0x1.555554p-3f",
    "0x1.5554e8p-5f",
    "0x1.11130ep-7f",
    "0x1.6d4cbap-10f",
    "0x1.9dfba2p-13f",
)
#: 2^-30.4, from -0.292893 to 0.414214
LOG: Final = (
    "0x1.555546p-2f",
    "-0x1.ffffeep-3f",
    "0x1.99a542p-3f",
    "-0x1.5562ep-3f",
    "0x1.233306p-3f",
    "-0x1.fb43dcp-4f",
    "0x1.e64d6cp-4f",
    "-0x1.e2e498p-4f",
    "0x1.1b43a6p-4f",
)
#: 2^-32.0, from 0 to 0.111111
ATANH: Final = (
    "0x1.555558p-1f",
    "0x1.9996d8p-2f",
    "0x1.25051p-2f",
    "0x1.b72bb8p-3f",
    "0x1.f08af8p-3f",
)
#: 2^-28.6, from 0 to 0.8
MILLS: Final = (
    "0x1p+1f",
    "-0x1.188456p+2f",
    "0x1.4ef7e2p+2f",
    "-0x1.98afdp+1f",
    "0x1.335ed6p-2f",
    "0x1.62f2a8p-1f",
    "-0x1.cf771cp-5f",
    "-0x1.462676p-2f",
    "0x1.11c79ap-4f",
    "0x1.8a4e86p-4f",
    "-0x1.4b7cd8p-5f",
)
#: 2^-28.8, from 0 to 1
CENTRE: Final = (
    "0x1.988454p-2f",
    "-0x1.10588p-4f",
    "0x1.46e08ap-7f",
    "-0x1.38dc66p-10f",
    "0x1.0634b2p-13f",
    "-0x1.17e3b4p-16f",
    "0x1.6e70fap-19f",
)
#: 2^-36.3, from 0 to 0.029438
LOG2_WIDE: Final = (
    "0x1.71547652bee71p+1",
    "0x1.ec709d124b801p-1",
    "0x1.2777803e789dcp-1",
    "0x1.a58d64fd9ba53p-2",
    "0x1.5ceaa867edafdp-2",
)
#: 2^-32.5, from 0 to 0.630436
SINE: Final = (
    "0x1.111172p-7f",
    "-0x1.a0569ep-13f",
    "0x1.7b563ep-19f",
)
#: 2^-32.7, from 0 to 0.630436
COSINE: Final = (
    "0x1.55554ap-5f",
    "-0x1.6c0c12p-10f",
    "0x1.99dd76p-16f",
)
#: 2^-27.6, from 0 to 0.25
ASIN: Final = (
    "0x1.5555c8p-3f",
    "0x1.330204p-4f",
    "0x1.747bbap-5f",
    "0x1.8c3e2ap-6f",
    "0x1.595c8cp-5f",
)
#: 2^-23.4, from -0.5 to 0.5
EXP2: Final = (
    "0x1.62e42ap-1f",
    "0x1.ebf9cp-3f",
    "0x1.c6b6c6p-5f",
    "0x1.3ce942p-7f",
    "0x1.5be496p-10f",
)
#: 2^-28.9, from -0.5 to 0.5
EXP2_WIDE: Final = (
    "0x1.62e430af2ba2bp-1",
    "0x1.ebfbdc3c1e1ccp-3",
    "0x1.c6aee88a5a66dp-5",
    "0x1.3b2d4cf6abafbp-7",
    "0x1.5f3e5492a461ap-10",
    "0x1.41fbbc6d50aa6p-13",
)

"""Kernels that differ only in sizes, as one kernel: the numbers in which they differ become arguments, among `S`.

A convolutional network has the same loops at each of its stages, over other numbers of channels and pixels; compiling them
is most of its first call. Numbers that all of them have stay in the text. So do small ones, which loops are unrolled by, what
integers are divided by, which a compiler multiplies for, and powers of two, for the same reason: means divide by counts.
Arrays are as long as the longest.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .kernel import Kernel
from .launch import Launch

#: Numbers below this stay in the text: two vectors of 16 floats.
LEAST = 32
#: Numbers and names of C; within a number, `+` and `-` may follow an exponent.
_TOKEN = re.compile(r"\.?\d(?:[eEpP][+-]|[\w.])*|[A-Za-z_]\w*|\[|\]")
#: A floating-point number, as float.hex prints it, but for powers of two.
_FLOAT = re.compile(r"(0x1\.(?!0+p)[0-9a-f]+p[+-]\d+)(f?)")
#: Lines whose numbers are sizes, strides or amounts of work, all in 64 bits; elsewhere only places in brackets are.
_SIZES = ("for (int64_t ", "#pragma omp parallel", "const int64_t ")
_ARRAY, _LENGTH = "alignas(", "length of an array"
_DIVISION = re.compile(r"[/%]|fx_(?:idiv|imod|floordiv|mod|fmod|truncdiv)\b")


@dataclass(slots=True)
class _Template:
    """A kernel's text around the numbers that may become arguments: those, as they are written, with the type of each."""

    pieces: tuple[str, ...]
    numbers: tuple[str, ...]
    types: tuple[str, ...]


def share_sizes(launches: Sequence[Launch]) -> None:
    """Gives kernels for the CPU that differ only in sizes one text, and their launches the sizes."""
    families: dict[object, dict[str, _Template]] = {}
    keys: dict[str, object] = {}
    for launch in launches:
        assert isinstance(launch.kernel, Kernel)
        body, symbols = launch.kernel.body, len(launch.kernel.sizes)
        template = _template(body)
        keys[body] = template.pieces, template.types, symbols
        families.setdefault(keys[body], {})[body] = template
    shared: dict[object, _Shared] = {}
    for launch in launches:
        assert isinstance(launch.kernel, Kernel)
        body, symbols = launch.kernel.body, len(launch.kernel.sizes)
        key = keys[body]
        if len(families[key]) > 1:
            if key not in shared:
                shared[key] = _Shared([*families[key].values()], symbols)
            arguments = shared[key].arguments(families[key][body])
            launch.kernel = Kernel(shared[key].body, launch.kernel.buffers, [*launch.kernel.sizes, *arguments])


class _Shared:
    """The text of a family of kernels. Numbers that are equal to each other in all of them are one argument."""

    def __init__(self, family: Sequence[_Template], symbols: int) -> None:
        self.places: list[int] = []
        names: dict[tuple[str, ...], str] = {}
        head, texts = [], []
        for place, column in enumerate(zip(*(each.numbers for each in family), strict=True)):
            ctype = family[0].types[place]
            if ctype == _LENGTH:
                texts.append(str(max(map(int, column))))
            elif len({*column}) == 1:
                texts.append(column[0])
            else:
                if column not in names:
                    names[column] = f"size{len(names)}"
                    head.append(_declaration(names[column], ctype, symbols + len(self.places)))
                    self.places.append(place)
                texts.append(names[column])
        pieces = family[0].pieces
        self.body = "".join([*head, pieces[0], *(part for pair in zip(texts, pieces[1:], strict=True) for part in pair)])

    def arguments(self, template: _Template) -> list[int]:
        return [_bits(template.numbers[place]) for place in self.places]


def _declaration(name: str, ctype: str, place: int) -> str:
    if ctype == "int64_t":
        return f"  const int64_t {name} = S[{place}];\n"
    return f"  {ctype} {name};\n  __builtin_memcpy(&{name}, S + {place}, sizeof {name});\n"


def _bits(number: str) -> int:
    """The number as it stands in `S`: the first bytes of a little-endian word."""
    found = _FLOAT.fullmatch(number)
    if found is None:
        return int(number)
    value = struct.pack("<f4x" if found[2] else "<d", float.fromhex(found[1]))
    return int.from_bytes(value, "little", signed=True)


def _template(body: str) -> _Template:
    pieces, numbers, types, done = [], [], [], 0
    for start, end, ctype in _places(body):
        pieces.append(body[done:start])
        numbers.append(body[start:end])
        types.append(ctype)
        done = end
    return _Template((*pieces, body[done:]), tuple(numbers), tuple(types))


def _places(body: str) -> Iterator[tuple[int, int, str]]:
    """Where numbers stand that may be arguments, with their types, and lengths of arrays."""
    start = 0
    for line in body.splitlines(keepends=True):
        text = line.lstrip()
        divides, everywhere, depth = _DIVISION.search(text) is not None, text.startswith(_SIZES), 0
        is_array = text.startswith(_ARRAY)
        for token in _TOKEN.finditer(line):
            word = token[0]
            depth += (word == "[") - (word == "]")
            ctype = ""
            if found := _FLOAT.fullmatch(word):
                ctype = "float" if found[2] else "double"
            elif (everywhere or depth) and not divides and word.isdecimal() and int(word) >= LEAST:
                ctype = _LENGTH if is_array else "int64_t"
            if ctype:
                yield start + token.start(), start + token.end(), ctype
        start += len(line)

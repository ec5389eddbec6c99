"""JSON texts by their values: two texts have one canonical form exactly if their values are equal.

Numbers are equal by their exact value, strings by their characters, arrays item by item, and objects if they have
equal values under the same names; of a name that comes twice the last value counts.
"""

from libc.stdint cimport uint8_t

cdef enum:
    FEW_DIGITS = 4000   # that Python makes an integer of

cdef dict ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f"}


cdef bytes canonical(bytes text):
    """The canonical form of a valid JSON text."""
    return _Reader(text).value()


cdef class _Reader:
    """Reads a valid text from its beginning."""

    cdef bytes text
    cdef Py_ssize_t at

    def __cinit__(self, bytes text not None):
        self.text, self.at = text, 0

    cdef uint8_t peek(self):
        """The next byte that is no white space; 0 at the end."""
        cdef uint8_t byte
        while self.at < len(self.text):
            byte = self.text[self.at]
            if byte != 0x20 and not 0x09 <= byte <= 0x0D:
                return byte
            self.at += 1
        return 0

    cdef bytes value(self):
        """The value that begins here. Containers are kept in a list, so values may be nested as deep as they are."""
        cdef list around = [], names = []
        cdef bytes found
        cdef uint8_t byte
        while True:
            byte = self.peek()
            found = None
            if byte == 0x5B or byte == 0x7B:
                self.at += 1
                around.append([] if byte == 0x5B else {})
            else:
                found = self.scalar(byte)
            while around:
                inner = around[len(around) - 1]
                if found is not None:
                    if isinstance(inner, dict):
                        inner[names.pop()] = found
                    else:
                        inner.append(found)
                    if self.peek() == 0x2C:
                        self.at += 1
                byte = self.peek()
                if isinstance(inner, dict) and byte == 0x22:
                    names.append(spelled(self.string()))
                    if self.peek() == 0x3A:
                        self.at += 1
                    break
                if isinstance(inner, list) and byte != 0x5D and byte:
                    break
                self.at += 1
                around.pop()
                found = written(inner)
            else:
                return found

    cdef bytes scalar(self, uint8_t byte):
        cdef Py_ssize_t first = self.at
        if byte == 0x22:
            return spelled(self.string())
        while self.at < len(self.text) and self.text[self.at] not in b",]} \t\r\n":
            self.at += 1
        if self.at == first:
            raise ValueError(f"text: expected a JSON value at byte {first}, got none")
        return number(self.text[first:self.at]) if byte < 0x61 else self.text[first:self.at]

    cdef bytes string(self):
        """The characters of a string: UTF-8, lone surrogates too."""
        cdef list found = []
        cdef Py_ssize_t first
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != 0x22:
            first = self.at
            while self.at < len(self.text) and self.text[self.at] not in (0x22, 0x5C):
                self.at += 1
            found.append(self.text[first:self.at])
            if self.at < len(self.text) and self.text[self.at] == 0x5C:
                found.append(self.escape())
        self.at += 1
        return b"".join(found)

    cdef bytes escape(self):
        cdef int unit, low
        cdef bytes letter = self.text[self.at + 1:self.at + 2]
        self.at += 2
        if letter != b"u":
            return ESCAPES.get(letter, letter)
        unit = int(self.text[self.at:self.at + 4], 16)
        self.at += 4
        if 0xD800 <= unit < 0xDC00 and self.text[self.at:self.at + 2] == b"\\u":
            low = int(self.text[self.at + 2:self.at + 6], 16)
            if 0xDC00 <= low < 0xE000:
                self.at += 6
                unit = 0x10000 + ((unit - 0xD800) << 10) + low - 0xDC00
        return chr(unit).encode("utf-8", "surrogatepass")


cdef bytes spelled(bytes characters):
    return b'"' + characters.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


cdef bytes written(object container):
    if isinstance(container, dict):
        return b"{" + b",".join([name + b":" + container[name] for name in sorted(container)]) + b"}"
    return b"[" + b",".join(container) + b"]"


cdef bytes number(bytes text):
    """A number as its digits without zeros at either end, and a hexadecimal exponent."""
    cdef bytes sign = b"-" if text.startswith(b"-") else b"", mantissa, exponent, whole, part, digits, few
    cdef object power = 0, ten = 10
    mantissa, _, exponent = text.lower().lstrip(b"-").partition(b"e")
    whole, _, part = mantissa.partition(b".")
    digits = (whole + part).lstrip(b"0")
    if not digits:
        return b"0"
    for first in range(0, len(exponent), FEW_DIGITS):
        few = exponent[first:first + FEW_DIGITS].lstrip(b"+-")
        power = power * ten ** len(few) + int(few or b"0")
    power = (-power if exponent.startswith(b"-") else power) - len(part) + len(digits) - len(digits.rstrip(b"0"))
    return sign + digits.rstrip(b"0") + b"e%x" % power


def canonical_form(bytes text not None):
    """The canonical form of a JSON text, as bytes.

    Raises
    ------
    ValueError : a value or an escape is missing; not everything that is no JSON is found.
    """
    return canonical(text)

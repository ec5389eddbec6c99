"""Write unicode_table.py of the tokenizer: the general category and the case of every code point, one letter
per range.

The pre-tokenizers of language models are defined over Unicode categories, and a vocabulary is only
reproduced exactly with the Unicode version its reference implementation uses. llama.cpp's table is
that of Unicode 15.1 (compared code point by code point), so this script insists on it: run it with
Python 3.13, or with the package unicodedata2==15.1.0 installed.
"""

from __future__ import annotations

import sys
import textwrap
from itertools import groupby
from pathlib import Path

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata  # type: ignore[no-redef]

VERSION = "15.1.0"
TARGET = Path(__file__).parent.parent / "oxillama" / "text" / "tokenizer" / "unicode_table.py"

HEAD = '''"""Unicode {version} categories and cases, written by tools/make_unicode_table.py; data, not code.

`RANGES` lists the code space from 0 to 0x10FFFF as words of one letter and the length of the range in
base 36. The letter is the category (N, P, S, M, Z, C, or X for an unassigned code point); of letters it is U
for upper and title case, l for lower case, L for those without case.
Source: the Unicode Character Database, https://www.unicode.org/Public/15.1.0/ucd/UnicodeData.txt
"""

from __future__ import annotations

VERSION = "{version}"

RANGES = """
{ranges}
"""
'''


def letter(code_point: int) -> str:
    category = unicodedata.category(chr(code_point))
    return {"Cn": "X", "Lu": "U", "Lt": "U", "Ll": "l"}.get(category, category[0])


def base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def ranges() -> str:
    """Words of a letter and the length of its range, in lines."""
    words = [kind + base36(len(list(run))) for kind, run in groupby(map(letter, range(0x110000)))]
    return textwrap.fill(" ".join(words), 108)


def main() -> None:
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"unicodedata is of Unicode {unicodedata.unidata_version}, the table needs {VERSION}")
    TARGET.write_text(HEAD.format(version=VERSION, ranges=ranges()))


if __name__ == "__main__":
    main()

"""Write unicode_table.py and case_table.py of the tokenizer: the general category and the case of every
code point, one letter per range.

The pre-tokenizers of language models are defined over Unicode categories, and a vocabulary is only
reproduced exactly with the Unicode version its reference implementation uses. llama.cpp's table is
that of Unicode 15.1 (compared code point by code point), so this script insists on it: run it with
Python 3.13, or with the package unicodedata2==15.1.0 installed.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata  # type: ignore[no-redef]

VERSION = "15.1.0"
TARGET = Path(__file__).parent.parent / "oxillama" / "text" / "tokenizer" / "unicode_table.py"
CASES = TARGET.with_name("case_table.py")

HEAD = '''"""Unicode {version} general categories, written by tools/make_unicode_table.py; data, not code.

`RANGES` lists the code space from 0 to 0x10FFFF as words of one category letter (L, N, P, S, M, Z,
C, or X for an unassigned code point) and the length of the range in base 36.
Source: the Unicode Character Database, https://www.unicode.org/Public/15.1.0/ucd/UnicodeData.txt
"""

from __future__ import annotations

VERSION = "{version}"

RANGES = """
{ranges}
"""
'''


CASES_HEAD = '''"""Unicode {version} cases of letters, written by tools/make_unicode_table.py; data, not code.

`CASES` lists the code space from 0 to 0x10FFFF as words of one letter (U for an upper or title case letter,
l for a lower case one, o for everything else) and the length of the range in base 36.
Source: the Unicode Character Database, https://www.unicode.org/Public/15.1.0/ucd/UnicodeData.txt
"""

from __future__ import annotations

CASES = """
{cases}
"""
'''


def case(code_point: int) -> str:
    return {"Lu": "U", "Lt": "U", "Ll": "l"}.get(unicodedata.category(chr(code_point)), "o")


def letter(code_point: int) -> str:
    category = unicodedata.category(chr(code_point))
    return "X" if category == "Cn" else category[0]


def base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def ranges(kind_of: Callable[[int], str]) -> str:
    """Words of a kind and the length of its range, in lines."""
    words = [kind + base36(len(list(run))) for kind, run in groupby(map(kind_of, range(0x110000)))]
    return textwrap.fill(" ".join(words), 108)


def main() -> None:
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"unicodedata is of Unicode {unicodedata.unidata_version}, the table needs {VERSION}")
    TARGET.write_text(HEAD.format(version=VERSION, ranges=ranges(letter)))
    CASES.write_text(CASES_HEAD.format(version=VERSION, cases=ranges(case)))


if __name__ == "__main__":
    main()

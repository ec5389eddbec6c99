"""Pre-tokenizers: how byte-level BPE vocabularies cut text into words, by `tokenizer.ggml.pre` name.

A table of regular expressions and flags, and the one function that applies them. What is reproduced
is llama.cpp (src/llama-vocab.cpp and src/unicode.cpp as of llama-cpp-python 0.3.36), where it
differs from a model's own tokenizer.json too; the expressions are rewritten for Python's `re`.

An expression that names a category (`\\p{L}`) runs over the class view of the text, in which every
character outside ASCII is one of a few stand-ins; `\\p{L}` then is a plain set: the ASCII letters and
one stand-in. The other expressions run over the text itself. `\\s` and `\\d` are ASCII in both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from oxillama.base.lazy_import import lazy
from oxillama.errors import TokenizerError

if TYPE_CHECKING:
    from oxillama.text.tokenizer.characters import View

class_view: Callable[..., Any] = lazy("oxillama.text.tokenizer.characters:class_view")
space_view: Callable[..., Any] = lazy("oxillama.text.tokenizer.characters:space_view")

# What `\p{...}` holds: the stand-in for characters outside ASCII, and the ASCII members.
_SETS = {
    "N": r"\xd10-9",
    "L": r"\xd2A-Za-z",
    "P": r"\xd3!-#%-*,-/:;?@\[-\]_{}",
    "M": r"\xd4",
    "S": r"\xd5$+<=>^`|~",
    "NotLower": r"\xd2A-Z",  # any letter but a-z
    "NotUpper": r"\xd2a-z",  # any letter but A-Z
}
# View with ideographs apart: \xd6 is an ideograph that is a letter, \xd7 an ideograph that is no letter.
_HAN_SETS = {**_SETS, "L": r"\xd2\xd6A-Za-z", "Han": r"\xd6\xd7", "NotHan": r"\xd2A-Za-z"}
# In the view that sets cases apart, where \xd8 is an upper case letter and \xd9 a lower case one. Marks, and
# letters that have no case, may stand with both.
_CASED_SETS = {
    **_SETS,
    "L": r"\xd2\xd8\xd9A-Za-z",
    "Upper": r"\xd2\xd4\xd8A-Z",
    "Lower": r"\xd2\xd4\xd9a-z",
}
_JOINED_SETS = {**_SETS, "Joined": r"\xd4"}  # in the view in which the characters that join letters are marks

Finder = Callable[[str, int, int], Iterator[tuple[int, int]]]


def _view_of(expression: str) -> View:
    """The class view that an expression runs over."""
    views: dict[str, View] = {r"\p{Han}": "han", r"\p{Upper}": "cased", r"\p{Joined}": "joined"}
    return next((view for word, view in views.items() if word in expression), "")


def _view(step: str | Finder, text: str) -> str:
    """The text in which a step searches, for a text that is not all ASCII."""
    if callable(step):
        return str(class_view(text))
    return str(class_view(text, _view_of(step)) if r"\p{" in step else space_view(text))


@cache
def _compile(expression: str) -> re.Pattern[str]:
    """Compile an expression, each `\\p{X}` in it replaced by the members of its set."""
    views = {"": _SETS, "han": _HAN_SETS, "cased": _CASED_SETS, "joined": _JOINED_SETS}
    sets = views[_view_of(expression)]
    parts: list[str] = []
    inside = False  # members of a [...] set
    for token in re.findall(r"\\p\{\w+\}|\\.|.", expression, re.DOTALL):
        if token.startswith(r"\p{"):
            members = sets[token[3:-1]]
            token = members if inside else f"[{members}]"
        elif token in "[]":
            inside = token == "["
        parts.append(token)
    return re.compile("".join(parts), re.ASCII)


def _digit_groups(view: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Groups of three digits counted from the right end of each number.

    As in llama.cpp, the text before a number stays in one piece with the number's first group.
    """
    for match in _compile(r"\p{N}+").finditer(view, start, end):
        first, last = match.span()
        for cut in range(first + ((last - first) % 3 or 3), last + 1, 3):
            yield start, cut
            start = cut


def _thousands(view: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The places in each run of ASCII digits from which a multiple of three digits follows."""
    for match in _compile(r"[0-9]+").finditer(view, start, end):
        first, last = match.span()
        for cut in range(first + (last - first) % 3, last, 3):
            yield cut, cut


@dataclass(frozen=True, repr=False)
class PreTokenizer:
    """A row of the table: the way a vocabulary cuts text, and the flags that belong to its name.

    Attributes:
        steps: Expressions (or functions) applied in turn; each makes what it matches a piece of its own.
        ignore_merges: A piece that is a token is that token, whatever the merges would make of it.
        clean_spaces: llama.cpp removes the space before punctuation and contractions when it turns tokens to
            text.
        add_bos, add_sep: Whether encoding adds these tokens when the file does not say.
        has_bos: False where no beginning-of-sequence id is assumed when the file does not name one.
        byte_level: Tokens are spelled in the GPT-2 byte alphabet; otherwise in plain UTF-8 with `<0xHH>`
            tokens.
        escape_spaces: Tokens spell a space as U+2581.
        newline_tokens: A run of newlines that is a token is that token.
    """

    steps: tuple[str | Finder, ...]
    ignore_merges: bool = False
    clean_spaces: bool = True
    add_bos: bool = False
    add_sep: bool = False
    has_bos: bool = True
    byte_level: bool = True
    escape_spaces: bool = False
    newline_tokens: bool = False

    def split(self, text: str) -> list[str]:
        """Cut `text` into pieces whose concatenation is `text`."""
        ends = [len(text)]
        for step in self.steps:
            ends = _cut(step, text, ends)
        pieces, start = [], 0
        for end in ends:
            pieces.append(text[start:end])
            start = end
        return pieces


def _cut(step: str | Finder, text: str, ends: list[int]) -> list[int]:
    """Refine the pieces of `text` that end at `ends` (ascending offsets) by one step."""
    view = text if text.isascii() else _view(step, text)
    if callable(step):
        find = step
    else:
        pattern = _compile(step)

        def find(view: str, start: int, end: int) -> Iterator[tuple[int, int]]:
            return map(_SPAN, pattern.finditer(view, start, end))

    finer: list[int] = []
    add = finer.append
    start = 0
    for end in ends:
        if end - start > 1:
            for first, last in find(view, start, end):
                if first > start:
                    add(first)
                if last > first:
                    add(last)
                start = last
        if start < end:
            add(end)
        start = end
    return finer


_SPAN = re.Match.span

# --------------------------------------------------------------------------- expressions

_SUFFIX = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_NEWLINES = r"[^\n]+|\n+"


def _cased(upper: str, lower: str, suffix: str = f"(?:{_SUFFIX})?") -> str:
    """A word ends where lower case turns to upper; both alternatives of it."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return f"{lead}[{upper}]*[{lower}]+{suffix}|{lead}[{upper}]+[{lower}]*{suffix}"


_GPT2 = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_K2_HORIZON = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{Joined}}]+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_SUFFIX}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = "|".join(
    (_SUFFIX, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _SPACES)
)
_SYMBOLS_AND_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = "|".join(
    (_cased(r"\p{NotLower}", r"\p{NotUpper}", ""), r"\p{N}", _SYMBOLS_AND_SLASH, _SPACES),
)
_GPT4O = "|".join(
    (_cased(r"\p{NotLower}", r"\p{NotUpper}"), r"\p{N}{1,3}", _SYMBOLS_AND_SLASH, _SPACES),
)
_GRANITE_EMBED = "|".join(
    (_cased(r"\p{NotLower}\p{M}", r"\p{NotUpper}\p{M}"), r"\p{N}{1,3}", _SYMBOLS_AND_SLASH, _SPACES),
)
_LETTERS_AND_MARKS = _cased(r"\p{L}\p{M}", r"\p{L}\p{M}")
_KIMI = "|".join(
    (
        r"\p{Han}+",
        rf"[^\r\n\p{{L}}\p{{N}}\p{{Han}}]?\p{{NotHan}}+(?:{_SUFFIX})?",
        r"\p{N}{1,3}",
        _SYMBOLS,
        _SPACES,
    )
)
_JAIS2_SPACES = "|".join(
    [r"\s*[\r\n]+", *(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s"],
)
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CJK = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_WIDE = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASIAN_SCRIPTS = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    r"\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    r"\u1100-\u11ff]+"
)
_KOREAN_OR_CJK = (
    r"[\uac00-\ud7a3\u3131-\u318e]+"
    r"|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    rf"|[\u3105-\u312f]+|{_CJK}"
)
_PUNCTUATED = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK3 = (
    rf"{_PUNCTUATED}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_SPARK = (
    rf"{_PUNCTUATED}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
)
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    r"\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    r"\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    r"\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    r"\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    r"\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    r"\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    r"\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    r"\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    r"\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    r"\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    r"\U0001e900-\U0001e943]+"
)
_DEEPSEEK_PUNCTUATION = r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_BAILING = rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)

# --------------------------------------------------------------------------- the table

DEFAULT = PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_gpt2 = PreTokenizer((_GPT2,))
_llama3 = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_starcoder = PreTokenizer((r"\p{N}", _GPT2))
_qwen2 = PreTokenizer((_QWEN2,), clean_spaces=False)
_deepseek3 = PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3), clean_spaces=False)
_glm = PreTokenizer((_LLAMA3,), has_bos=False)
_gpt4o = PreTokenizer((_GPT4O,), clean_spaces=False)
_tiny_aya = PreTokenizer(
    (_digit_groups, rf"{_LETTERS_AND_MARKS}|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SLASH}|{_SPACES}"),
    clean_spaces=False,
)
_bailing = PreTokenizer((_BAILING,), clean_spaces=False)
_gemma4 = PreTokenizer((_NEWLINES,), byte_level=False, escape_spaces=True, newline_tokens=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": DEFAULT,
    **dict.fromkeys(
        ("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum"),
        _gpt2,
    ),
    **dict.fromkeys(("modern-bert", "mpt", "olmo", "jais", "exaone4"), _gpt2),
    **dict.fromkeys(("trillion", "granite-docling"), replace(_gpt2, clean_spaces=False)),
    **dict.fromkeys(("jina-v1-en", "jina-v2-code", "roberta-bpe"), replace(_gpt2, add_sep=True)),
    **dict.fromkeys(
        (
            "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
            "jina-v5-nano",
        ),
        _llama3,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer((_LLAMA3,))),
    "chatglm-bpe": _glm,
    **dict.fromkeys(("glm4", "glm5"), replace(_glm, ignore_merges=True)),
    **dict.fromkeys(("starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _starcoder),
    **dict.fromkeys(("command-r", "smollm"), replace(_starcoder, clean_spaces=False)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "grok-2", "solar-open"), _qwen2,
    ),
    **dict.fromkeys(("stablelm2", "megrez"), PreTokenizer((_QWEN2,))),
    "qwen35": PreTokenizer((_QWEN35,), clean_spaces=False),
    "ufakzeka": PreTokenizer((rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}",), clean_spaces=False),
    "seed-coder": PreTokenizer(
        (rf"{_SUFFIX}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",), clean_spaces=False,
    ),
    "laguna": PreTokenizer((_NEWLINES, _QWEN2), clean_spaces=False),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", rf"{_SUFFIX}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}"), ignore_merges=True,
    ),
    "jais-2": PreTokenizer((rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_JAIS2_SPACES}",)),
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_PUNCTUATION, r"\s+\Z", _CJK_WIDE, r"\p{N}+"),
        clean_spaces=False,
    ),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WIDE, r"\p{N}"), clean_spaces=False,
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"), _deepseek3),
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _CJK, _SPARK, r"\p{N}"), clean_spaces=False),
    "youtu": PreTokenizer(
        (_KOREAN_OR_CJK, rf"{_LETTERS_AND_MARKS}|\p{{N}}|{_SYMBOLS_AND_SLASH}|{_SPACES}"), clean_spaces=False,
        ignore_merges=True,
    ),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("bloom", "gpt3-finnish"), PreTokenizer((_BLOOM,))),
    "poro-chat": PreTokenizer((_BLOOM,), clean_spaces=False),
    "viking": PreTokenizer((_BLOOM, r"\p{N}"), clean_spaces=False),
    "tekken": PreTokenizer((_TEKKEN,), clean_spaces=False, ignore_merges=True, add_bos=True),
    "chameleon": PreTokenizer(
        (
            r"<sentinel:[0-9]+>", r"IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True, clean_spaces=False,
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _gpt4o),
    "granite-embed-multi-97m": PreTokenizer((_GRANITE_EMBED,), clean_spaces=False, ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _tiny_aya),
    "kimi-k2": PreTokenizer((_KIMI,), clean_spaces=False),
    "k2-horizon": PreTokenizer((_K2_HORIZON,), clean_spaces=False),
    "superbpe": PreTokenizer((r"\p{N}+", _thousands), clean_spaces=False),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _bailing),
    "afmoe": PreTokenizer((_digit_groups, _ASIAN_SCRIPTS, _DEEPSEEK3), clean_spaces=False),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _gemma4),
    "sarvam-moe": replace(_gemma4, clean_spaces=False, newline_tokens=False),
    "whitespace": PreTokenizer((r"\S+",), byte_level=False),
}  # fmt: skip


def _by_case(row: PreTokenizer, digits: str, suffix: str) -> PreTokenizer:
    """A row with the marks and the cases of all letters, as a tokenizer.json has them."""
    words = _cased(r"\p{Upper}", r"\p{Lower}", suffix)
    return replace(row, steps=("|".join((words, digits, _SYMBOLS_AND_SLASH, _SPACES)),))


AS_SOURCE: dict[str, PreTokenizer] = {
    "tekken": _by_case(PRE_TOKENIZERS["tekken"], r"\p{N}", ""),
    "gpt-4o": _by_case(PRE_TOKENIZERS["gpt-4o"], r"\p{N}{1,3}", f"(?:{_SUFFIX})?"),
}
"""Rows that cut as the models' own tokenizers, where llama.cpp cuts before marks, and tells upper from lower
case of ASCII letters alone. Files say so by `tokenizer.ggml.pre_as_source`."""


def pre_tokenizer(name: str | None, as_source: bool = False) -> PreTokenizer:
    """The row that `tokenizer.ggml.pre` or `AS_SOURCE` names; the default row if the file names no row.

    Raises:
        TokenizerError: The name is not in the table: splitting text otherwise than in training would silently
            harm results.
    """
    if as_source:
        if name not in AS_SOURCE:
            expected = ", ".join(AS_SOURCE)
            raise TokenizerError(f"tokenizer.ggml.pre: expected {expected} with pre_as_source, got {name!r}")
        return AS_SOURCE[name]
    if not name:
        return DEFAULT
    if name not in PRE_TOKENIZERS:
        raise TokenizerError(f"tokenizer.ggml.pre: expected a known pre-tokenizer, got {name!r}")
    return PRE_TOKENIZERS[name]

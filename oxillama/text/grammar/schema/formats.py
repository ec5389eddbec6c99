"""The regular formats of JSON Schema, as ECMA-262 patterns of whole strings.

Where a format's definition is not regular (a leap second occurs only at 23:59 UTC, `xn--` labels must
decode), the pattern is the regular part: every string that it matches is of the format. A negated format uses
a second pattern, which matches every string that may be of the format.

Sources: RFC 3339 (date-time, date, time, duration), RFC 5321 and 6531 (email), RFC 1123 (hostname), RFC 2673
and 4291 (ipv4, ipv6), RFC 3986 and 3987 (uri, iri), RFC 4122 (uuid), RFC 6901 (json-pointer),
draft-handrews-relative-json-pointer-01, RFC 6570 (uri-template).
"""

from __future__ import annotations

from functools import lru_cache

from oxillama.text.grammar.dfa import automaton
from oxillama.text.grammar.expressions import alternatives, sequence
from oxillama.text.grammar.regex import parse_regex
from oxillama.text.grammar.rules import Dfa, Node

_YEAR_MONTH_DAY = (
    r"\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
)
_LEAP_DAY = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
_DATE = f"(?:{_YEAR_MONTH_DAY}|{_LEAP_DAY})"
_MINUTE, _ZONE = r"(?:[01]\d|2[0-3]):[0-5]\d", r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME = rf"(?:{_MINUTE}:[0-5]\d(?:\.\d+)?{_ZONE}|23:59:60(?:\.\d+)?(?:[Zz]|[+-]00:00))"
_ANY_TIME = rf"{_MINUTE}:(?:[0-5]\d|60)(?:\.\d+)?{_ZONE}"
_CLOCK = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION = rf"P(?:\d+W|{_CLOCK}|(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)(?:{_CLOCK})?)"

# A label whose third and fourth characters are not "--", which marks encoded labels (xn--).
_ALNUM = "[a-zA-Z0-9]"
_INNER = "[a-zA-Z0-9-]"


def _label(most: int) -> str:
    """The pattern of a label of at most ``most`` characters."""
    return (
        f"(?:{_ALNUM}{{1,2}}|{_ALNUM}{_INNER}{_ALNUM}(?:{_INNER}{{0,{most - 4}}}{_ALNUM})?"
        f"|{_ALNUM}{_INNER}-{_ALNUM}(?:{_INNER}{{0,{most - 5}}}{_ALNUM})?)"
    )


_ANY_LABEL = f"{_ALNUM}(?:{_INNER}{{0,61}}{_ALNUM})?"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = "[0-9a-fA-F]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"
_BEFORE_LS32 = "|".join(  # the groups before the last 32 bits, with at most one "::"
    [
        f"(?:{_H16}:){{6}}",
        f"::(?:{_H16}:){{5}}",
        f"(?:{_H16})?::(?:{_H16}:){{4}}",
        *(f"(?:{_H16}(?::{_H16}){{0,{n}}})?::(?:{_H16}:){{{4 - n}}}" for n in range(1, 5)),
    ]
)
_IPV6 = f"(?:(?:{_BEFORE_LS32}){_LS32}|(?:{_H16}(?::{_H16}){{0,5}})?::{_H16}|(?:{_H16}(?::{_H16}){{0,6}})?::)"

_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_LITERAL = rf"\[{_IPV4}\]|\[IPv6:{_IPV6}\]"
_UTF8_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~\u{80}-\u{10ffff}-]+"
_UTF8_QUOTED = r'"(?:[ !#-\[\]-~\u{80}-\u{10ffff}]|\\[ -~])*"'
_UTF8_LABEL = r"[a-zA-Z0-9\u{a1}-\u{167f}\u{3040}-\u{d7ff}]+"

_UCS = (
    r"\u{a0}-\u{d7ff}\u{f900}-\u{fdcf}\u{fdf0}-\u{ffef}"
    + "".join(rf"\u{{{plane:x}0000}}-\u{{{plane:x}fffd}}" for plane in range(1, 14))
    + r"\u{e1000}-\u{efffd}"
)


def _references(ucs: str, private: str) -> tuple[str, str]:
    """The patterns of a URI (IRI) and of a reference; ``ucs``, ``private``: non-ASCII characters."""
    percent = "%[0-9a-fA-F]{2}"
    name = rf"[a-zA-Z0-9._~!$&'()*+,;={ucs}-]"
    pchar = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=:@{ucs}-]|{percent})"
    no_colon = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=@{ucs}-]|{percent})"
    future = r"[vV][0-9a-fA-F]+\.[a-zA-Z0-9._~!$&'()*+,;=:-]+"
    host = rf"(?:\[(?:{_IPV6}|{future})\]|(?:{name}|{percent})*)"
    user = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=:{ucs}-]|{percent})*"
    authority = rf"//(?:{user}@)?{host}(?::\d*)?"
    tail = rf"(?:\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    rooted = rf"/(?:{pchar}+(?:/{pchar}*)*)?"
    hierarchy = rf"(?:{authority}(?:/{pchar}*)*|{rooted}|{pchar}+(?:/{pchar}*)*|)"
    absolute = rf"[a-zA-Z][a-zA-Z0-9+.-]*:{hierarchy}{tail}"
    relative = rf"(?:{authority}(?:/{pchar}*)*|{rooted}|{no_colon}+(?:/{pchar}*)*|){tail}"
    return absolute, rf"(?:{absolute}|{relative})"


_URI, _URI_REFERENCE = _references("", "")
_IRI, _IRI_REFERENCE = _references(_UCS, r"\u{e000}-\u{f8ff}\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}")

_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_VARCHAR = "(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})"
_VARIABLE = rf"{_VARCHAR}(?:\.?{_VARCHAR})*(?:\*|:[1-9]\d{{0,3}})?"
_TEMPLATE = (
    rf"(?:[!#$&-;=?-\[\]_a-z~{_UCS}\u{{e000}}-\u{{f8ff}}]|%[0-9a-fA-F]{{2}}"
    rf"|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)

PATTERNS = {
    "date-time": f"{_DATE}[Tt]{_TIME}", "date": _DATE, "time": _TIME, "duration": _DURATION, "ipv4": _IPV4,
    "ipv6": _IPV6, "uuid": "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", "uri": _URI,
    "uri-reference": _URI_REFERENCE, "iri": _IRI, "iri-reference": _IRI_REFERENCE, "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})", "uri-template": _TEMPLATE,
}  # fmt: skip
# Patterns of strings that may be of a format, where these are more than the format's pattern matches.
_ANY = {"date-time": f"{_DATE}[Tt]{_ANY_TIME}", "time": _ANY_TIME, "idn-email": ".+@.+"}
# The maximum length: RFC 1123 (2.1) for hostnames, RFC 5321 (4.5.3.1.3) for addresses.
MOST = {"hostname": 253, "email": 254, "idn-email": 254}
# Formats of the specifications that no pattern here covers.
UNENFORCEABLE = frozenset({"idn-hostname", "regex"})


# Formats with a hostname: the pattern before the hostname, and the pattern of alternatives to a hostname.
_WITH_HOSTNAME = {
    "hostname": ("", ""),
    "email": (f"(?:{_ATOM}(?:\\.{_ATOM})*|{_QUOTED})@", _LITERAL),
    "idn-email": (
        f"(?:{_UTF8_ATOM}(?:\\.{_UTF8_ATOM})*|{_UTF8_QUOTED})@",
        f"{_LITERAL}|{_UTF8_LABEL}(?:\\.{_UTF8_LABEL})*",
    ),
}
FORMATS = frozenset((*PATTERNS, *_WITH_HOSTNAME))


@lru_cache(maxsize=128)
def format_node(name: str, may_be: bool = False) -> Node:
    """The strings of one of the `FORMATS`, as an expression over characters; `MOST` bounds their length.

    ``may_be``: include strings of which no regular expression can decide whether they are of the format.
    """
    if may_be and name in _ANY:
        return parse_regex(_ANY[name], search=False)
    if name in PATTERNS:
        return parse_regex(PATTERNS[name], search=False)
    before, instead = _WITH_HOSTNAME[name]
    hosts: list[Node] = [_hostname(_ANY_LABEL if may_be else _label(63))]
    hosts += [parse_regex(r"\[[!-~]*\]" if may_be else instead, search=False)] if instead else []
    return sequence([parse_regex(before, search=False), alternatives(hosts)])


@lru_cache(maxsize=2)
def _hostname(pattern: str) -> Dfa:
    """Labels joined by dots: a dot leads from each end of a label back to the start."""
    label = automaton(parse_regex(pattern, search=False))
    dot = (ord("."), ord("."), 0)
    edges = tuple(tuple(sorted((*e, dot))) if q in label.accepting else e for q, e in enumerate(label.edges))
    return Dfa(edges, label.accepting)

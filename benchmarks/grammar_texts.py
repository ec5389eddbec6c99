"""The grammars and documents of `benchmarks.grammar`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """A grammar as GBNF, a JSON schema or a structural tag in the older shape; a document of its language.

    Where there is GBNF and a schema, both stand for the same texts.
    """

    name: str
    gbnf: str
    document: str
    schema: dict[str, Any] | None = None
    is_json: bool = False
    tag: dict[str, Any] | None = None


JSON = r"""
root   ::= ws value ws
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (member (ws "," ws member)* ws)? "}"
member ::= string ws ":" ws value
array  ::= "[" ws (value (ws "," ws value)* ws)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
ws     ::= [ \t\n\r]*
"""


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that has all of these properties, and no other."""
    return {
        **{"type": "object", "properties": properties},
        **{"required": list(properties), "additionalProperties": False},
    }


TEXT = {"type": "string"}
ADDRESS = closed_object({
    "street": {"type": "string", "maxLength": 60},
    "city": TEXT,
    "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
    "country": {"enum": ["DE", "FR", "JP", "US"]},
})  # fmt: skip
ITEM = closed_object({
    "title": TEXT,
    "quantity": {"type": "integer"},
    "price": {"type": "number"},
    "tags": {"type": "array", "items": {"enum": ["new", "used", "gift", "fragile"]}},
    "refund": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
})  # fmt: skip
SCHEMA = closed_object({
    "id": {"type": "integer"},
    "customer": closed_object({"name": TEXT, "email": TEXT, "billing": ADDRESS, "shipping": ADDRESS}),
    "items": {"type": "array", "items": ITEM},
    "status": {"enum": ["open", "paid", "shipped", "returned"]},
    "notes": TEXT,
})  # fmt: skip

SCHEMA_GBNF = r"""
root     ::= "{" ws "\"id\"" sep integer "," ws "\"customer\"" sep customer "," ws
           "\"items\"" sep items "," ws "\"status\"" sep status "," ws "\"notes\"" sep string ws "}"
customer ::= "{" ws "\"name\"" sep string "," ws "\"email\"" sep string "," ws
           "\"billing\"" sep address "," ws "\"shipping\"" sep address ws "}"
address  ::= "{" ws "\"street\"" sep short "," ws "\"city\"" sep string "," ws "\"zip\"" sep zip "," ws
           "\"country\"" sep country ws "}"
items    ::= "[" ws (item (ws "," ws item)*)? ws "]"
item     ::= "{" ws "\"title\"" sep string "," ws "\"quantity\"" sep integer "," ws
           "\"price\"" sep number "," ws "\"tags\"" sep tags "," ws
           "\"refund\"" sep ("null" | "true" | "false") ws "}"
tags     ::= "[" ws (tag (ws "," ws tag)*)? ws "]"
tag      ::= "\"" ("new" | "used" | "gift" | "fragile") "\""
country  ::= "\"" ("DE" | "FR" | "JP" | "US") "\""
status   ::= "\"" ("open" | "paid" | "shipped" | "returned") "\""
zip      ::= "\"" [0-9]{5} "\""
short    ::= "\"" char{0,60} "\""
string   ::= "\"" char* "\""
char     ::= [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
integer  ::= "-"? ("0" | [1-9] [0-9]*)
number   ::= integer ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
sep      ::= ws ":" ws
ws       ::= [ \t\n\r]*
""".replace("\n           ", " ")

C_LIKE = r"""
root       ::= ws (declaration | comment)*
declaration ::= type name ws "(" ws (parameter ("," ws parameter)*)? ")" ws block
parameter  ::= type name ws
type       ::= ("int" | "float" | "double" | "char" | "void") (gap | ws "*" ws)
block      ::= "{" ws statement* "}" ws
statement  ::= type name ws ("[" ws expression "]" ws)? ("=" ws expression)? ";" ws
           | assignment ";" ws
           | call ";" ws
           | "return" (gap expression)? ";" ws
           | "while" ws "(" ws expression ")" ws block
           | "for" ws "(" ws type? assignment ";" ws expression ";" ws assignment ")" ws block
           | "if" ws "(" ws expression ")" ws block ("else" ws block)?
           | block
           | comment
comment    ::= "//" [^\n]* "\n" ws | "/*" ([^*] | "*"+ [^*/])* "*"+ "/" ws
assignment ::= name ws ("[" ws expression "]" ws)? ("=" | "+=" | "-=" | "*=") ws expression
call       ::= name ws "(" ws (expression ("," ws expression)*)? ")" ws
expression ::= sum (("<=" | "<" | "==" | "!=" | ">=" | ">" | "&&" | "||") ws sum)*
sum        ::= product (("+" | "-") ws product)*
product    ::= factor (("*" | "/" | "%") ws factor)*
factor     ::= name ws ("[" ws expression "]" ws)? | number ws | call
           | "(" ws expression ")" ws | [-!&*] ws factor | "\"" ([^"\\\n] | "\\" [a-z0-9"\\])* "\"" ws
name       ::= [a-zA-Z_] [a-zA-Z0-9_]*
number     ::= [0-9]+ ("." [0-9]+)?
gap        ::= [ \t\n]+
ws         ::= [ \t\n]*
""".replace("\n           ", " ")

JSON_DOCUMENT = json.dumps(
    {
        "title": "Field notes on the migration of cranes",
        "year": 2024,
        "draft": False,
        "authors": [
            {"name": "Ingrid Sørensen", "mail": "ingrid@example.org", "orcid": None},
            {"name": "山田 太郎", "mail": "taro@example.jp", "orcid": "0000-0002-1825-0097"},
        ],
        "sites": [
            {"name": "Hornborga", "at": [58.31, 13.55], "counts": [120, 4300, 18650, 26400, 9100]},
            {"name": "Izumi", "at": [32.1, 130.27], "counts": [14000, 15250, -1, 8.5e3]},
        ],
        "abstract": 'They come "early", or not at all: the wind\n decides. See C:\\notes\\2024.',
        "nested": {"a": {"b": {"c": [[], {}, [[1, 2], [3, [4]]], True]}}},
    },
    indent=2,
    ensure_ascii=False,
)

SCHEMA_DOCUMENT = json.dumps(
    {
        "id": 48213,
        "customer": {
            "name": "Adaeze Okonkwo",
            "email": "adaeze.okonkwo@example.com",
            "billing": {"street": "12 Rue des Lilas", "city": "Lyon", "zip": "69003", "country": "FR"},
            "shipping": {"street": "Hauptstraße 7", "city": "Köln", "zip": "50667", "country": "DE"},
        },
        "items": [
            {
                "title": "Walnut desk organiser, small",
                "quantity": 2,
                "price": 39.9,
                "tags": ["new", "gift"],
                "refund": None,
            },
            {"title": "Ceramic mug", "quantity": 6, "price": 8.25, "tags": ["fragile"], "refund": True},
            {"title": "Second-hand atlas", "quantity": 1, "price": 120, "tags": ["used"], "refund": False},
        ],
        "status": "paid",
        "notes": "Please ring twice; the dog is friendly.",
    },
    ensure_ascii=False,
)

C_DOCUMENT = """int gcd(int a, int b) {
    while (b != 0) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// the sum of all that is not negative
double total(double* values, int count) {
    double result = 0;
    for (int i = 0; i < count; i += 1) {
        if (values[i] >= 0) {
            result += values[i] * 1.5;
        } else {
            log_value("negative: %f\\n", values[i]);
        }
    }
    /* the caller checks
       for overflow */
    return result / (count + 1);
}

void main_loop(char* name) {
    int steps = 10;
    int table[64];
    while (steps > 0 && !is_done(name, &table)) {
        table[steps] = gcd(steps * 12, -18) + lookup(name);
        steps -= 1;
    }
    print_line("finished", steps);
}
"""

CASES = (
    Case("JSON", JSON, JSON_DOCUMENT, is_json=True),
    Case("nested schema", SCHEMA_GBNF, SCHEMA_DOCUMENT, schema=SCHEMA),
    Case("C-like", C_LIKE, C_DOCUMENT),
)

"""Unicode 15.1.0 cases of letters, written by tools/make_unicode_table.py; data, not code.

`CASES` lists the code space from 0 to 0x10FFFF as words of one letter (U for an upper or title case letter,
l for a lower case one, o for everything else) and the length of the range in base 36.
Source: the Unicode Character Database, https://www.unicode.org/Public/15.1.0/ucd/UnicodeData.txt
"""

from __future__ import annotations

CASES = """
o1t Uq o6 lq o1m l1 oa Un o1 U7 lo o1 l8 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l2 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l2 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U2 l1 U1 l1 U1 l3 U2 l1 U1 l1 U2 l1
U3 l2 U4 l1 U2 l1 U3 l3 U2 l1 U2 l1 U1 l1 U1 l1 U2 l1 U1 l2 U1 l1 U2 l1 U3 l1 U1 l1 U2 l2 o1 U1 l3 o4 U2 l1
U2 l1 U2 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l2 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U1 l2 U2 l1 U1 l1 U3 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l7 U2 l1 U2 l2 U1 l1
U4 l1 U1 l1 U1 l1 U1 l1 U1 l1x o1 lr o5c U1 l1 U1 l1 o2 U1 l1 o3 l3 o1 U1 o6 U1 o1 U3 o1 U1 o1 U2 l1 Uh o1
U9 lz U1 l2 U3 l3 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l5 U1 l1 o1 U1 l1 U2
l2 U1f l1c U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U1 l1 o8 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U2 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l2 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 o1 U12 o9 l15 o26v U12 o1 U1 o5 U1 o2
l17 o2 l3 oio U2e o2 l6 o1oi l9 o7 U17 o2 U3 o1s l18 o1r ld o1 ly o2t U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l9 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l9 U8 l6 o2 U6 o2 l8 U8 l8 U8 l6 o2 U6 o2 l8 o1 U1 o1
U1 o1 U1 o1 U1 l8 U8 le o2 l8 U8 l8 U8 l8 U8 l5 o1 l2 U5 o1 l1 o3 l3 o1 l2 U5 o3 l4 o2 l2 U4 o4 l8 U5 o5 l3
o1 l2 U5 o79 U1 o4 U1 o2 l1 U3 l2 U3 l1 o1 U1 o3 U5 o6 U1 o1 U1 o1 U1 o1 U4 o1 l1 U4 l1 o4 l1 o2 l2 U2 o5 U1
l4 o4 l1 o1g U1 l1 o22j U1c l1c U1 l1 U3 l2 U1 l1 U1 l1 U1 l1 U4 l1 U1 l2 U1 l6 o2 U3 l1 U1 l1 U1 l1 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l2 o6 U1 l1 U1 l1 o3 U1 l1 oc l12 o1 l1 o5 l1 onwy
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 oi U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1
l1 U1 l1 o3q U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l3 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 o1 l8 U1 l1 U1 l1 U2 l1 U1 l1 U1 l1 U1 l1 U1 l1 o3 U1 l1 U1 l1 o1 U1 l1 U1 l3 U1 l1
U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U5 l1 U5 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1 U1 l1
U4 l1 U1 l1 o5 U1 l1 o1 l1 o1 l1 U1 l1 U1 l1 or U1 l1 o3 l1 omt l17 o5 l9 o7 l28 ofnk l7 oc l5 osp Uq o6 lq
ox1 U14 l14 o2o U10 o4 l10 o38 Ub o1 Uf o1 U7 o1 U2 o1 lb o1 lf o1 l7 o1 l2 o1c3 U1f od l1f o2b1 Uw lw ogv4
Uw lw ok1s Uq lq Uq l7 o1 li Uq lq U1 o1 U2 o2 U1 o2 U2 o2 U4 o1 U8 l4 o1 l1 o1 l7 o1 lb Uq lq U2 o1 U4 o2
U8 o1 U7 o1 lq U2 o1 U4 o1 U5 o1 U1 o3 U7 o1 lq Uq lq Uq lq Uq lq Uq lq Uq lq Uq ls o2 Up o1 lp o1 l6 Up o1
lp o1 l6 Up o1 lp o1 l6 Up o1 lp o1 l6 Up o1 lp o1 l6 U1 l1 o1f8 la o1 lk o6 l6 o1xx Uy ly ol70c
"""

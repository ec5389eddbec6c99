from oxillama._kernels.grammar.dfa import Dfa

LESS: int
EQUAL: int
GREATER: int

def compared(bound: str, positive: int, negative: int, exponents: bool) -> Dfa: ...
def multiples(modulus: int, places: int) -> Dfa: ...

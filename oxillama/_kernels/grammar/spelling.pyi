from oxillama._kernels.grammar.dfa import Dfa

DUMPED: int
EVERY_WAY: int
ONE_WAY: int

def spell(dfa: Dfa, ways: int = DUMPED) -> Dfa: ...

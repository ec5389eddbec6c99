"""Stop strings across pieces, against a search in the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oxillama.engine.stop_strings import StopStrings

LETTERS = st.text("ab", max_size=12)


@given(st.lists(LETTERS, max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_pieces_add_up_to_the_text_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    stopper, shown, found = StopStrings(stops), "", False
    whole = ""
    for piece in pieces:
        whole += piece
        text, found = stopper.push(piece)
        shown += text
        if found:
            break
        # nothing is held back that could not still become a stop string
        assert len(whole) - len(shown) < max((len(s) for s in stops), default=1)
    else:
        shown += stopper.flush()
    # a stop string counts when it is complete, the earliest one of those that are
    ends = [whole.find(s) for s in stops if s in whole]
    assert found == bool(ends)
    assert shown == (whole[: min(ends)] if ends else whole)

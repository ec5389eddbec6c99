"""Stop strings across pieces, against a search in the whole text."""

from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given, strategies as st

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
    if ends:
        assert stopper.found in stops and whole.startswith(stopper.found, min(ends))
    else:
        assert stopper.found is None


def test_a_stop_string_is_found_wherever_its_text_is_cut() -> None:
    text = "aabaabbc"
    stops = {text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    for stop, cuts in product(stops, product([False, True], repeat=len(text) - 1)):
        stopper, shown = StopStrings([stop]), ""
        places = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(text)]
        for a, b in pairwise(places):
            piece, found = stopper.push(text[a:b])
            shown += piece
            if found:
                break
        assert found
        assert shown == text[: text.index(stop)]

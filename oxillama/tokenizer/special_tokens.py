"""Special tokens in a text: found before anything else, and whole."""

from __future__ import annotations

from oxillama.tokenizer.vocabulary import HIDDEN, LSTRIP, RSTRIP, SPECIAL, Vocab


class SpecialTokenFinder:
    """Finds special tokens in a text: longer ones first anywhere in it, then from left to right."""

    def __init__(self, vocab: Vocab) -> None:
        self._types = vocab.types
        special = [id for id, kind in enumerate(vocab.types) if kind & SPECIAL]
        special.sort(key=lambda id: -len(vocab.tokens[id].encode("utf-8", "surrogateescape")))
        shown = [id for id in special if not vocab.types[id] & HIDDEN]
        self._groups = tuple(_by_beginning(ids, vocab.tokens) for ids in (shown, special))

    def split(self, text: str, parse_special: bool) -> list[int | str]:
        """Cut `text` into ids of special tokens and the fragments between them, none of them empty.

        User-defined tokens are always found, control and unknown ones only with `parse_special`.
        """
        groups = self._groups[parse_special]
        present = [entry for beginning, group in groups.items() if beginning in text for entry in group]
        taken = bytearray(len(text))
        found: list[tuple[int, int, int]] = []
        for _, token, id in sorted(present):
            self._take(text, token, id, taken, found)
        fragments: list[int | str] = []
        position = 0
        for start, end, id in sorted(found):
            if start > position:
                fragments.append(text[position:start])
            fragments.append(id)
            position = end
        if position < len(text):
            fragments.append(text[position:])
        return fragments

    def _take(
        self, text: str, token: str, id: int, taken: bytearray, found: list[tuple[int, int, int]]
    ) -> None:
        """Add the occurrences of `token` in what is not `taken` yet, with the spaces they swallow."""
        kind = self._types[id]
        start = text.find(token)
        while start >= 0:
            end = start + len(token)
            overlap = taken.find(1, start, end)
            if overlap >= 0:
                end = taken.find(0, overlap)
                if end < 0:
                    return
            else:
                left = start
                while kind & LSTRIP and left and not taken[left - 1] and text[left - 1] in _ASCII_SPACES:
                    left -= 1
                while kind & RSTRIP and end < len(text) and not taken[end] and text[end] in _ASCII_SPACES:
                    end += 1
                taken[left:end] = b"\1" * (end - left)
                found.append((left, end, id))
            start = text.find(token, end)


_ASCII_SPACES = " \t\n\v\f\r"


def _by_beginning(ids: list[int], tokens: list[str]) -> dict[str, list[tuple[int, str, int]]]:
    """(rank, text, id) of tokens, grouped by their first characters: one search rules out a group."""
    groups: dict[str, list[tuple[int, str, int]]] = {}
    for rank, id in enumerate(ids):
        groups.setdefault(tokens[id][:5], []).append((rank, tokens[id], id))
    return groups

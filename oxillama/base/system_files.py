"""Tables and lists of numbers in the files of /proc and /sys."""

from __future__ import annotations

from pathlib import Path

from oxillama.base.cgroups import text


def table(path: Path) -> dict[str, str]:
    """The "key: value" lines of a file as a dict; empty if it cannot be read."""
    pairs = (line.partition(":") for line in (text(path) or "").splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def numbers(listed: str | None) -> set[int]:
    """The numbers in a list like "0-3,8", Linux's notation; empty for None and invalid texts."""
    found: set[int] = set()
    try:
        for part in (listed or "").split(","):
            if part.strip():
                first, _, last = part.partition("-")
                found |= set(range(int(first), int(last or first) + 1))
    except ValueError:
        return set()
    return found

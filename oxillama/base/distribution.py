"""The distribution that contains this package: its name on the package registry, and `pip`'s argument.

The distribution `oxillama` of the registry is another author's; its package is `oxillama_py`.
"""

from __future__ import annotations

DISTRIBUTION = "oxillama-cpu"


def install(extra: str = "") -> str:
    """The command that installs the distribution, with the packages of an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"

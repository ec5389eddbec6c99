"""What the soak of a server takes for a leak."""

from __future__ import annotations

import pytest

from tools import soak_server as tool


@pytest.mark.parametrize(("leak", "grown"), [(0, 0), (1, 20)])
def test_what_stays_is_growth_and_not_what_comes_and_goes(leak: int, grown: int) -> None:
    """Megabytes a minute, in 40 minutes; 40 MB come and go within five."""
    sizes = [(2.0 * i, int((100 + i % 150 * 4 / 15 + leak * i / 30) * 2**20)) for i in range(1200)]
    found, _ = tool.growth(sizes)
    assert abs(found / 2**20 - grown) < 3
    assert (found > tool.GROWTH) is (leak > 0)

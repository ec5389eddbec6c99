"""A room whose import fails for a reason of its own."""

import no_such_library  # type: ignore[import-not-found]  # noqa: F401

"""The control groups of this process, and the processor time that they grant."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def text(path: Path) -> str | None:
    """The stripped contents of a file; None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def whole(value: str | None) -> int | None:
    """The text as an int; None for "max", other words, and a missing text."""
    try:
        return int(value or "")
    except ValueError:
        return None


def cgroups(root: Path = ROOT, controller: str = "") -> list[Path]:
    """The folders of this process's cgroup and its ancestors, starting with its own.

    ``controller``: of version 1, such as "memory"; "" for version 2.
    """
    mount = root / "sys/fs/cgroup" / controller
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and controller in parts[1].split(","):
            own = mount / parts[2].strip("/")
            found = [own, *own.parents]
            return [path for path in found if path == mount or mount in path.parents]
    return [mount] if mount.is_dir() else []


def cpu_quota(root: Path = ROOT) -> float | None:
    """The processor time that the cgroup and its ancestors grant, in processors; None without a limit."""
    return min((found for group in cgroups(root) if (found := quota(group)) is not None), default=None)


def quota(group: Path) -> float | None:
    """The processor time that a cgroup grants, in processors; None without a limit."""
    words = (text(group / "cpu.max") or "").split()
    granted, period = (whole(word) for word in words) if len(words) == 2 else (None, None)
    return granted / period if granted is not None and period else None

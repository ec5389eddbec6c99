"""Files that are replaced as a whole: readers see the old content or the new one, never a part."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from oxillama.errors import ModelFileError


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file, links followed. Raises ModelFileError if the system cannot say."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no such file, or no path at all
        return False
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    return True


@contextmanager
def replaced_file(
    path: Path, mode: int | None = None, *, overwrite: bool = True, synced: bool = True
) -> Iterator[BinaryIO]:
    """A new file to write to, which replaces ``path`` at the end of the block; on an error, ``path`` stays.

    Until then the content is in the file ``file.name``; with ``synced`` it is on the disk before ``path`` is
    replaced, and the new name is at the end.
    A symbolic link is kept. The file has the permissions ``mode``, less the umask; with None it keeps
    the permissions of the file that it replaces. Without ``overwrite`` a file that exists at the end of the
    block stays, too.

    Raises:
        ModelFileError: ``path`` cannot be written, is a directory or a device, or exists without
            ``overwrite``.
    """
    import tempfile  # a process that only reads files starts without

    temporary = None
    try:
        try:
            target = Path(os.path.realpath(path))
            if target.exists() and not target.is_file():
                raise ModelFileError(f"{path}: expected a file to write to, got a directory or device")
            fd, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
            os.close(fd)
        except ValueError as error:
            raise ModelFileError(f"path: expected no NUL and no lone surrogate, got {str(path)!r}") from error
        with open(temporary, "wb") as file:
            if hasattr(os, "fchmod"):
                kept = mode is None and target.exists()
                granted = target.stat().st_mode & 0o777 if kept else (mode or 0o666) & ~_umask()
                os.fchmod(file.fileno(), granted)
            yield file
            file.flush()
            if synced:
                os.fsync(file.fileno())
        publish(Path(temporary), target, overwrite=overwrite, synced=synced)
        temporary = None
    except ModelFileError:
        raise
    except FileExistsError as error:
        raise ModelFileError(f"{path}: expected no such file, got one") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def publish(source: Path, target: Path, *, overwrite: bool, synced: bool = True) -> None:
    """Renames a file, whose content is on the disk, to ``target``; with ``synced`` the name is there, too.

    Raises FileExistsError if ``target`` exists and ``overwrite`` is False. The check and the new name are one
    step, so that no file is replaced that another process makes meanwhile.
    """
    if overwrite:
        os.replace(source, target)
    else:
        _rename_new(source, target)
    if synced:
        _sync_folder(target.parent)


def _rename_new(source: Path, target: Path) -> None:
    if os.name == "nt":
        os.rename(source, target)  # replaces nothing on Windows
        return
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.close(os.open(target, os.O_CREAT | os.O_EXCL))  # the name is ours from here on
        try:
            os.replace(source, target)
        except BaseException:
            os.unlink(target)
            raise
    else:
        os.unlink(source)


NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems without hard links answer."""


def _sync_folder(folder: Path) -> None:
    """Has the names in a folder on the disk, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # a file system that cannot
            raise
    finally:
        os.close(fd)


def _umask() -> int:
    """The umask of the process, which `tempfile` ignores. The system tells the umask only when setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""The files of a session, as the server sees them: it follows no link, because code made them.

All functions block.
"""

import os
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_DEPTH = 40
"""Folders in folders: each is an open file while they are counted."""
_PATH = 1000
"""Bytes of the path of a file that workers get to know of."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TooMuch(Exception):
    """A session has too many files, or folders that cannot be counted."""


class BadPath(Exception):
    """There is no plain file at this path below the session's folder."""


@dataclass
class Found:
    """The files below a folder."""

    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Path -> time of the last change and bytes, of plain files. Code cannot set this time back."""
    bytes: int = 0
    """What they take on the disk."""
    entries: int = 0
    hidden: set[tuple[int, int]] = field(default_factory=set)
    """Files that workers do not get to know of: time of the last change and inode."""


def find_files(folder: Path, most: int) -> Found:
    """What is below `folder`. Raises TooMuch."""
    found = Found()
    place = os.open(folder, _FOLDER)
    try:
        _find(place, "", found, most, _DEPTH)
    finally:
        os.close(place)
    return found


def _find(place: int, prefix: str, found: Found, most: int, depth: int) -> None:
    if depth == 0:
        raise TooMuch("folders are too deep")
    with os.scandir(place) as entries:
        for entry in entries:
            found.entries += 1
            if found.entries > most:
                raise TooMuch("there are too many files")
            try:
                seen = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # it was removed
            found.bytes += 512 * seen.st_blocks
            if stat.S_ISDIR(seen.st_mode):
                _find_below(place, entry.name, prefix, found, most, depth)
            elif stat.S_ISREG(seen.st_mode) and _is_shown(prefix + entry.name):
                found.files[prefix + entry.name] = (seen.st_ctime_ns, seen.st_size)
            elif stat.S_ISREG(seen.st_mode):
                found.hidden.add((seen.st_ctime_ns, seen.st_ino))


def _find_below(place: int, name: str, prefix: str, found: Found, most: int, depth: int) -> None:
    try:
        inner = os.open(name, _FOLDER, dir_fd=place)
    except FileNotFoundError:
        return
    except OSError as error:
        raise TooMuch("a folder cannot be read") from error
    try:
        _find(inner, f"{prefix}{name}/", found, most, depth - 1)
    finally:
        os.close(inner)


def _is_shown(path: str) -> bool:
    """Whether workers get to know of the file: a name that is no line of text cannot be in an
    answer, in which each file has a line."""
    try:
        return len(path.encode()) <= _PATH and path.splitlines() == [path]
    except UnicodeEncodeError:
        return False


def removed_bytes(pids: Iterable[int]) -> Counter[int]:
    """What removed files take that processes still have open, as far as this process may see it:
    device -> bytes. Files without a name from the beginning are of a device of their own."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - often, and many
                sizes |= _removed_files(f"/proc/{pid}/task/{thread}/fd")
    devices: Counter[int] = Counter()
    for (device, _), size in sizes.items():
        devices[device] += size
    return devices


def _removed_files(descriptors: str) -> dict[tuple[int, int], int]:
    """Device and inode -> bytes. A thread may have a table of descriptors of its own."""
    sizes: dict[tuple[int, int], int] = {}
    with suppress(OSError):
        for name in os.listdir(descriptors):  # noqa: PTH208 - often, and many
            with suppress(OSError):
                seen = os.stat(f"{descriptors}/{name}")  # noqa: PTH116
                if seen.st_nlink == 0 and stat.S_ISREG(seen.st_mode):
                    sizes[seen.st_dev, seen.st_ino] = 512 * seen.st_blocks
    return sizes


def remove(folder: Path) -> None:
    """Removes a folder, however deep it is, and whatever the modes of what is in it are."""
    command = ["rm", "-rf", "--", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        subprocess.run(
            ["chmod", "-R", "u+rwX", "--", str(folder)], capture_output=True, check=False
        )
        subprocess.run(command, capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def open_plain(data: Path, path: str) -> int:
    """Opens a plain file for reading. Raises BadPath."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with _opened_folder(data, path) as (place, name):
        try:
            opened = os.open(name, flags, dir_fd=place)
        except OSError as error:
            raise BadPath(path) from error
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise BadPath(path)
        return opened


def move_in(incoming: Path, data: Path, path: str, uid: int | None) -> None:
    """Gives a file its place below `data`; makes its folders. Raises BadPath."""
    with _opened_folder(data, path, owner=uid, is_made=True) as (place, name):
        try:
            os.rename(incoming, name, dst_dir_fd=place)
        except OSError as error:
            raise BadPath(path) from error


@contextmanager
def _opened_folder(
    data: Path, path: str, *, owner: int | None = None, is_made: bool = False
) -> Iterator[tuple[int, str]]:
    """The folder of a file, opened without following a link, and the file's name."""
    parts = PurePosixPath(path).parts
    if not parts or "\0" in path or any(part in ("..", "/") for part in parts):
        raise BadPath(path)
    if len(parts) > _DEPTH:
        raise BadPath(path)
    place = os.open(data, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = _open_or_make(place, part, owner, is_made=is_made)
            os.close(place)
            place = inner
        yield place, parts[-1]
    except OSError as error:
        raise BadPath(path) from error
    finally:
        os.close(place)


def _open_or_make(place: int, name: str, owner: int | None, *, is_made: bool) -> int:
    is_new = False
    if is_made:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=place)
            is_new = True
    inner = os.open(name, _FOLDER, dir_fd=place)
    if is_new and owner is not None:
        os.fchown(inner, owner, owner)
    return inner

"""PostgreSQL refuses to run as root: whom it runs as instead, and what that user can reach."""

import contextlib
import hashlib
import os
import pwd
import shutil
import stat
from pathlib import Path

from cli.embedded.process import StartFailed, User, command_of

SUBSTITUTES_FOLDER = Path("/var/tmp")  # noqa: S108 - folders in it are checked to be root's own before use

ORIGIN_FILE = "stands-in-for"
"""The file in such a folder that says for which path."""


def user_to_drop_to() -> User | None:
    """`nobody` when we are root, otherwise None: stay who we are."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise StartFailed(
            "PostgreSQL does not run as root, and this system has no user `nobody` to run it as"
        ) from None
    return User(entry.pw_uid, entry.pw_gid)


def reachable(path: Path) -> bool:
    """Whether every existing folder on the way to `path`, itself included, lets everybody pass."""
    here = path.resolve()
    return all(
        folder.stat().st_mode & stat.S_IXOTH for folder in (here, *here.parents) if folder.exists()
    )


def substitute_folder(path: Path) -> Path:
    """Where the folder lies that stands in for an unreachable absolute `path`: the same each time. It need not exist yet."""
    digest = hashlib.sha256(bytes(path)).hexdigest()[:10]
    return SUBSTITUTES_FOLDER / f"backburner-{digest}"


def make_substitute_folder(path: Path) -> Path:
    """The folder that stands in for an absolute `path`, at which something must exist: root's own, and everybody can pass it.

    Those that stand in for what is gone since, a removed checkout or a test's data, are removed on the way.
    """
    for other in SUBSTITUTES_FOLDER.glob("backburner-*"):
        with contextlib.suppress(FileNotFoundError):  # another process removes it at this moment
            _remove_orphan(other)
    folder = substitute_folder(path)
    folder.mkdir(mode=0o711, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise StartFailed(f"{folder} belongs to somebody else; remove it first")
    folder.chmod(0o711)  # whatever the umask made of it
    (folder / ORIGIN_FILE).write_text(f"{path}\n")
    return folder


def _remove_orphan(folder: Path) -> None:
    note = folder / ORIGIN_FILE
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or not note.exists():
        return
    if os.path.lexists(note.read_text().rstrip("\n")):
        return
    if not any(
        f"-D {folder}/" in command_of(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")
    ):
        shutil.rmtree(folder)


def copy_readable_by_all(sources: list[Path], to: Path) -> None:
    """Copy folder trees side by side into `to`, readable by everybody; nothing happens when `to` is there already."""
    if to.exists():
        return
    unfinished = to.with_name(f"{to.name}.{os.getpid()}")
    for source in sources:
        shutil.copytree(source, unfinished / source.name, symlinks=True)
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
    try:
        unfinished.rename(to)
    except OSError:
        if not to.exists():
            raise
        shutil.rmtree(unfinished)  # another process was faster

"""PostgreSQL does not run as root: the user it runs as, and folders that this user can reach."""

import contextlib
import hashlib
import os
import pwd
import shutil
import stat
from pathlib import Path

from cli.embedded.process import User, command_of
from cli.errors import CommandFailed

SUBSTITUTES_FOLDER = Path("/var/tmp")  # noqa: S108 - only folders owned by root are used

ORIGIN_FILE = "stands-in-for"
"""The file in such a folder that holds the path that it replaces."""


def user_to_drop_to() -> User | None:
    """`nobody` if this process runs as root; None for no change. Raises CommandFailed."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise CommandFailed(
            "PostgreSQL does not run as root, and this system has no user `nobody` to run it as"
        ) from None
    return User(entry.pw_uid, entry.pw_gid)


def check_user_has_a_name() -> None:
    """PostgreSQL looks its user up. Raises CommandFailed if that is not possible."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise CommandFailed(
            f"PostgreSQL does not run as user id {os.geteuid()}, which /etc/passwd does not list: "
            "use a listed user, or a database elsewhere with --database-url"
        ) from None


def reachable(path: Path) -> bool:
    """Whether every user can pass all existing folders of `path`, itself included."""
    here = path.resolve()
    return all(
        folder.stat().st_mode & stat.S_IXOTH for folder in (here, *here.parents) if folder.exists()
    )


def substitute_folder(path: Path) -> Path:
    """The folder that replaces an unreachable absolute `path`: always the same. It may not
    exist."""
    digest = hashlib.sha256(bytes(path)).hexdigest()[:10]
    return SUBSTITUTES_FOLDER / f"backburner-{digest}"


def make_substitute_folder(path: Path) -> Path:
    """Makes the folder that replaces an absolute `path`, which must exist.

    It belongs to root, and every user can pass it. Also removes such folders whose path no longer
    exists, for instance of a deleted checkout. Raises CommandFailed.
    """
    for other in SUBSTITUTES_FOLDER.glob("backburner-*"):
        with contextlib.suppress(FileNotFoundError):  # another process removes it now
            _remove_orphan(other)
    folder = substitute_folder(path)
    folder.mkdir(mode=0o711, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise CommandFailed(f"{folder} belongs to another user; remove it first")
    folder.chmod(0o711)  # the umask may have changed the mode
    (folder / ORIGIN_FILE).write_text(f"{path}\n")
    return folder


def _remove_orphan(folder: Path) -> None:
    origin = folder / ORIGIN_FILE
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or not origin.exists():
        return
    if os.path.lexists(origin.read_text().rstrip("\n")):
        return
    if not any(
        f"-D {folder}/" in command_of(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")
    ):
        shutil.rmtree(folder)


def copy_readable_by_all(sources: list[Path], to: Path) -> None:
    """Copies folders side by side into `to`, readable by every user; does nothing if `to`
    exists."""
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
        shutil.rmtree(unfinished)  # another process has made `to`

"""Whether this system can confine the processes that read files."""

from models.confinement.policy import missing

_CONSEQUENCES = {
    "landlock": "could read each file of its user; Linux has it since 5.13, and Docker Engine "
    "allows it since 23.0",
    "seccomp": "could open connections; there are filters for x86-64 and ARM64",
}


def confinement_warnings() -> list[str]:
    """A sentence for each protection that is missing (docs/file-kinds.md)."""
    return [
        f"without {name} a file that takes over its reading process {_CONSEQUENCES[name]}"
        for name in missing()
    ]

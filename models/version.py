"""The version of this release; `pyproject.toml` takes it from here.

A constant, because neither the container image nor `./dev up` has the project's metadata: both run
it from its folder.
"""

VERSION = "0.1.0"

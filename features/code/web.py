"""Containers in a web process. A create whose tools use one is checked."""

from features.code.access import ContainerAccess
from features.files.web import Files
from web.state import AppState, Feature


class Code(Feature):
    """The containers of all projects."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.access = ContainerAccess(state.settings, state.pool, Files.in_state(state).store)
        state.hooks.checks.append(self.access.check_tools)


FEATURE = Code

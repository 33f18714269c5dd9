"""Server tools that no process of this deployment can run, and the setting that each needs."""

from dataclasses import dataclass

from models.config.settings import Settings

WEB_SEARCH_VARIABLE = "BACKBURNER_WEB_SEARCH__PROVIDER"


@dataclass(frozen=True, slots=True)
class MissingTool:
    """A tool that cannot run. `variable` is the environment variable of the setting it needs."""

    tool: str
    variable: str


def missing_tools(settings: Settings) -> list[MissingTool]:
    """The tools that cannot run with these settings."""
    if settings.web_search.provider is None:
        return [MissingTool("web_search", WEB_SEARCH_VARIABLE)]
    return []

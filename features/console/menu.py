"""The menu: the path of each page below the console, and its name."""

from models.features import feature_parts


def menu() -> list[tuple[str, str]]:
    """The console's own pages, then those of features."""
    return [
        ("", "Overview"),
        ("/activity", "Activity"),
        ("/responses", "Responses"),
        ("/workers", "Workers"),
        ("/upstreams", "Upstreams"),
        *(entry for part in feature_parts("pages") for entry in part.MENU),
    ]

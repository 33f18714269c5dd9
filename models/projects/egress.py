"""Which addresses the server may reach for a project."""

from models.config.values import Group


class ProjectEgress(Group):
    """The rules of one project. None: as the settings say."""

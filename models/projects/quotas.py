"""How much of the server a project may use."""

from models.config.values import Group


class ProjectQuotas(Group):
    """The quotas of one project. None: as the settings say."""

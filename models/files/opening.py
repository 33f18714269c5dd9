"""Opens the storage that the settings name."""

from models.config.settings import Settings
from models.files.folder_storage import FolderStorage
from models.files.storage import FileStorage


def open_storage(settings: Settings) -> FileStorage | None:
    """None: this server stores no files."""
    folder = settings.files.folder
    return None if folder is None else FolderStorage(folder)

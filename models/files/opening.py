"""Opens the storage that the settings name."""

from models.config.settings import Settings
from models.files.folder_storage import FolderStorage
from models.files.storage import FileStorage


def open_storage(settings: Settings) -> FileStorage | None:
    """None: this server stores no files."""
    if settings.s3.bucket is not None:
        # Its library takes 25 MB and half a second: only where it is used.
        from models.files.s3_storage import S3Storage

        return S3Storage(settings.s3)
    folder = settings.files.folder
    return None if folder is None else FolderStorage(folder)

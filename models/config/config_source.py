"""The file as a source of settings, behind the environment."""

from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from models.config.config_file import find_config_file, read_config_file

UNPREFIXED_VARIABLES = {"database_url": "DATABASE_URL", "redis_url": "REDIS_URL"}
"""Settings whose variables have no prefix."""


class FileSource(PydanticBaseSettingsSource):
    """What `backburner.toml` says, for whatever the environment does not."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self.file = read_config_file(find_config_file())

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        """One field's value; `__call__` gives all of them."""
        return self.file.data.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """The whole file. Routes are taken from one place: those of the environment replace it, others merge key by key."""
        values = {
            UNPREFIXED_VARIABLES.get(key, key): value for key, value in self.file.data.items()
        }
        return {
            key: value
            for key, value in values.items()
            if key != "routes" or "routes" not in self.current_state
        }


class FileBackedSettings(BaseSettings):
    """Settings that are read from the environment, else from the file."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The first that knows a value counts. Raises BadFile."""
        return init_settings, env_settings, FileSource(settings_cls)

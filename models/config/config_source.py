"""`backburner.toml` as a source of settings, after the environment."""

from typing import Any

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, TomlConfigSettingsSource

from models.config.config_file import BadSettings, Mistake, find_config_file, read_config_file

UNPREFIXED_VARIABLES = {"database_url": "DATABASE_URL", "redis_url": "REDIS_URL"}
"""Settings whose environment variables have no prefix."""


class ConfigFileSource(TomlConfigSettingsSource):
    """The values of `backburner.toml`.

    The file is read twice. `read_config_file` reads it first, because it knows the line of a
    mistake: pydantic-settings skips a missing file, drops the file's name from a syntax error, and
    accepts keys in any case, for which no line would be known later.
    """

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        file = read_config_file(find_config_file())
        mistakes = [
            Mistake("file", str(file.path), "is not a setting", file.line((key,)), key)
            for key in file.data
            if key != key.lower() and key not in UNPREFIXED_VARIABLES.values()
        ]
        if mistakes:
            raise BadSettings(mistakes)
        super().__init__(settings_cls, toml_file=file.path)

    def __call__(self) -> dict[str, Any]:
        """All values. Routes of the environment replace those of the file; other tables merge."""
        values = super().__call__()
        if "routes" in self.current_state:
            values.pop("routes", None)
        return values


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
        """The sources; the first one that has a value counts. Raises BadSettings."""
        return init_settings, env_settings, ConfigFileSource(settings_cls)

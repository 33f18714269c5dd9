"""Makes `docs/settings.md` from the settings classes: `backburner config settings`. Pure.

A setting's meaning is the text below it in its class; its unit comes from its type. Of a text that
begins with `Limit:` only name and default are on the page.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cli.settings import StackSettings
from models.config.configuration import FOREIGN_VARIABLES
from models.config.settings import UNPREFIXED_VARIABLES, Settings
from models.config.upstream import UpstreamSettings
from models.config.values import Unit, format_size
from models.time_text import format_duration

_HEAD = """\
<!-- Made by `./dev run config settings > docs/settings.md`; change models/config instead. -->
# Settings

Each setting has an environment variable and a key in `backburner.toml` \
([the file](upstreams.md#the-file)); the variable overrides the key. \
`BACKBURNER_WEB__POOL_SIZE` is `pool_size` in the table `[web]`. `backburner config check` shows \
what is set and where. A change takes effect when the process starts again.

A duration is a number with a unit (`500ms`, `90s`, `15m`, `2h`, `3d`, `1h30m`), a number of \
seconds without one, or text in ISO 8601 (`PT30M`). A size is a number with a unit (`512KiB`, \
`64MiB`, `1GiB`; `KB`, `MB` and `GB` are powers of 1000), or a number of bytes. Lists are \
separated by commas in the environment. No process starts with an unknown variable that begins \
with `BACKBURNER_`; the message has the nearest known name.

In brackets are the default, then what else a setting can be; without a default it is unset. \
[limits.md](limits.md) explains the limits.
"""
_UPSTREAMS = """\
`[upstream]` is the upstream named `default`; `[upstreams.NAME]` with the same keys is the \
upstream NAME, its variables `BACKBURNER_UPSTREAMS__NAME__…`.
"""
_MOST_VALUES = 9
_LIMIT = "Limit: "
_UP = """
## Only for `up`

`BACKBURNER_CONFIG` is the path of the file, for all processes; empty: no file. Default: \
`backburner.toml` in the working directory.
"""
_OTHERS = """
## Variables of other programs

These begin with `BACKBURNER_` too, and are ignored, as are those that Kubernetes makes for its \
Services (`BACKBURNER_WEB_PORT=tcp://…`, `…_SERVICE_HOST`).
"""


def settings_page() -> str:
    """The page, as Markdown."""
    groups = {name: _group_of(info) for name, info in Settings.model_fields.items()}
    single = [name for name, group in groups.items() if group is None]
    parts = [_HEAD, "## Without a table\n", _list(Settings, single, ())]
    for name, group in groups.items():
        if group is None:
            continue
        parts += [f"\n## `[{name}]`\n", _first_paragraph(group)]
        if group is UpstreamSettings:
            parts.append(_UPSTREAMS)
        fields = [key for key in group.model_fields if (name, key) != ("upstream", "name")]
        parts.append(_list(group, fields, (name,)))
    only_up = [name for name in StackSettings.model_fields if name not in Settings.model_fields]
    parts += [_UP, _list(StackSettings, only_up, ()), _OTHERS]
    for program in dict.fromkeys(FOREIGN_VARIABLES.values()):
        names = [f"`{name}`" for name, owner in FOREIGN_VARIABLES.items() if owner == program]
        parts.append(f"- {program}: {', '.join(names)}")
    return "\n".join(parts) + "\n"


def meanings(group: type[BaseModel]) -> dict[str, str]:
    """The text below each setting of a class, on one line."""
    module = ast.parse(Path(inspect.getfile(group)).read_text())
    [definition] = [
        node
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == group.__name__
    ]
    texts: dict[str, str] = {}
    for setting, text in zip(definition.body, definition.body[1:], strict=False):
        match setting, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(meaning))),
            ):
                texts[name] = " ".join(meaning.split())
    return texts


def _group_of(info: FieldInfo) -> type[BaseModel] | None:
    """The class of a table; None for a setting."""
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _first_paragraph(group: type[BaseModel]) -> str:
    text = inspect.cleandoc(group.__doc__ or "").split("\n\n")[0]
    return re.sub(r"docs/(\w+\.md)", r"[\1](\1)", text) + "\n"


def _list(group: type[BaseModel], names: list[str], table: tuple[str, ...]) -> str:
    """An entry for each setting; one for all limits, which docs/limits.md explains."""
    texts = meanings(group)
    shown = {
        name: f"`{_variable((*table, name))}`{_value(group.model_fields[name])}" for name in names
    }
    limits = [shown[name] for name in names if texts[name].startswith(_LIMIT)]
    entries = [
        f"- {shown[name]}: {texts[name]}" for name in names if not texts[name].startswith(_LIMIT)
    ]
    if limits:
        entries.append(f"- [Limits](limits.md): {', '.join(limits)}")
    return "\n".join(entries)


def _variable(place: tuple[str, ...]) -> str:
    return UNPREFIXED_VARIABLES.get(place[0], f"BACKBURNER_{'__'.join(place)}".upper())


def numbers() -> set[str]:
    """The variables of the settings that are numbers, sizes or durations."""
    return {
        _variable(place)
        for place, info in _fields(Settings, ())
        if _unit(info) in ("size", "duration", "tokens", "characters", "number")
    }


def _fields(
    group: type[BaseModel], table: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """The settings of a class and of its tables, each with its place."""
    for name, info in group.model_fields.items():
        inner = _group_of(info)
        if inner is None:
            yield (*table, name), info
        else:
            yield from _fields(inner, (name,))


def _value(info: FieldInfo) -> str:
    """In brackets the default, and what is not plain from it: the unit, or the other values."""
    default, unit = _default(info), _unit(info)
    is_unset = default == "none"
    parts = [] if is_unset else [default]
    if "`" in unit:
        others = [value for value in unit.split(", ") if value != default]
        parts += others if unit != _values(bool) else []
    elif unit != "text" and (is_unset or unit in ("tokens", "characters")):
        parts.append(unit)
    if len(parts) > _MOST_VALUES:
        parts[_MOST_VALUES:] = ["…"]
    text = ", ".join(parts)
    return f" ({'unset, or ' if is_unset and '`' in unit else ''}{text})" if parts else ""


def _unit(info: FieldInfo) -> str:
    """The unit of a number, or the values that a setting can have."""
    units = [entry.name for entry in info.metadata if isinstance(entry, Unit)]
    return units[0] if units else _values(info.annotation)


def _values(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        [inner] = [argument for argument in arguments if argument is not NoneType]
        return _values(inner)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if arguments and any(isinstance(entry, Unit) for entry in arguments[1:]):
        return next(entry.name for entry in arguments[1:] if isinstance(entry, Unit))
    names = {bool: "`true`, `false`", int: "number", dict: "table", tuple: "list"}
    if arguments and origin not in names:  # Annotated
        return _values(arguments[0])
    return names.get(origin or kind, "text")


def _default(info: FieldInfo) -> str:
    value = info.default
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, timedelta):
        return f"`{format_duration(value)}`"
    return f"`{format_size(value)}`" if _unit(info) == "size" else f"`{value}`"

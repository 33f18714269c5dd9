"""Options that several commands share, as one parameter: a dataclass with a field for each."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: in place of a parameter that is a dataclass, with its fields.
    A field has its option in its type (`Annotated`), and a default."""
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters.values()
    groups: dict[str, Any] = {
        each.name: each.annotation for each in parameters if is_dataclass(each.annotation)
    }

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            options = {each.name: values.pop(each.name) for each in fields(group)}
            values[name] = group(**options)
        command(**values)

    options = [option for each in parameters for option in _options_of(each, groups.get(each.name))]
    del flat.__wrapped__
    flat.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    flat.__annotations__ = {each.name: each.annotation for each in options}
    return flat


def _options_of(parameter: inspect.Parameter, group: Any) -> Iterator[inspect.Parameter]:
    """The options that a parameter stands for: itself, or the fields of its group."""
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    if group is None:
        yield parameter.replace(kind=keyword_only)
        return
    types = get_type_hints(group, include_extras=True)
    for each in fields(group):
        yield inspect.Parameter(
            each.name, keyword_only, default=each.default, annotation=types[each.name]
        )

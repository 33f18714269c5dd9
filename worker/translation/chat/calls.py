"""Which call does a piece of a tool call belong to?

Some upstreams number the calls, some give every call the number 0, some send no number. They send
an id once, on every chunk, a new one on every chunk, or never; a name late, in pieces, or
repeatedly. The rules, first match wins:

1. A piece with an id that came before at the same index belongs to that call.
2. Otherwise it continues the latest call at its index (without an index: the latest of all), unless
   it starts another one:
   a. A different id together with a name starts another call. A different id without a name does so
      only when the latest call's arguments are complete, since old vLLM makes up an id per chunk.
   b. A different name starts another call once arguments have begun. Before that it is the next
      piece of the name, unless both are names of tools and the two joined are not.
   c. The same name without an id starts another call when the arguments so far are complete and
      another object begins.

Some upstreams begin the arguments with a placeholder, `{}` or `null`, and then send them whole.
What may be a placeholder waits for the next piece of the call, at the latest until the turn ends.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from worker.translation.history.walk import without_placeholder
from worker.translation.items.client_calls import is_json_object
from worker.translation.items.open_item import OpenToolCall
from worker.translation.returned_content import CallOrigin, is_plain_id
from worker.translation.upstream_events import CallDelta

_PLACEHOLDERS = frozenset(("{}", "[]", "null", "None", '""', '"{}"'))
"""Arguments, without white space, that the real ones may follow."""


class StreamedCall:
    """A call in the upstream's stream. `item` is its item in the output, once the name is known."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.fields: dict[str, Any] = {}
        """Its fields that are not known; of two pieces with the same one the later counts."""
        self.function_fields: dict[str, Any] = {}
        self.item: OpenToolCall | None = None
        self.is_name_final = False
        """Whether the name is complete: it does not change from then on."""
        self._buffer: list[str] = []
        self._has_begun = False
        """Arguments have begun that are no placeholder."""
        self._placeholder = ""
        """What may be a placeholder."""

    @property
    def arguments(self) -> str:
        """The arguments so far, with what may be a placeholder."""
        return self.taken_arguments + self._placeholder

    @property
    def taken_arguments(self) -> str:
        """The arguments so far, without what may be a placeholder."""
        return self.item.arguments if self.item is not None else "".join(self._buffer)

    @property
    def has_arguments(self) -> bool:
        """Whether arguments have begun. A complete name counts too: it is complete when
        arguments or another item begin."""
        return self.is_name_final or bool(self._buffer) or self.waits

    @property
    def waits(self) -> bool:
        """Whether the next piece decides what the arguments are."""
        return bool(self._placeholder)

    def take(self, piece: str) -> str:
        """The arguments that are known with this piece of them: without a placeholder, and without
        arguments that are only sent again."""
        if self._has_begun:
            is_object = piece.startswith("{") and piece.endswith("}")
            return "" if is_object and piece == self.taken_arguments else piece
        if not piece.strip():
            if not self.waits:
                return piece
            self._placeholder += piece
            return ""
        piece = without_placeholder(piece)
        placeholder, self._placeholder = self._placeholder, ""
        if "".join(piece.split()) in _PLACEHOLDERS:
            self._placeholder = piece
            return ""
        self._has_begun = True
        return piece if piece.lstrip().startswith("{") else placeholder + piece

    def end(self) -> str:
        """The rest of the arguments, because no other piece comes: an object without members is no
        placeholder."""
        placeholder, self._placeholder = self._placeholder, ""
        return placeholder if "".join(placeholder.split()) == "{}" else ""

    def buffer_arguments(self, arguments: str) -> None:
        """Stores arguments that came before the name."""
        if arguments:
            self._buffer.append(arguments)


class StreamedCalls:
    """The calls of one turn, in the order of their first pieces."""

    def __init__(self, tool_names: Collection[str]) -> None:
        self._tools = frozenset(tool_names)
        self._all: list[StreamedCall] = []
        self._by_index: dict[int | None, StreamedCall] = {}
        self._by_id: dict[tuple[int | None, str], StreamedCall] = {}

    @property
    def any_unnamed(self) -> bool:
        """Whether a call has arguments but no name."""
        return any(not call.name and call.has_arguments for call in self._all)

    def __iter__(self) -> Iterator[StreamedCall]:
        return iter(self._all)

    @property
    def waiting(self) -> list[StreamedCall]:
        """The calls whose next piece decides what their arguments are."""
        return [call for call in self._all if call.waits]

    def find_call(self, delta: CallDelta) -> StreamedCall | None:
        """The call that this piece continues; None if it starts another one."""
        if (
            delta.id
            and (call := self._by_id.get((delta.index, delta.id))) is not None
            and not self._has_other_name(call, delta)
        ):
            return call
        latest = (
            self._by_index.get(delta.index)
            if delta.index is not None
            else (self._all[-1] if self._all else None)
        )
        return None if latest is None or self._starts_another(latest, delta) else latest

    def start(self, delta: CallDelta) -> StreamedCall:
        """Adds a call; it is now the latest one at its index."""
        call = StreamedCall()
        self._all.append(call)
        self._by_index[delta.index] = call
        return call

    def add_id_and_name(self, call: StreamedCall, delta: CallDelta) -> None:
        """Adds the id, the piece of the name and the unknown fields in `delta` to `call`."""
        if delta.fields or delta.function_fields:
            call.fields.update(delta.fields)
            call.function_fields.update(delta.function_fields)
        if delta.id and not call.id:
            call.id = delta.id
            self._by_id[delta.index, delta.id] = call
        if not delta.name or call.is_name_final:
            return
        joined = call.name + delta.name
        if delta.name != call.name or joined in self._tools:
            call.name = joined

    def _starts_another(self, latest: StreamedCall, delta: CallDelta) -> bool:
        if delta.id and latest.id and delta.id != latest.id:
            return bool(delta.name) or is_json_object(latest.taken_arguments)
        if self._has_other_name(latest, delta):
            return True
        repeated = bool(delta.name) and delta.name == latest.name and not delta.id
        return (
            repeated
            and delta.arguments.lstrip().startswith("{")
            and is_json_object(latest.arguments)
        )

    def _has_other_name(self, call: StreamedCall, delta: CallDelta) -> bool:
        if not delta.name or not call.name or delta.name == call.name:
            return False
        if call.has_arguments:
            return True
        return {call.name, delta.name} <= self._tools and call.name + delta.name not in self._tools


def origins_of(
    calls: Iterable[StreamedCall], of_turn: CallOrigin, message_fields: Mapping[str, Any]
) -> Iterator[tuple[str, str, CallOrigin]]:
    """The item id, the id that clients know, and the origin of each call of a turn. `of_turn`: what
    they have in common; `message_fields`: the unknown fields of their message.

    None if no call needs one: the items show all that the upstream sent. An id that came before in
    this turn is not kept.
    """
    used: set[str] = set()
    found: list[tuple[str, str, CallOrigin]] = []
    is_needed = False
    for call in calls:
        if call.item is None:
            continue
        known_id = call.item.known_id
        fields = {} if found else message_fields
        of_call = replace(of_turn, position=len(found))
        origin = origin_of(call, known_id, of_call, fields, is_repeated=call.id in used)
        used.add(call.id)
        is_needed = is_needed or needs_origin(known_id, origin)
        found.append((call.item.id, known_id, origin))
    return iter(found if is_needed else ())


def origin_of(
    call: StreamedCall,
    known_id: str,
    of_turn: CallOrigin,
    message_fields: Mapping[str, Any],
    *,
    is_repeated: bool = False,
) -> CallOrigin:
    """The origin of a call with what has arrived of it. `known_id`: the id that clients know."""
    has_own_id = bool(call.id) and call.id != known_id and not is_repeated
    return replace(
        of_turn,
        id=call.id if has_own_id else None,
        call=call.fields,
        function=call.function_fields,
        message=message_fields,
    )


def needs_origin(known_id: str, origin: CallOrigin) -> bool:
    """Whether the upstream sent an unknown field, or an id that clients do not see or that other
    upstreams would not get."""
    return origin.has_fields or origin.id is not None or not is_plain_id(known_id)

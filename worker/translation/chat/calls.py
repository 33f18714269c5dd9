"""Which call does a piece of a tool call belong to?

Upstreams number calls, or give every call number 0, or none; they send an id once, on every chunk, a fresh one on every chunk, or
never; a name late, in pieces, or again and again (contract §7.2). The rules, first match wins:

1. A piece with an id that was heard before at the same index belongs to that call.
2. Otherwise it is about the latest call at its index (without an index: the latest of all), unless it starts another:
   a. a different id together with a name starts another call; a different id without a name does so only when the latest
      call's arguments are whole, since old vLLM makes up an id per chunk;
   b. a different name starts another call once arguments have begun. Before that it is the next piece of the name, unless both
      are names of tools and the two joined are not;
   c. the same name without an id starts another call when the arguments so far are whole and another object begins.
"""

from collections.abc import Collection

from worker.translation.chat.chunk import CallDelta
from worker.translation.items.server_calls import OpenServerCall
from worker.translation.items.text_items import OpenCall, is_json_object


class StreamedCall:
    """A call as the upstream tells it. `item` is its item in the output, once the name is known."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.item: OpenCall | OpenServerCall | None = None
        self.is_name_final = False
        """Whether the name is settled: from then on it does not change any more."""
        self._buffer: list[str] = []

    @property
    def arguments(self) -> str:
        return self.item.arguments if self.item is not None else "".join(self._buffer)

    @property
    def has_arguments(self) -> bool:
        """A settled name counts as well: it is settled when arguments begin, or when something else does."""
        return self.is_name_final or bool(self._buffer)

    def buffer_arguments(self, arguments: str) -> None:
        """Keeps arguments that came before the name."""
        if arguments:
            self._buffer.append(arguments)


class StreamedCalls:
    """The calls of one turn, in the order they were first heard of."""

    def __init__(self, tool_names: Collection[str]) -> None:
        self._tools = frozenset(tool_names)
        self._all: list[StreamedCall] = []
        self._by_index: dict[int | None, StreamedCall] = {}
        self._by_id: dict[tuple[int | None, str], StreamedCall] = {}

    @property
    def any_unnamed(self) -> bool:
        """Whether arguments came for a call whose name never did."""
        return any(not call.name and call.has_arguments for call in self._all)

    def find_call(self, delta: CallDelta) -> StreamedCall | None:
        """The call this piece continues; None when it starts another."""
        if (
            delta.id
            and (met := self._by_id.get((delta.index, delta.id))) is not None
            and not self._has_other_name(met, delta)
        ):
            return met
        latest = (
            self._by_index.get(delta.index)
            if delta.index is not None
            else (self._all[-1] if self._all else None)
        )
        return None if latest is None or self._starts_another(latest, delta) else latest

    def start(self, delta: CallDelta) -> StreamedCall:
        """A new call, which from now on is the latest at its index."""
        call = StreamedCall()
        self._all.append(call)
        self._by_index[delta.index] = call
        return call

    def add_id_and_name(self, call: StreamedCall, delta: CallDelta) -> None:
        """Takes the id and the piece of the name that `delta` brings for `call`."""
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
            return bool(delta.name) or is_json_object(latest.arguments)
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

"""The messages of one WebSocket while they arrive: bounded although they are incomplete.

uvicorn keeps each fragment of a message as an object, without a limit of their number, and bounds
only what one connection may send.
"""

from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.server import ServerProtocol

from models.errors import ApiError, RequestTimeout
from web.http.body import UNCOUNTED_BYTES
from web.http.shares import Held, Share
from web.websocket.frames import error_frame


class Messages:
    """The message that arrives on one connection, and what it has of the process's memory for
    request bodies. Nothing is read before `begin`."""

    def __init__(self, protocol: ServerProtocol) -> None:
        self._protocol = protocol
        self._content = bytearray()
        self._held: Held | None = None
        self._given: list[Held] = []
        """What complete messages have, as long as they were not released."""
        self._is_text = False
        self._goes_on = False
        self.pause = 0.0
        """Seconds in which an incomplete message must go on."""

    @property
    def is_incomplete(self) -> bool:
        """Whether a part of a frame or of a message has arrived, and the rest has not."""
        return self._goes_on or bool(self._protocol.reader.buffer)

    @property
    def has_begun(self) -> bool:
        """Whether the client may send messages."""
        return self._held is not None

    def begin(self, bodies: Share, project: str, pause: float) -> None:
        """The client has sent a valid key. `pause`: seconds in which an incomplete message must go
        on."""
        self._held = Held(bodies, project)
        self.pause = pause

    def add(self, frame: Frame) -> tuple[bytearray, bool] | None:
        """Adds a data frame. Returns the message if it is complete, and whether it is text."""
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._content += frame.data
        self._goes_on = not frame.fin
        if not frame.fin:
            return None
        content, self._content = self._content, bytearray()
        return content, self._is_text

    def count(self) -> ApiError | None:
        """Counts what has arrived of an incomplete message. The error if that is more than the
        process, or the project, has left for it."""
        return self.hold(len(self._content) + len(self._protocol.reader.buffer))

    def hold(self, size: int) -> ApiError | None:
        """Has memory for so many bytes from now on. The error if there is none."""
        if self._held is not None:
            try:
                self._held.set(size if size > UNCOUNTED_BYTES else 0)
            except ApiError as error:
                return error
        return None

    def take_held(self) -> Held | None:
        """What the complete message has; its receiver releases it. None if it is small."""
        if self._held is None or not self._held.amount:
            return None
        given = self._held.split()
        self._given = [held for held in self._given if held.amount] + [given]
        return given

    def refuse(self, error: ApiError) -> list[bytes]:
        """What is sent to a client whose message is not read: the error, and a close. Its code is
        1008 for a message that did not arrive in time, else 1013."""
        self.drop()
        self._protocol.reader.buffer.clear()
        text = error_frame(error, None).encode()
        close = Close(CloseCode.TRY_AGAIN_LATER, "too many large messages")
        if isinstance(error, RequestTimeout):
            close = Close(CloseCode.POLICY_VIOLATION, "incomplete message")
        frames = Frame(Opcode.TEXT, text), Frame(Opcode.CLOSE, close.serialize())
        return [frame.serialize(mask=False, extensions=[]) for frame in frames]

    def drop(self) -> None:
        """The connection is closed. What waits for the application is never read."""
        self._content = bytearray()
        self._goes_on = False
        for held in filter(None, (self._held, *self._given)):
            held.release()

"""The messages of one WebSocket while they arrive: bounded although they are incomplete. Frames
that carry little are bounded too: each costs time.

uvicorn keeps each fragment of a message as an object, without a limit of their number, and bounds
only what one connection may send.
"""

import time

from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.server import ServerProtocol

from features.websocket.frames import error_frame
from models.errors import ApiError, InvalidRequest, RequestTimeout
from models.load.budget import Reservation, SharedBudget
from web.http.body import UNCOUNTED_BYTES

MAX_SMALL_FRAMES = 16 * 1024
"""Control frames, and fragments without content, that a client may send at a time."""
_CONTENT_OF_FRAME = 1024
"""Bytes of content that make up for one such frame."""
_SMALL_FRAMES_PER_SECOND = 16
"""So many more with each second."""
_FRAME_WORK = 256
"""Bytes of content that take as long as one frame, roughly."""


class FrameAllowance:
    """The frames that a client may send beside its content."""

    def __init__(self) -> None:
        self._left = float(MAX_SMALL_FRAMES)
        self._refilled_at = time.monotonic()

    def use(self, size: int) -> bool:
        """Counts a frame with so many bytes of content. Returns whether it is allowed."""
        self._left += size / _CONTENT_OF_FRAME - 1
        if self._left < 0:
            now = time.monotonic()
            self._left += (now - self._refilled_at) * _SMALL_FRAMES_PER_SECOND
            self._refilled_at = now
        self._left = min(self._left, float(MAX_SMALL_FRAMES))
        return self._left >= 0


class Messages:
    """The message that arrives on one connection, and what it has of the process's memory for
    request bodies. Nothing is read before `begin`."""

    def __init__(self, protocol: ServerProtocol) -> None:
        self._protocol = protocol
        self._content = bytearray()
        self._held: Reservation | None = None
        self._given: list[Reservation] = []
        """What complete messages have, as long as they were not released."""
        self._is_text = False
        self._goes_on = False
        self._frames = FrameAllowance()
        self._received = 0
        self.work = 0
        """All frames of the connection, in bytes of content that take as long."""
        self.project: str | None = None
        """None: the key was not checked yet."""
        self.pause = 0.0
        """Seconds in which an incomplete message must go on."""

    @property
    def is_incomplete(self) -> bool:
        """Whether a part of a frame or of a message has arrived, and the rest has not."""
        return self._goes_on or self.incomplete_frame > 0

    @property
    def incomplete_frame(self) -> int:
        """Bytes that have arrived of a frame without its end."""
        return len(self._protocol.reader.buffer)

    @property
    def has_begun(self) -> bool:
        """Whether the client may send messages."""
        return self._held is not None

    @property
    def arrived(self) -> int:
        """Bytes of content of all messages, without the heads of their frames. Of the last frame
        also the head, while it is incomplete."""
        return self._received + self.incomplete_frame

    def begin(self, bodies: SharedBudget, project: str, pause: float) -> None:
        """The client has sent a valid key. `pause`: seconds in which an incomplete message must go
        on."""
        self._held = Reservation(bodies, project)
        self.project = project
        self.pause = pause

    def count_frame(self, size: int = 0, *, completes: bool = False) -> ApiError | None:
        """Counts a frame with so many bytes of content. `completes`: a message, which is always
        allowed. The error if the client has sent too many other frames without content."""
        self.work += _FRAME_WORK + size
        self._received += size
        if completes or self._frames.use(size):
            return None
        return InvalidRequest(
            "This WebSocket connection has sent too many frames without content.",
            code="websocket_too_many_frames",
        )

    def add(self, frame: Frame) -> tuple[bytearray, bool] | None:
        """Takes the data of a frame. Returns the message if it is complete, and whether it is text.

        The parser keeps its last frame until the next one comes, and longer if the connection ends
        in its middle: so the frame has no data afterwards.
        """
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._content += frame.data
        frame.data = b""
        self._goes_on = not frame.fin
        if not frame.fin:
            return None
        content, self._content = self._content, bytearray()
        return content, self._is_text

    def count(self, unread: int) -> ApiError | None:
        """Counts what has arrived of an incomplete message, and so many bytes that were not parsed.
        The error if that is more than the process, or the project, has left for it."""
        return self.hold(len(self._content) + self.incomplete_frame + unread)

    def hold(self, size: int) -> ApiError | None:
        """Has memory for so many bytes from now on. The error if there is none."""
        if self._held is not None:
            try:
                self._held.resize(size if size > UNCOUNTED_BYTES else 0)
            except ApiError as error:
                return error
        return None

    def take_held(self) -> Reservation | None:
        """What the complete message has; its receiver releases it. None if it is small."""
        if self._held is None or not self._held.amount:
            return None
        given = self._held.split()
        self._given = [held for held in self._given if held.amount] + [given]
        return given

    def refuse(self, error: ApiError) -> list[bytes]:
        """What is sent to a client whose message is not read: the error, and a close. Its code is
        1008 for a message that did not arrive in time and for too many frames, else 1013."""
        self.drop()
        self._protocol.reader.buffer.clear()
        text = error_frame(error, None).encode()
        close = Close(CloseCode.TRY_AGAIN_LATER, "too many large messages")
        if isinstance(error, RequestTimeout):
            close = Close(CloseCode.POLICY_VIOLATION, "incomplete message")
        elif isinstance(error, InvalidRequest):
            close = Close(CloseCode.POLICY_VIOLATION, "too many frames")
        frames = Frame(Opcode.TEXT, text), Frame(Opcode.CLOSE, close.serialize())
        return [frame.serialize(mask=False, extensions=[]) for frame in frames]

    def drop(self) -> None:
        """The connection is closed. What waits for the application is never read."""
        self._content = bytearray()
        self._goes_on = False
        for held in filter(None, (self._held, *self._given)):
            held.release()

"""The attacks: what one project with a valid key, or none, can do to all others.

Each does one thing and counts the answers. `refused_with` names the answers of which at least one
must come; an attack without them is allowed to be served, if nobody else notices.
"""

from tests.chaos.abuse.attacks import before_key, bodies, files, responses, sockets, streams
from tests.chaos.abuse.kinds import ATTACKS

__all__ = ["ATTACKS", "before_key", "bodies", "files", "responses", "sockets", "streams"]

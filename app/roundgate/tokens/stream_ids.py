"""Ids that a client of a session sends back: of a question that it answers, and of an
event after which it goes on.

The id of a question says which session was asked, in which round, and which of the round's
questions it is. So an answer can be told from one that nobody asked for without anything
being kept of the question.

The id of an event has, sealed, all that any process needs to go on with the call: the request, the
state of the call, what was asked. It travels in a header; what is too long for one is kept in a
row, and the id has the row's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from roundgate import json
from roundgate.auth import Principal
from roundgate.errors import ParseError, SealBroken
from roundgate.tokens.sealed import KeyRing

QUESTION: Final = "question"
CALL: Final = "call"
MAX_CHARS: Final = 8_192
"""Of an id that is looked at: headers of this length reach no server
everywhere, and ours are shorter."""


@dataclass(frozen=True, slots=True)
class QuestionId:
    """Which question: of which session, asked in which round, and its number there."""

    session: str
    round: str
    number: int


@dataclass(frozen=True, slots=True)
class StreamIds:
    """Seals and opens both kinds of ids. They are good for one caller and one session."""

    ring: KeyRing

    def seal_question(self, question: QuestionId, owner: Principal) -> str:
        """The JSON-RPC id of a question: about 140 characters."""
        claims = [QUESTION, question.session, question.round, question.number]
        return self.ring.seal(json.encode(claims), owner)

    def open_question(self, token: Any, session: str, owner: Principal) -> QuestionId | None:
        """The question that an answer is for; `None` if this session was never asked it."""
        match self._opened(token, owner):
            case [str(purpose), str(asked), str(round_), int(number)] if (
                purpose == QUESTION and asked == session
            ):
                return QuestionId(session, round_, number)
        return None

    def seal_call(self, session: str, facts: Any, owner: Principal) -> str:
        """A token for what is needed to go on with a call; `facts` is any JSON value."""
        return self.ring.seal(json.encode([CALL, session, facts]), owner)

    def open_call(self, token: Any, session: str, owner: Principal) -> Any:
        """The facts of a call of this session; `None` if the token has none."""
        match self._opened(token, owner, limit=None):
            case [str(purpose), str(of), facts] if purpose == CALL and of == session:
                return facts
        return None

    def _opened(self, token: Any, owner: Principal, limit: int | None = MAX_CHARS) -> Any:
        if not isinstance(token, str) or (limit is not None and len(token) > limit):
            return None
        try:
            return json.decode(self.ring.open(token, owner))
        except (SealBroken, ParseError):
            return None

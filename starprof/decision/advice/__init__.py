"""What to do about a recorded run: cures of its causes, another mode, or nothing; each with what it saves."""

from starprof.decision.advice.advise import advise
from starprof.decision.advice.result import ADVICE_SCHEMA, Advice, ModeRow, Now, Saving, Step

__all__ = ["ADVICE_SCHEMA", "Advice", "ModeRow", "Now", "Saving", "Step", "advise"]

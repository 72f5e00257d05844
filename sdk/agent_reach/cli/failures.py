"""What a failed command says: which part, why, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from rich.console import Console
from rich.text import Text

from agent_reach.client.errors import ReachError

_ADVICE = {
    grpc.StatusCode.INVALID_ARGUMENT: "correct what is named and try again",
    grpc.StatusCode.ALREADY_EXISTS: "use another key, or none; the first intent stands untouched",
    grpc.StatusCode.NOT_FOUND: "check the id, and that the API key belongs to the same tenant",
    grpc.StatusCode.FAILED_PRECONDITION: "nothing can be done any more; `reach explain ID` says what happened",
    grpc.StatusCode.UNAUTHENTICATED: "set REACH_API_KEY or --api-key to a valid key",
    grpc.StatusCode.PERMISSION_DENIED: "use the key of an operator",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "try again in a moment",
    grpc.StatusCode.UNAVAILABLE: "check that it runs (`reach status`) and that --target is right, then try again",
    grpc.StatusCode.DEADLINE_EXCEEDED: "try again; repeating is safe",
}
_OTHERWISE = "look into the log of the service"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure, as the user is told it."""

    part: str
    why: str
    advice: str


class CommandError(Exception):
    """A command cannot be carried out.

    Attributes:
        part: the part, in the user's words.
        advice: what the user can do about it.
    """

    def __init__(self, part: str, why: str, advice: str) -> None:
        super().__init__(f"{part}: {why}")
        self.part = part
        self.advice = advice


def describe(error: Exception) -> Failure | None:
    """Returns what to tell about an error; None for one that nobody expected."""
    if isinstance(error, ReachError):
        return Failure(_part(error), error.message, _advice(error))
    part, advice = getattr(error, "part", None), getattr(error, "advice", None)
    if isinstance(part, str) and isinstance(advice, str):
        return Failure(part, str(error).removeprefix(f"{part}: "), advice)
    return None


def show(failure: Failure) -> None:
    """Prints a failure on standard error."""
    console = Console(stderr=True, highlight=False)
    console.print(Text.assemble((f"{failure.part}: ", "bold red"), failure.why), soft_wrap=True)
    console.print(Text.assemble(("What to do: ", "bold"), failure.advice), soft_wrap=True)


def _advice(error: ReachError) -> str:
    if error_id := error.metadata.get("error_id"):
        return f"look for error {error_id} in the log of the service"
    return _ADVICE.get(error.code, _OTHERWISE)


def _part(error: ReachError) -> str:
    name = error.code.name.replace("_", " ").lower()
    return f"{name} ({error.reason})" if error.reason else name

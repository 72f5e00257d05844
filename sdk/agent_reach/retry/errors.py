"""What can go wrong, as a tree; each message says what to do.

::

    RetryError
    ├── RegistrationError         this task cannot be registered as asked; nothing was written
    │   ├── ParameterError        the parameter is not what the handler takes, or does not fit into JSON
    │   └── StrategyError         an unknown strategy, or one that lacks its interval
    ├── HandlerError              this function cannot be a handler, or cannot be done again later
    ├── NotInstalledError         the tables are not there, or are older than this library
    ├── BindingError              this connection cannot be used that way
    ├── TaskNotFoundError         there is no such task
    ├── TaskStateError            the task's state does not allow it
    ├── NoConnectionError         a handler's transaction found no connection; its attempt is not counted
    ├── AttemptFailedError        the handler answered `Retry` or `GiveUp` to a call that waited for its result
    └── AttemptInterruptedError   an attempt was ended by the library: it took too long, or was cancelled
"""

from __future__ import annotations


class RetryError(Exception):
    """Base of every error of this library.

    Attributes:
        part: which part of the system is meant, in the user's words.
        advice: what to do about it.
    """

    part = "retry"
    advice = "see docs/retry.md"


class RegistrationError(RetryError):
    """The task cannot be registered as asked; nothing was written, the caller's transaction is untouched."""


class ParameterError(RegistrationError):
    """The parameter is not what the handler takes, or does not fit into JSON."""


class StrategyError(RegistrationError):
    """An unknown strategy, or one that lacks its interval."""


class HandlerError(RetryError):
    """This function cannot be a handler, or cannot be done again later."""


class NotInstalledError(RetryError):
    """The tables are not there, or are older than this library."""

    advice = "run `reach retry install`, or retry.install(), as a role that may create them"


class BindingError(RetryError):
    """This connection cannot be used that way."""


class TaskNotFoundError(RetryError):
    """There is no such task."""

    advice = "`reach retry list` shows the tasks that are kept"


class TaskStateError(RetryError):
    """The task's state does not allow it."""

    advice = "`reach retry show ID` says what state it is in"


class NoConnectionError(RetryError):
    """A handler's transaction found no connection; its attempt is not counted."""

    advice = "more of them, or a lower concurrency"


class AttemptFailedError(RetryError):
    """The handler answered ``Retry`` or ``GiveUp`` to a call that waited for its result."""


class AttemptInterruptedError(RetryError):
    """An attempt was ended by the library: it took too long, or was cancelled."""

"""The one exception a user is meant to read: it names the key, the value, what is allowed, and the fix."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in a configuration, a command line or an input file, told in one message without a traceback.

    Args:
        key: the configuration key, file or argument at fault, as the user wrote it.
        value: the value found there.
        allowed: what would have been accepted, in words.
        fix: the next thing to type or change; may be empty where ``allowed`` already says it.
    """

    def __init__(self, key: str, value: object, allowed: str, fix: str = "") -> None:
        self.key, self.value, self.allowed, self.fix = key, value, allowed, fix
        super().__init__(key, value, allowed, fix)

    def __str__(self) -> str:
        message = f"{self.key}={self.value!r}: {self.allowed}"
        return f"{message}\n  fix: {self.fix}" if self.fix else message

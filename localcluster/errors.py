"""The errors of localcluster: each says what was found, what was expected and what to do."""

from __future__ import annotations


class LocalClusterError(Exception):
    """Something that the person at the keyboard can act on; `hint` says how."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)
        self.hint = hint


class ToolError(LocalClusterError):
    """A tool can be neither found nor provided, or a build failed."""


class UnsupportedHost(LocalClusterError):
    """This machine forbids what nodes are made of (user namespaces, bubblewrap)."""


class KubectlError(LocalClusterError):
    """kubectl failed; the message is what it said."""

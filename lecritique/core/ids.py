"""Identities. Groups are formed by identity, never by prompt text or position in a batch."""

from __future__ import annotations

from typing import NamedTuple


class GroupId(NamedTuple):
    """One attempt at one task row."""

    row: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.row}.{self.attempt}"


class RolloutId(NamedTuple):
    """One member of a group."""

    group: GroupId
    member: int

    def __str__(self) -> str:
        return f"{self.group}.{self.member}"

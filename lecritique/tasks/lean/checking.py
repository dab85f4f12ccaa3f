"""The acceptance rule: what a compiler must have said, and what it may not have said, for a proof to count."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lecritique.tasks.lean.proofs import theorem_name

ALLOWED_AXIOMS = frozenset(("propext", "Classical.choice", "Quot.sound"))
_AXIOMS = re.compile(
    r"'(?P<name>[^'\s]+(?:'[^'\s]*)*)' (?:does not depend on any axioms|depends on axioms: \[(?P<axioms>[^\]]*)\])\s*"
)


@dataclass(frozen=True, kw_only=True)
class LeanMessage:
    """One message. `line` counts from 1 in the checked body; 0 or less lies in the header."""

    severity: Literal["error", "warning", "information", "trace"]
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What a back end answers: messages, or the limit at which it was stopped."""

    outcome: Literal["compiled", "timeout", "exhausted"]
    messages: tuple[LeanMessage, ...] = ()
    sorries: int = 0


class LeanBackend(Protocol):
    """Compiles a body behind a header. Usable from several threads."""

    def compiled(self, header: str, body: str) -> Compilation:
        """The messages of `body`.

        Raises:
            VerifierFailure: there is no Lean to ask, or the header does not compile.
        """
        ...

    def close(self) -> None:
        """End all processes."""
        ...


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a proof is accepted, and what to tell the policy if not."""

    accepted: bool
    feedback: str = ""


def checked_body(statement: str, proof: str) -> str:
    """Our statement, the model's proof, and the question which axioms were used."""
    return f"{statement} :=\n{proof}\n\n#print axioms {theorem_name(statement)}\n"


def judged(compilation: Compilation, statement: str, proof: str) -> Verdict:
    """Accept only what has no error, no sorry and no axiom beyond the three of Lean's own logic.

    The answer about axioms must come from our own last line, exactly once, and be about our theorem.
    """
    if compilation.outcome == "timeout":
        return Verdict(accepted=False, feedback="Lean was stopped: the proof takes too long to check.")
    if compilation.outcome == "exhausted":
        return Verdict(accepted=False, feedback="Lean was stopped: the proof takes too much memory to check.")
    body = checked_body(statement, proof)
    errors = [message for message in compilation.messages if message.severity == "error"]
    if errors:
        return Verdict(accepted=False, feedback=_shown(errors, body))
    sorry = any(m.severity == "warning" and "sorry" in m.text for m in compilation.messages)
    if sorry or compilation.sorries:
        return Verdict(accepted=False, feedback="The proof uses `sorry`.")
    return _judged_axioms(compilation.messages, statement, body)


def _judged_axioms(messages: Sequence[LeanMessage], statement: str, body: str) -> Verdict:
    answers = [(message, found) for message in messages if (found := _AXIOMS.fullmatch(message.text))]
    name, last_line = theorem_name(statement), len(body.splitlines())
    if len(answers) != 1:
        return Verdict(accepted=False, feedback="The axioms that the proof depends on could not be determined.")
    message, found = answers[0]
    ours = found["name"] == name or found["name"].endswith(f".{name}")  # a namespace that our header opens
    if not ours or message.severity != "information" or message.line != last_line:
        return Verdict(accepted=False, feedback="The axioms that the proof depends on could not be determined.")
    used = {axiom.strip() for axiom in (found["axioms"] or "").split(",") if axiom.strip()}
    if not used <= ALLOWED_AXIOMS:
        return Verdict(accepted=False, feedback=f"The proof depends on axioms: {', '.join(sorted(used))}.")
    return Verdict(accepted=True)


def _shown(errors: Sequence[LeanMessage], body: str) -> str:
    lines = body.splitlines()
    shown = []
    for error in errors:
        at = lines[error.line - 1].strip() if 1 <= error.line < len(lines) else ""
        shown.append(f"error at `{at}`:\n{error.text}" if at else f"error:\n{error.text}")
    return "\n\n".join(shown)


def read_message(raw: Any, *, lines_before: int) -> LeanMessage:
    """A message as Lean's `--json`, the REPL and Kimina write it.

    Args:
        raw: the decoded JSON object.
        lines_before: lines in front of the body in what the positions refer to.

    Raises:
        ValueError: it is no message.
    """
    try:
        severity = {"info": "information"}.get(raw["severity"], raw["severity"])
        line, text = int(raw["pos"]["line"]) - lines_before, str(raw["data"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no message of Lean: {str(raw)[:200]}") from error
    if severity not in ("error", "warning", "information", "trace"):
        raise ValueError(f"a message of Lean with the severity {severity!r}")
    return LeanMessage(severity=severity, line=line, text=text)

"""What is taken from a response, and what a proof may not contain. The statement is never the model's."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

# Declares, evaluates or changes what later text means; or proves nothing. Lean reserves nearly all of these, so no
# honest proof needs them as a name.
REFUSED_WORDS = frozenset(
    (
        "axiom", "sorry", "sorryAx", "admit", "native_decide", "unsafe", "implemented_by", "extern", "opaque",
        "macro", "syntax", "elab", "notation", "run_cmd", "initialize", "set_option", "import", "by_elab", "run_tac",
        "run_elab", "run_meta", "include_str", "eval_expr", "reduceBool", "ofReduceBool", "trustCompiler", "csimp",
        "macro_rules", "elab_rules", "declare_syntax_cat", "infix", "infixl", "infixr", "prefix", "postfix",
        "notation3", "builtin_initialize", "simproc", "simproc_decl", "dsimproc", "builtin_simproc", "theorem",
        "lemma", "def", "abbrev", "instance", "example", "structure", "inductive", "coinductive", "class",
        "namespace", "section", "end", "variable", "variables", "universe", "universes", "attribute", "deriving",
        "export", "mutual", "private", "protected", "noncomputable", "partial", "scoped", "alias", "irreducible_def",
        "proof_wanted", "library_note", "add_decl_doc", "init_quot", "unset_option", "omit", "include", "public",
        "meta", "module", "prelude", "declare_config_elab", "register_option", "compile_inductive", "unif_hint",
        "binder_predicate", "suppress_compilation", "nonrec", "local",
    )
)  # fmt: skip
_LONGEST = 50_000
_BLOCK = re.compile(r"```[ \t]*(?:lean4?)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_STATEMENT = re.compile(r"\s*(?:theorem|lemma)\s+(?P<name>[^\s({\[:]+)", re.DOTALL)
_TAIL = re.compile(r"\s*:=\s*(?:by\b)?\s*(?:sorry\b)?\s*$")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"', re.DOTALL)
_SPECIAL = re.compile(r'--|/-|"')
_COMMENT_MARK = re.compile(r"/-|-/")
_WORD = re.compile(r"[^\W\d][\w!?]*")
# Letters of other scripts that look like Latin ones.
_LOOKS_LIKE = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u04bb\u0501\u051b\u051d\u0442\u043c\u03bf\u03b9\u03bd\u03c1\u03c4\u03b1",
    "aeopcyxsijhdqwtmoivpta",
)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Why a response holds no proof that may be checked, in words for the policy."""

    reason: str


def theorem_name(statement: str) -> str | None:
    """The name in `theorem NAME ...`; None where there is none."""
    found = _STATEMENT.match(statement)
    return found.group("name") if found else None


def trimmed_statement(statement: str) -> str:
    """A statement without `:=` and what stands behind it (`by`, `sorry`)."""
    return _TAIL.sub("", statement).strip()


def taken_proof(text: str, statement: str) -> str | Refused:
    """The proof in the last Lean code block of a response, without comments.

    The block holds the proof alone, or the whole theorem, whose statement must then be ours up to spacing.

    Args:
        text: a response; hostile.
        statement: ours, as `trimmed_statement` gives it.
    """
    blocks = _BLOCK.findall(text.replace("\r\n", "\n"))
    if not blocks:
        return Refused(reason="There is no Lean code block (```lean ... ```) in the answer.")
    block = blocks[-1]
    if len(block) > _LONGEST:
        return Refused(reason=f"The proof is longer than {_LONGEST} characters.")
    proof = _behind_statement(without_comments(block), without_comments(statement))
    if isinstance(proof, Refused):
        return proof
    proof = proof.strip().removeprefix(":=").strip()
    if not proof:
        return Refused(reason="The proof is empty.")
    reason = refusal(proof)
    return proof if reason is None else Refused(reason=reason)


def without_comments(text: str) -> str:
    """The text with comments (nested ones too) as spaces; lines and columns stay.

    Only what this leaves is compiled, so a comment that Lean would read otherwise hides nothing.
    """
    pieces: list[str] = []
    place = 0
    while place < len(text):
        end = _token_end(text, place)
        token = text[place:end]
        pieces.append(re.sub(r"[^\n]", " ", token) if token.startswith(("--", "/-")) else token)
        place = end
    return "".join(pieces)


def _token_end(text: str, start: int) -> int:
    """Where the comment, string or run of other text that begins at `start` ends."""
    if text.startswith("--", start):
        return _found(text, "\n", start)
    if text.startswith("/-", start):
        return _comment_end(text, start)
    if text[start] == '"':
        string = _STRING.match(text, start)
        return string.end() if string else len(text)
    other = _SPECIAL.search(text, start + 1)
    return other.start() if other else len(text)


def _comment_end(text: str, start: int) -> int:
    depth, place = 0, start
    for mark in _COMMENT_MARK.finditer(text, start):
        if mark.start() < place:  # shares a character with the last one: `/-/`
            continue
        depth += 1 if mark.group() == "/-" else -1
        place = mark.end()
        if depth == 0:
            return place
    return len(text)


def _found(text: str, mark: str, start: int) -> int:
    place = text.find(mark, start)
    return len(text) if place < 0 else place


def refusal(proof: str) -> str | None:
    """Why a proof (comments already gone) may not be compiled; None when it may.

    The text is searched as a whole, strings included, as it is and with look-alike letters made Latin: what is
    refused cannot be hidden by a reading of the text that differs from Lean's.
    """
    for character in proof:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") and character not in "\n\t":
            return f"The proof holds the invisible character U+{ord(character):04X}."
    for part in ("/-", "-/", "«", "»", "@[", "--"):
        if part in proof:
            return f"The proof may not contain `{part}`."
    command = re.search(r"#\s*[A-Za-z_]{2,}", proof)
    if command:
        return f"The proof may not contain the command `{command.group()}`."
    folded = unicodedata.normalize("NFKC", proof)
    for reading in (proof, folded, folded.translate(_LOOKS_LIKE)):
        for word in _WORD.findall(reading):
            if word in REFUSED_WORDS:
                return f"The proof may not contain `{word}`."
    if _open_command(proof):
        return "`open` may be used in a proof as `open ... in` only."
    return None


def _open_command(proof: str) -> bool:
    """Whether some `open` is not followed by names and `in`."""
    return any(
        re.match(r"(?:\s+(?!in\b)[\w.!?']+)+\s+in\b", proof[found.end() :]) is None
        for found in re.finditer(r"(?<![\w.])open(?![\w!?'])", proof)
    )


def _behind_statement(block: str, statement: str) -> str | Refused:
    """What follows the statement and its `:=` in a block; the whole block where it states no theorem."""
    stated = list(re.finditer(r"(?<![\w.])(?:theorem|lemma|example)(?![\w!?'])", block))
    if not stated:
        return block
    wanted = "".join(statement.split()) + ":="
    for start in (found.start() for found in stated):
        place, matched = start, 0
        while place < len(block) and matched < len(wanted):
            if block[place] == wanted[matched]:
                matched += 1
            elif not block[place].isspace():
                break
            place += 1
        if matched == len(wanted):
            return block[place:]
    return Refused(reason="The answer states another theorem. Repeat the statement unchanged, or give the proof alone.")

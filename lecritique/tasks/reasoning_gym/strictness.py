"""What an answer must be before a data set's own scorer may see it.

Some scorers evaluate what they are given, some raise on it, some pay for nothing. A necessary condition each keeps
those texts away from them: text that fails it is wrong.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from lecritique.tasks.json_values import JsonRefused, parse_json

Condition = Callable[[str, Mapping[str, Any]], bool]

_MOST_CHARACTERS = 2000
_COMPLEX = re.compile(r"[-+0-9.ij ()]{1,80}")
_PROBABILITY = re.compile(r"\d{1,20}(\.\d{1,20})?|\.\d{1,20}|\d{1,20} ?/ ?\d{1,20}")
_FACTORS = re.compile(r"\d{1,20}( ?\u00d7 ?\d{1,20}){0,80}")
_NUMBER = re.compile(r"[-+]?\$?\d[\d,]{0,20}(\.\d{1,20})?\.?")
_ARITHMETIC = re.compile(r"[-+*/() 0-9]{1,200}")
_EXPRESSION = re.compile(r"(?:[-+*/^(). ]|\d{1,12}|[A-Za-z]\w{0,9})*")
# Powers of powers and exponents of four digits and more: no answer needs them, and each costs a whole time limit.
_HUGE_POWER = re.compile(r"\*\*[-+ (]*\w+[ )]*\*\*|\*\*[-+ (]*\d{4}")
_NAMES = "sin cos tan sec csc cot sinh cosh tanh asin acos atan asinh acosh atanh exp log ln sqrt Abs erf pi E I C"
_FUNCTIONS = frozenset(_NAMES.split())


def may_be_scored(name: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether the scorer of data set `name` may see `answer`."""
    condition = CONDITIONS.get(name)
    return condition is None or (len(answer) <= _MOST_CHARACTERS and condition(answer, entry))


def _exact(answer: str, entry: Mapping[str, Any]) -> bool:
    return answer == entry["answer"]


def _exact_or_literal(answer: str, entry: Mapping[str, Any]) -> bool:
    """The answer itself, or a Python literal: evaluating one computes nothing."""
    if answer == entry["answer"] or answer in entry["metadata"].get("valid_answers", ()):
        return True
    try:
        ast.literal_eval(answer)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _grid(answer: str, entry: Mapping[str, Any]) -> bool:
    """A JSON array of the reference's shape; the library counts what is missing as merely not right."""
    try:
        return _shape(parse_json(answer)) == _shape(json.loads(entry["answer"]))
    except JsonRefused:
        return False


def _shape(value: Any) -> Any:
    return [_shape(part) for part in value] if isinstance(value, list) else None


def _matches(pattern: re.Pattern[str]) -> Condition:
    return lambda answer, entry: pattern.fullmatch(answer) is not None


def _puzzle24(answer: str, entry: Mapping[str, Any]) -> bool:
    """Exactly 24 from exactly the numbers; the library truncates and does not ask which numbers were used."""
    return _uses(answer, entry["metadata"]["numbers"]) and arithmetic_value(answer) == 24


def _countdown(answer: str, entry: Mapping[str, Any]) -> bool:
    return arithmetic_value(answer) is not None


def _uses(answer: str, numbers: list[int]) -> bool:
    return Counter(map(int, re.findall(r"\d+", answer))) == Counter(numbers)


def arithmetic_value(text: str) -> Fraction | None:
    """The value of an expression of whole numbers, + - * / and brackets; None where it is another or has none."""
    if not _ARITHMETIC.fullmatch(text) or "**" in text or "//" in text:
        return None
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError, RecursionError):
        return None


def _value(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if not isinstance(node, ast.BinOp):
        raise ValueError("not an expression of four operations")
    left, right = _value(node.left), _value(node.right)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    return left * right if isinstance(node.op, ast.Mult) else left / right


def _expression(answer: str, entry: Mapping[str, Any]) -> bool:
    """Numbers, variables of one letter, known functions and operators: nothing that sympy would run as code."""
    if not _EXPRESSION.fullmatch(answer) or _HUGE_POWER.search(answer):
        return False
    names = re.findall(r"[A-Za-z]\w*", answer)
    return all(name in _FUNCTIONS or (len(name) == 1 and name.islower()) for name in names)


CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    dict.fromkeys(("string_insertion", "spiral_matrix", "binary_matrix", "n_queens"), _exact_or_literal)
    | dict.fromkeys(("polynomial_multiplication", "simple_integration", "intermediate_integration"), _expression)
    | {
        "puzzle24": _puzzle24,
        "countdown": _countdown,
        "game_of_life": _grid,  # raises on JSON that is no array
        "game_of_life_halting": _exact,  # pays for any text
        "complex_arithmetic": _matches(_COMPLEX),  # pays for nan
        "coin_flip": _matches(_PROBABILITY),  # expands 1e999999999
        "gsm_symbolic": _matches(_NUMBER),  # takes the last number out of anything
        "prime_factorization": _matches(_FACTORS),  # raises on what is no number
    }
)

"""Writes the sample problems that `lecritique tasks validate --all` checks the math task with.

python -m scripts.make_math_sample
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "lecritique" / "tasks" / "math" / "sample.jsonl"


def latex(value: Fraction) -> str:
    """A number in LaTeX."""
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def problems() -> Iterator[dict[str, str]]:
    """Eight kinds of answers: fraction, polynomial, interval, set, pair, matrix, surd, word."""
    for n in range(25):
        a, b, c = n % 7 + 2, n % 5 + 1, n + 3
        yield problem(f"What is {a}/{c} - {b}/{a}?", latex(Fraction(a, c) - Fraction(b, a)), f"Over {a * c}.")
        yield problem(f"Expand (x + {n})(x + {c}).", f"x^2+{n + c}x+{n * c}", f"The sum of {n} and {c} is {n + c}.")
        yield problem(f"Which real x satisfy {n} <= x < {n + a}?", f"[{n},{n + a})", "As it stands.")
        yield problem(f"Which numbers solve (x - {n})(x - {c}) = 0?", f"\\{{{n},{c}\\}}", "A factor is 0.")
        yield problem(f"Where do x + y = {n + c} and x - y = {c - n} meet?", f"({c},{n})", f"2x = {2 * c}.")
        matrix = f"\\begin{{pmatrix}}{n}&0\\\\0&{c}\\end{{pmatrix}}"
        yield problem(f"Give the 2x2 diagonal matrix with {n} and {c} on its diagonal.", matrix, "By definition.")
        yield problem(f"Simplify the square root of {2 * (c * c)}.", f"{c}\\sqrt{{2}}", f"{2 * c * c} = {c}^2 * 2.")
        yield problem(f"Is {3 * n + 1} even?", "No" if n % 2 == 0 else "Yes", f"The last digit is {(3 * n + 1) % 10}.")


def problem(question: str, answer: str, remark: str) -> dict[str, str]:
    """One row in DeepMath's columns."""
    return {"question": question, "final_answer": answer, "r1_solution_1": f"{remark} So \\boxed{{{answer}}}."}


def main() -> None:
    """Write the file."""
    SAMPLE.write_text("".join(json.dumps(row) + "\n" for row in problems()), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Runs inside the sandbox, as the prelude of its workers: one recorded run of a program. Standard library only."""

import itertools
import json
import sys
import time
from random import Random
from typing import Any

_MOST_STEPS = 60
_MOST_EVENTS = 1000
_MOST_TRACE_CHARACTERS = 1500
_MOST_VALUE_CHARACTERS = 80


def record(code: str, generator: str, seed: int, trace: bool) -> dict[str, Any]:
    """{"inputs", "output", "trace", "seconds"}, or {"fault"} in words."""
    try:
        inputs = stable(defined(f"{code}\n\n{generator}", "generate_inputs")(Random(seed)), "an input")
        started = time.perf_counter()
        output = stable(defined(code, "main_solution")(**copied(inputs)), "an output")
        seconds = time.perf_counter() - started
        again = defined(code, "main_solution")(**copied(inputs))
        if json.dumps(output) != json.dumps(again):
            return {"fault": "two runs return different values"}
        if output is None or output in ("", [], {}):
            return {"fault": "it returns nothing"}
        steps = traced(code, copied(inputs)) if trace else ""
        return {"inputs": inputs, "output": output, "seconds": seconds, "trace": steps}
    except BaseException as error:  # a program may raise anything; that makes it unfit
        return {"fault": f"{type(error).__name__}: {str(error)[:200]}"}


def defined(source: str, function: str) -> Any:
    names: dict[str, Any] = {"Random": Random, "__name__": "program"}
    exec(compile(source, "<program>", "exec"), names)
    return names[function]


def copied(value: Any) -> Any:
    return json.loads(json.dumps(value))


def stable(value: Any, what: str) -> Any:
    """`value` as JSON brings it back, where that is equal to it and finite."""
    back = json.loads(json.dumps(value, allow_nan=False))
    if not bool(back == value):
        raise ValueError(f"{what} changes under JSON")
    return back


def traced(code: str, inputs: dict[str, Any]) -> str:
    """The values that variables of the program take, line by line, up to a limit."""
    lines, steps, last = code.splitlines(), [], {}
    events = itertools.count()

    def watch(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != "<program>" or frame.f_code.co_name.startswith("<"):
            return None
        if next(events) > _MOST_EVENTS:
            sys.settrace(None)
            return None
        if event in ("line", "return"):
            known = last.setdefault(id(frame), [frame, {}, None])
            note(known[1], frame.f_locals, known[2])
            known[2] = frame.f_lineno
        if event == "return":
            steps.append(f"{frame.f_code.co_name} returns {shown(argument)}")
        return watch if len(steps) < _MOST_STEPS else None

    def note(before: dict[str, str], now: dict[str, Any], line: Any) -> None:
        for name, value in now.items():
            text = shown(value)
            if before.get(name) != text:
                before[name] = text
                if text and line is not None:
                    steps.append(f"{lines[line - 1].strip()}    # {name} = {text}")

    main_solution = defined(code, "main_solution")
    sys.settrace(watch)
    try:
        main_solution(**inputs)
    finally:
        sys.settrace(None)
    kept: list[str] = []
    for step in steps[:_MOST_STEPS]:
        if sum(map(len, kept)) + len(step) > _MOST_TRACE_CHARACTERS:
            break
        kept.append(step)
    return "\n".join(kept)


def shown(value: Any) -> str:
    """A value as JSON, empty where it is none or long: other texts hold addresses."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return ""
    return text if len(text) <= _MOST_VALUE_CHARACTERS else ""

"""The protocol of leanprover-community's REPL on top of `lean_main.py`, as far as the back end uses it.

Each request is a JSON object and an empty line, each answer too. An environment is the text so far: this stand-in
compiles it again for every request. An answer of `$DIE` or `$HANG` in a command makes it end or hang.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LEAN = [sys.executable, str(Path(__file__).with_name("lean_main.py")), "--json", "--stdin"]


def place(raw: dict[str, Any], before: int) -> dict[str, int]:
    return {"line": raw["line"] - before, "column": raw["column"]}


def messages(known: str, command: str) -> list[dict[str, Any]]:
    done = subprocess.run(LEAN, input=known + command, capture_output=True, text=True, check=False)
    before = known.count("\n")
    found = []
    for raw in map(json.loads, filter(None, done.stdout.splitlines())):
        if raw["pos"]["line"] > before:
            severity = "info" if raw["severity"] == "information" else raw["severity"]
            found.append({"severity": severity, "pos": place(raw["pos"], before), "data": raw["data"]})
    return found


def answer(request: dict[str, Any], environments: list[str]) -> dict[str, Any]:
    known, command = "", request["cmd"]
    if "env" in request:
        if not 0 <= request["env"] < len(environments):
            return {"message": "Unknown environment."}
        known = environments[request["env"]]
    if "$DIE" in command:
        sys.exit(1)
    if "$HANG" in command:
        time.sleep(60)
    found = messages(known, command)
    environments.append(known + command)
    reply: dict[str, Any] = {"env": len(environments) - 1}
    if found:
        reply["messages"] = found
    sorries = [{"pos": m["pos"], "goal": ""} for m in found if m["severity"] == "warning" and "sorry" in m["data"]]
    return {**reply, "sorries": sorries} if sorries else reply


def main() -> None:
    environments: list[str] = []
    request = ""
    for line in sys.stdin:
        request += line
        if not line.strip() and request.strip():
            print(json.dumps(answer(json.loads(request), environments)) + "\n", flush=True)
            request = ""


if __name__ == "__main__":
    main()

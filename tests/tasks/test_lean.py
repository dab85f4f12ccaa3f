"""The Lean environment on the real compiler, with a toy library in place of Mathlib."""

import json
import os
import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lecritique.config.load import compose, load_recipe
from lecritique.core.errors import ConfigurationError, DataError, VerifierFailure
from lecritique.tasks.lean.backends import PlainBackend
from lecritique.tasks.lean.checking import checked_body, judged
from lecritique.tasks.lean.options import PlainLean
from lecritique.tasks.lean.processes import Limits
from lecritique.tasks.registry import load_environment
from lecritique.tasks.validate import validate_environment
from tests.tasks.lean_tools import HEADER, LEAN, TOY, block, lean_environment, lean_options, library

STATEMENT = "theorem and_of (p q : Prop) (hp : p) (hq : q) : And p q"
GOOD = "by\n  constructor\n  exact hp\n  exact hq"
WRONG = "by\n  constructor\n  exact hp\n  exact hp"


@pytest.fixture(scope="module", params=["lean", "repl"])
def environment(request):
    environment = lean_environment(request.param)
    yield environment
    environment.close()


def first_task(environment):
    return environment.task(0)


def test_gold_proofs_pay_and_junk_does_not(environment):
    report = validate_environment(environment, junk_items=1)
    assert report.ok and report.rows == report.gold_rows == 12 and report.junk_kinds >= 20, report.lines(30)


def test_proved_in_the_second_attempt_after_the_compilers_feedback(environment):
    episode = environment.start(first_task(environment))
    first = episode.reply(block(WRONG))
    assert not first.done
    feedback = first.messages[0].content
    assert "error at `exact hp`:\nType mismatch\n  hp\nhas type\n  p\nbut is expected to have type\n  q" in feedback
    assert "2 attempts left" in feedback
    second = episode.reply(block(f"{STATEMENT} := {GOOD}"))
    assert second.done and second.reward == 1.0
    with pytest.raises(ValueError, match="over"):
        episode.reply(block(GOOD))


def test_three_wrong_attempts_end_with_nothing(environment):
    episode = environment.start(first_task(environment))
    replies = [episode.reply(text) for text in (block(WRONG), "no code", block("by skip"))]
    assert [reply.reward for reply in replies] == [None, None, 0.0]
    assert (
        "no Lean code block" in replies[1].messages[0].content and "one attempt left" in replies[1].messages[0].content
    )


CHEATS = {
    "sorry": "sorry",
    "sorry in a tactic": "by\n  constructor\n  exact hp\n  sorry",
    "admit": "by admit",
    "sorryAx": "sorryAx (And p q) Bool.true",
    "axiom before": "theorem x : True := True.intro\naxiom c (p : Prop) : p",
    "new axiom": "c (And p q)\naxiom c (p : Prop) : p",
    "native_decide": "by native_decide",
    "unsafe": "unsafe (lcProof)",
    "implemented_by": "And.intro hp hq\n@[implemented_by foo] def bar := 1",
    "extern": 'And.intro hp hq\n@[extern "x"] opaque y : Nat',
    "macro": 'by foo\nmacro "foo" : tactic => `(tactic| skip)',
    "syntax": 'And.intro hp hq\nsyntax "x" : term',
    "elab": 'And.intro hp hq\nelab "x" : term => failure',
    "notation": 'And.intro hp hq\nnotation "And" => Or',
    "eval": "And.intro hp hq\n#eval 1",
    "run_cmd": "And.intro hp hq\nrun_cmd skip",
    "run_tac": "by run_tac skip",
    "by_elab": "by_elab failure",
    "initialize": "And.intro hp hq\ninitialize x : Nat ← pure 1",
    "set_option": "set_option debug.skipKernelTC true in And.intro hp hq",
    "import": "And.intro hp hq\nimport Mini",
    "another theorem": "by skip\ntheorem and_of2 (p q : Prop) (hp : p) (hq : q) : And p q := And.intro hp hq",
    "a namespace with our name": "by skip\nnamespace A\ntheorem and_of : True := True.intro\nend A",
    "the theorem proves itself": "and_of p q hp hq",
    "exit": "And.intro hp hp\n#exit",
    "the question in a comment": "And.intro hp hp /-",
    "the question in a string": 'And.intro hp hp "',
    "comment closed by us": "And.intro hp hp -/",
    "another statement": "theorem and_of (p q : Prop) (hp : p) (hq : q) : Or p q := Or.inl hp",
    "a weaker statement": "theorem and_of (p q : Prop) (hp : p) (hq : q) (h : And p q) : And p q := h",
    "hidden behind a comment": "by /- -/ sorry /- -/",
    "hidden in a nested comment": "by /- /- -/ -/ sorry",
    "look-alike": "by \u0455orry",
    "zero width": "by sor\u200bry",
    "quoted name": "«sorryAx» (And p q) Bool.true",
    "an axiom of the library": "eq_of_heq (HEq.refl (And.intro hp hq)) ▸ And.intro hp hq",
    "open as a command": "And.intro hp hp\nopen Nat",
    "forged answer": "by\n  trace \"'and_of' does not depend on any axioms\"\n  exact And.intro hp hp",
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
def test_cheats_are_refused(environment, cheat):
    task = first_task(environment)
    assert not environment.checked(task, block(cheat)).accepted
    assert not environment.checked(task, block(f"{STATEMENT} := {cheat}")).accepted


@pytest.fixture(scope="module")
def plain():
    lean_environment().close()
    options = PlainLean(type="lean", command=LEAN, environment={"LEAN_PATH": library()})
    return PlainBackend(options, Limits(seconds=30.0, memory_bytes=2 << 30), 1)


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        ("sorry", "sorry"),
        ("by\n  constructor\n  exact hp\n  sorry", "sorry"),
        ("sorryAx (And p q) Bool.true", "sorry"),
        ("eq_of_heq (HEq.refl (And.intro hp hq)) ▸ And.intro hp hq", "error"),
        ("by skip\nnamespace A\ntheorem and_of : True := True.intro\nend A", "error"),
        ("And.intro hp hq\n#print axioms and_of", "could not be determined"),
        ("And.intro hp hq\n#exit", "could not be determined"),
    ],
)
def test_the_compilers_answer_alone_refuses_what_the_words_would(plain, proof, words):
    """The second line of defence, with the first (refused words) left out."""
    verdict = judged(plain.compiled(HEADER, checked_body(STATEMENT, proof)), STATEMENT, proof)
    assert not verdict.accepted and words in verdict.feedback


def test_a_new_axiom_is_named_by_the_compiler(plain):
    """`axiom` exits 0 without a warning: only the question about axioms tells."""
    header = HEADER + "axiom cheat (p : Prop) : p\n"
    compilation = plain.compiled(header, checked_body(STATEMENT, "cheat (And p q)"))
    assert all(message.severity != "error" for message in compilation.messages)
    verdict = judged(compilation, STATEMENT, "cheat (And p q)")
    assert not verdict.accepted and verdict.feedback == "The proof depends on axioms: cheat."


@pytest.mark.parametrize("axiom", ["propext", "Classical.choice", "Quot.sound"])
def test_the_three_axioms_of_lean_are_allowed(plain, axiom):
    header = HEADER + f"axiom {axiom} (p : Prop) : p\n"
    proof = f"{axiom} (And p q)"
    assert judged(plain.compiled(header, checked_body(STATEMENT, proof)), STATEMENT, proof).accepted


def test_the_policy_is_told_what_to_do_and_not_the_proof(environment):
    task = first_task(environment)
    prompt = task.messages[0].content
    assert f"{HEADER}\n{STATEMENT} := sorry" in prompt and "3 attempts" in prompt and "exact hq" not in prompt
    assert task.reference.answer == GOOD
    ids = [environment.task(row).task_id for row in range(len(environment))]
    assert len(set(ids)) == 12 and ids[0].startswith("lean:and_of:")


FAKE = """
    import json, os, sys, time
    behaviour = {behaviour!r}
    if sys.argv[1:2] != ["repl"]:
        sys.stdin.read()
    elif behaviour != "at start":
        sys.stdin.readline(), sys.stdin.readline()
        print(json.dumps({{"env": 0}}) + "\\n", flush=True)
        sys.stdin.readline(), sys.stdin.readline()
    if behaviour in ("hang", "at start"):
        time.sleep(60)
    if behaviour == "memory":
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20) * 8))
            time.sleep(0.01)
    if behaviour == "output":
        while True:
            print("x" * 100_000)
    if behaviour == "abort":
        os.abort()
    print("Mathlib is not built", file=sys.stderr)
    sys.exit(3)
"""


def fake(tmp_path, kind, behaviour, **options):
    script = tmp_path / f"{behaviour}.py".replace(" ", "_")
    script.write_text(textwrap.dedent(FAKE.format(behaviour=behaviour)))
    backend = {"type": kind, "command": [sys.executable, str(script), kind]}
    if kind == "repl":
        backend["start_seconds"] = 1.0
    given = {"backend": backend, "limit_seconds": 0.5, "memory_mebibytes": 200, **options}
    return load_environment("lean", {"file": str(TOY / "theorems.jsonl"), "header": HEADER, **given})


@pytest.mark.parametrize("kind", ["lean", "repl"])
@pytest.mark.parametrize(
    ("behaviour", "words"),
    [("hang", "too long"), ("memory", "too much memory"), ("output", "memory"), ("abort", "memory")],
)
def test_a_lean_that_runs_away_is_killed_in_time(tmp_path, kind, behaviour, words):
    environment = fake(tmp_path, kind, behaviour, limit_seconds=0.5 if behaviour == "hang" else 20.0)
    begun = time.monotonic()
    verdict = environment.checked(first_task(environment), block(GOOD))
    assert not verdict.accepted and words in verdict.feedback
    assert time.monotonic() - begun < 20.0
    if behaviour == "hang":
        assert time.monotonic() - begun < 5.0
    environment.close()
    assert not children()


def children() -> list[str]:
    """Command lines of this process's children that are alive."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
                with open(f"/proc/{entry}/cmdline") as file:
                    command = file.read()
            except OSError:
                continue
            if int(parent) == os.getpid() and state != "Z" and "multiprocessing" not in command and ".py" in command:
                found.append(command)
    return [command for command in found if "hang.py" in command or "memory.py" in command or "output.py" in command]


@pytest.mark.parametrize(
    ("kind", "behaviour", "words"),
    [("lean", "exit", "exited with 3: Mathlib is not built"), ("repl", "at start", "did not import the header")],
)
def test_a_lean_that_cannot_work_is_a_failure_of_the_verifier(tmp_path, kind, behaviour, words):
    environment = fake(tmp_path, kind, behaviour)
    with pytest.raises(VerifierFailure, match=words):
        environment.checked(first_task(environment), block(GOOD))
    environment.close()


def test_a_header_that_does_not_compile_is_a_failure_of_the_verifier():
    for kind in ("lean", "repl"):
        environment = lean_environment(kind, header="prelude\nimport NoSuchLibrary\n")
        with pytest.raises(VerifierFailure, match=r"NoSuchLibrary|header"):
            environment.checked(first_task(environment), block(GOOD))
        environment.close()


def test_a_repl_is_replaced_after_it_dies_hangs_or_gets_old(tmp_path):
    backend = {**lean_options("repl")["backend"], "checks_per_process": 2}
    environment = lean_environment("repl", backend=backend, limit_seconds=3.0)
    task = first_task(environment)
    pids = []
    for proof in ("$DIE", "$HANG", GOOD, GOOD, GOOD):
        verdict = environment.checked(task, block(proof))
        assert verdict.accepted is (proof == GOOD)
        pids += [repl._process.pid for repl in environment._backend._idle]
    assert len(pids) == 2 and len(set(pids)) == 2, "a process serves two checks, then another takes over"
    environment.close()
    assert environment._backend._idle == []


def test_checks_from_several_threads(environment):
    task, verdicts = first_task(environment), []
    proofs = [GOOD, WRONG, GOOD, WRONG]

    def check(proof):
        verdicts.append((proof, environment.checked(task, block(proof)).accepted))

    threads = [threading.Thread(target=check, args=(proof,)) for proof in proofs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(verdicts) == sorted((proof, proof == GOOD) for proof in proofs)


class Kimina:
    """A stand-in for the server: its protocol, with the toy Lean behind it."""

    def __init__(self) -> None:
        self.requests = []
        self.result = None
        self.status = 200
        self.lines_of_body_only = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append((self.path, dict(self.headers), request))
                sent = json.dumps({"results": [server.result or server.answer(request)]}).encode()
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *args: object) -> None:
                pass

        options = PlainLean(type="lean", command=LEAN, environment={"LEAN_PATH": library()})
        self.lean = PlainBackend(options, Limits(seconds=30.0, memory_bytes=2 << 30), 2)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request):
        (snippet,) = request["snippets"]
        before = 0
        if self.lines_of_body_only:  # the imports are sent ahead
            before = next(n for n, line in enumerate(snippet["code"].split("\n")) if not line.startswith("import "))
        messages = [
            {
                "severity": message.severity.replace("information", "info"),
                "pos": {"line": message.line - before, "column": 0},
                "data": message.text,
            }
            for message in self.lean.compiled("", snippet["code"]).messages
        ]
        return {"id": snippet["id"], "time": 0.1, "response": {"env": 0, "messages": messages}}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def kimina():
    lean_environment().close()
    server = Kimina()
    yield server
    server.close()


def on(server, **options):
    return lean_environment("kimina", backend={"type": "kimina", "url": server.url, **options})


def test_a_kimina_server_is_asked_in_its_protocol(kimina, monkeypatch):
    monkeypatch.setenv("KIMINA_KEY", "k")
    environment = on(kimina, api_key_variable="KIMINA_KEY")
    task = first_task(environment)
    rejected = environment.checked(task, block(WRONG))
    assert not rejected.accepted and "error at `exact hp`:\nType mismatch" in rejected.feedback
    assert environment.checked(task, block(GOOD)).accepted
    path, headers, request = kimina.requests[-1]
    assert path == "/api/check" and headers["Authorization"] == "Bearer k" and request["timeout"] == 30
    assert request["snippets"][0]["code"] == HEADER + checked_body(STATEMENT, GOOD)
    for cheat in ("sorry", "eq_of_heq (HEq.refl (And.intro hp hq)) ▸ And.intro hp hq"):
        assert not environment.checked(task, block(cheat)).accepted


def test_a_kimina_server_that_counts_lines_from_behind_the_imports(kimina):
    kimina.lines_of_body_only = True
    # Its header of imports only is what the server splits off; the toy library needs `prelude` in front.
    kimina.lean.compiled, compiled = lambda header, code: compiled(header, "prelude\n" + code), kimina.lean.compiled
    kimina.answer, answer = lambda request: shifted(answer(request)), kimina.answer

    def shifted(result):
        for message in result["response"]["messages"]:
            message["pos"]["line"] -= 1
        return result

    environment = lean_environment("kimina", header="import MiniTac\n", backend={"type": "kimina", "url": kimina.url})
    assert environment.checked(first_task(environment), block(GOOD)).accepted
    assert "at `exact hp`" in environment.checked(first_task(environment), block(WRONG)).feedback


def test_what_a_kimina_server_says_of_limits_and_failures(kimina):
    environment = on(kimina)
    task = first_task(environment)
    kimina.result = {"id": "check", "error": "Lean REPL command timed out in 30 seconds"}
    assert "too long" in environment.checked(task, block(GOOD)).feedback
    kimina.result = {"id": "check", "error": "Memory limit exceeded"}
    assert "memory" in environment.checked(task, block(GOOD)).feedback
    for result in (
        {"id": "check", "error": "REPL failed"}, {"id": "check", "response": {"message": "Unknown environment."}}, [1],
        {"id": "check", "response": {"messages": "x"}},
    ):  # fmt: skip
        kimina.result = result
        with pytest.raises(VerifierFailure, match="Kimina"):
            environment.checked(task, block(GOOD))
    kimina.status = 429
    with pytest.raises(VerifierFailure, match="HTTP 429"):
        environment.checked(task, block(GOOD))


def test_a_kimina_server_that_is_not_there():
    environment = lean_environment("kimina", backend={"type": "kimina", "url": "http://127.0.0.1:9"})
    with pytest.raises(VerifierFailure, match="could not be asked"):
        environment.checked(first_task(environment), block(GOOD))


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ({"formal_statement": "def x := 1"}, {}, "row 0 has 'def x := 1'.*expected `theorem NAME"),
        ({"formal_statement": " "}, {}, "row 0 has ' ' in column 'formal_statement', expected text"),
        ({"formal_statement": 3}, {}, "row 0 has '3'"),
        (
            {"statement": "theorem t : p"},
            {},
            "row 0 has no column 'formal_statement'.*did you mean|row 0 has no column",
        ),
        ({"formal_statement": "theorem t : p"}, {"header_column": "header"}, "row 0 has no column 'header'"),
    ],
)
def test_a_bad_file_is_named_with_row_and_column(tmp_path, row, options, words):
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    given = {"file": str(tmp_path / "a.jsonl"), "backend": {"type": "kimina", "url": "http://x"}, **options}
    with pytest.raises(DataError, match=words) as caught:
        load_environment("lean", given)
    assert "a.jsonl" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "task.file"),
        ({"file": "x"}, "task.backend"),
        ({"file": "x", "backend": {"type": "lean", "command": ["no-such-lean"]}}, "no program 'no-such-lean'"),
        ({"file": "x", "backend": {"type": "lean", "command": []}}, "task.backend.lean.command"),
        ({"file": "x", "backend": {"type": "repl", "directory": "/no/such"}}, "no such directory"),
        ({"file": "x", "backend": {"type": "kimina", "url": "x"}}, "task.backend.kimina.url"),
        (
            {"file": "x", "backend": {"type": "kimina", "url": "http://x", "api_key_variable": "NONE_"}},
            "no such variable",
        ),
        (
            {"file": "x", "header": "a", "header_column": "b", "backend": {"type": "kimina", "url": "http://x"}},
            "header",
        ),
    ],
)
def test_options_that_do_not_fit(options, words):
    with pytest.raises(ConfigurationError, match=words):
        load_environment("lean", options)


def test_without_a_proof_there_is_no_gold(tmp_path):
    row = {"name": "a", "formal_statement": "theorem a : p := by sorry", "header": "import Mathlib", "informal": "{x}"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    options = {"header_column": "header", "informal_column": "informal", "name_column": "name"}
    backend = {"type": "kimina", "url": "http://x"}
    environment = load_environment("lean", {"file": str(tmp_path / "a.jsonl"), "backend": backend, **options})
    task = environment.task(0)
    assert (
        task.reference is None
        and "\n{x}\n" in task.messages[0].content
        and "import Mathlib" in task.messages[0].content
    )
    with pytest.raises(DataError, match=r"'a' has no proof: task.proof_column"):
        environment.gold(task, task.messages)


def test_the_minif2f_recipe_is_the_papers(tmp_path, monkeypatch):
    recipe = load_recipe("minif2f")
    config = compose(recipe, arm=recipe.default_arm, overrides=[])
    assert (config.rollout.batch_size, config.rollout.group_size, config.run.steps) == (128, 4, 500)
    assert (config.sampling.max_turn_tokens, config.sampling.max_total_tokens) == (4096, 24576)
    assert config.task.options["attempts"] == 3
    monkeypatch.chdir(tmp_path)
    row = {"name": "n", "split": "test", "informal_prefix": "/-- words -/", "formal_statement": "theorem n : p := by\n"}
    (tmp_path / "minif2f.jsonl").write_text(json.dumps({**row, "header": "import Mathlib\n"}))
    options = {**config.task.options, "backend": {"type": "kimina", "url": "http://x"}}
    assert load_environment("lean", options).task(0).metadata["statement"] == "theorem n : p"

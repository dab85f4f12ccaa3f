"""Run the quality filter over reasoning-gym's programs and freeze which pass. Minutes; needs a sandbox."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from lecritique.tasks.codeio import programs, trials


def main() -> None:
    """Write `accepted.txt` and say why the others were left out."""
    candidates = {program.digest: program for program in programs.all_bundled_programs()}
    with ThreadPoolExecutor(2) as threads:
        faults = dict(zip(candidates, threads.map(trials.unfit, candidates.values()), strict=True))
    accepted = [digest for digest, found in faults.items() if not found]
    lines = [" ".join(accepted[start : start + 12]) for start in range(0, len(accepted), 12)]
    programs._ACCEPTED.write_text("\n".join(lines) + "\n", encoding="ascii")
    print(f"{len(accepted)} of {len(candidates)} programs pass")
    reasons = Counter(" ".join(found.split()[:6]) for found in faults.values() if found)
    for reason, count in reasons.most_common(40):
        print(f"  {count} x {reason}")


if __name__ == "__main__":
    main()

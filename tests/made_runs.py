"""Run folders with made-up numbers, for reports: many rounds in no time.

As a script it says what a report of ten runs of 200 rounds costs: `python tests/made_runs.py`.
"""

import json
import tempfile
import time
from pathlib import Path

from fedbudget.summary import summarise

BUDGETS = {"energy": 4.0, "communication": 2e5, "memory": 4e7, "temperature": 2.0}
LAYERS = ["embeddings", "block 1", "block 2", "head"]
CLIENTS = 16
READ = {"cpu_time": 1.9, "memory": 7e7, "communication": 2e5, "downlink": 1.7e6}


def a_record(round, seed=0, clients=range(6), level=1.0, validation=None, **more):
    """A round whose usage is `level` of the budgets, with knobs and duals that move."""
    depth = 1 + (round + seed) % len(LAYERS)
    knobs = {"layers": depth, "steps": 40 + round % 7, "batch": 4, "accumulate": 1}
    use = {r: level * limit * (0.9 + 0.01 * (round % 9)) for r, limit in BUDGETS.items()}
    loss = 1.5 + 2 / round + 0.01 * seed
    return {
        "round": round,
        "cohort": list(clients),
        "knobs": {"*": {**knobs, "codec": f"eden{1 + round % 4}"}},
        "duals": {str(c): dict.fromkeys(BUDGETS, 0.01 * round + 0.001 * c) for c in clients},
        "train_loss": loss,
        "validation": {"loss": loss, "accuracy": 0.4, **(validation or {})},
        "up_bytes": int(2e5 * level * len(clients)),
        "down_bytes": int(1.7e6 * len(clients)),
        "usage": {
            "counted": {str(c): {**use, "downlink": 1.7e6, "time": 1.1} for c in clients},
            "measured": {str(c): {**READ, "time": 2.0 + 0.1 * c} for c in clients},
            "estimated": {str(c): {"energy": 5.0 + c, "temperature": 1.5} for c in clients},
        },
        "dropped": {"3": f"client 3 took {round} s"} if round % 10 == 0 else {},
        "flagged": {},
        "skipped": [],
        "late": 0,
        "train_s": 1.0,
        "evaluate_s": 0.5,
        "wall_s": 2.0,
        **more,
    }


def a_run(path, name="planner", seed=0, rounds=5, records=None, budgets=BUDGETS, ended=True):
    """A run folder as a run leaves it, or while it is under way."""
    path.mkdir(parents=True, exist_ok=True)
    records = [a_record(i, seed) for i in range(1, rounds + 1)] if records is None else records
    facts = {"name": name, "algorithm": "fedavg", "controller": "planner", "seed": seed}
    facts |= {"clients": CLIENTS, "cohort": 6, "engine": "loop"}
    limits = {"counted": [budgets]} if budgets else {}
    more = {"rounds": rounds, "budgets": limits, "layers": LAYERS}
    command = f"fedbudget run {name} --set seed={seed}"
    (path / "facts.json").write_text(json.dumps({**facts, **more, "command": command}))
    (path / "config.toml").write_text(
        f'name = "{name}"\nrounds = {rounds}\nseed = {seed}\n\n[data]\nsource = "topics"\n'
        f'\n[train]\nlr = 0.00{len(name) % 9 + 1}\n\n[budget]\naccounting = "counted"\n'
    )
    (path / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if ended:
        summary = summarise(records, facts, rounds, limits)
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def ten_runs(folder):
    """Ten names, 200 rounds each."""
    for i in range(10):
        records = [a_record(r, i, level=0.5 + 0.1 * i) for r in range(1, 201)]
        a_run(folder / f"m{i}", f"method {i}", 0, 200, records)
    return folder


def main():
    from fedbudget.report.load import find_runs
    from fedbudget.report.write import write_report

    with tempfile.TemporaryDirectory() as name:
        folder = ten_runs(Path(name))
        start = time.process_time()
        (page,) = write_report(find_runs([folder]), folder / "report.html")
        spent = time.process_time() - start
        print(f"ten runs of 200 rounds: {spent:.2f} s of CPU, {page.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

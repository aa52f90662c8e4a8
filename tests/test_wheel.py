"""An installed wheel works in any folder, without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_wheel_runs_outside_the_repository(tmp_path):
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", str(tmp_path), str(ROOT)),
        ],
        check=True,
        timeout=300,
    )
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    work = tmp_path / "work"
    work.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def fedbudget(*arguments):
        code = "import fedbudget, sys; assert 'site' in fedbudget.__file__.split('/')[-3];"
        code += "from fedbudget.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    listed = fedbudget("presets")
    assert "fedavg" in listed.stdout, listed.stderr
    quick = ["--set", "rounds=2", "--set", "train.steps=40", "--set", "data.source=topics"]
    done = fedbudget("demo", *quick, "--set", "control.least_steps=1", "--set", "workers=2")
    assert done.returncode == 0, done.stderr
    assert (work / "runs" / "demo" / "report.html").exists()
    run = fedbudget("run", "fedavg", *quick, "--set", "model.size=1x32", "--set", "workers=1")
    assert run.returncode == 0, run.stderr

"""Check exported directories with several versions of transformers, each in an environment of its own.

    python tests/matrix/run.py --contract CONTRACT.py [--versions 4.57.6,5.24.0] [--home DIR] DIRECTORY...

CONTRACT.py is a script that takes a directory and exits non-zero if a check fails; it runs where eulerstack is not
installed. Environments are kept under --home and reused. Exit status 1 if anything failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
VERSIONS = ("4.57.6", "5.9.0", "5.14.1", "5.19.0", "5.24.0")


def torch_requirement() -> str:
    """torch as constraints.txt pins it."""
    lines = (REPO / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def environment(version: str, home: Path) -> Path:
    """The interpreter of an environment with this transformers, made if need be."""
    folder = home / f"transformers-{version}"
    python = folder / "bin" / "python"
    done = folder / "complete"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        for packages in ((torch_requirement(),), (f"transformers=={version}", "numpy")):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        done.touch()
    return python


def check(python: Path, contract: Path, directory: Path) -> tuple[bool, str]:
    """Run the contract on one directory with a module cache of its own; whether it passed, and what it printed."""
    with tempfile.TemporaryDirectory() as cache:
        env = {"PATH": os.environ["PATH"], "HF_HOME": cache, "HF_HUB_OFFLINE": "1", "HOME": cache}
        done = subprocess.run(
            [python, "-I", contract, directory], capture_output=True, text=True, env=env, cwd=cache, check=False
        )
    return done.returncode == 0, done.stdout or done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=lambda p: Path(p).absolute())
    parser.add_argument("--contract", required=True, type=lambda p: Path(p).absolute())
    parser.add_argument("--versions", default=",".join(VERSIONS))
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "eulerstack-matrix")
    a = parser.parse_args()
    failures = 0
    for version in a.versions.split(","):
        python = environment(version, a.home.absolute())
        for directory in a.directories:
            ok, output = check(python, a.contract, directory)
            last = output.strip().splitlines()[-1] if output.strip() else "no output"
            print(
                f"{version:8} {'ok  ' if ok else 'FAIL'} {directory.parent.name}/{directory.name}: {last}", flush=True
            )
            if not ok:
                failures += 1
                print("\n".join(f"    {line}" for line in output.splitlines() if " ok " not in line))
    print(f"{failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs of doit beside a collection, and after one."""

import subprocess
import sys
import threading

from eulerstack.graph.collect import Collector, Wish
from eulerstack.graph.verify import verify

GRIND = """
import sys
from pathlib import Path
from eulerstack.graph.collect import Collector, Wish
root = Path(sys.argv[1])
print("ready", flush=True)
while True:
    Collector(root / "cache", root / "build", Wish(max_size=0, published_too=False)).run()
"""


def test_runs_beside_a_collection_that_never_ends_are_right(house):
    """Two runs at once, several times over, with changes; each must end well, though all that is unused is taken."""
    environment = house.environment()
    with subprocess.Popen(
        [sys.executable, "-c", GRIND, str(house.root)], env=environment, stdout=subprocess.PIPE
    ) as grinder:
        assert grinder.stdout.readline() == b"ready\n"
        try:
            for words in ("beta", "alpha beta"):
                house.preset("one", words)
                both = [threading.Thread(target=house.doit, args=("-c", "cpu_sanity")) for _ in range(2)]
                for run in both:
                    run.start()
                for run in both:
                    run.join()
                house.doit("cpu_sanity")
                assert (house.root / "build/one/hf/config.json").read_text().count(":") == len(words.split())
            assert grinder.poll() is None
        finally:
            grinder.kill()
    assert house.doit("cpu_sanity") == "8 tasks up to date\n"
    assert verify(house.root / "cache").damaged == []


def test_what_was_collected_under_a_build_folder_is_made_again(house):
    house.doit()
    before = house.contents()
    Collector(house.root / "cache", house.root / "build", Wish(max_size=0, published_too=True)).run()
    assert not (house.root / "build/one/hf").exists()
    house.doit()
    assert house.contents() == before


def test_what_a_running_task_reads_stays(inside, house, monkeypatch):
    """Even if the build folder is not asked, as for a workspace that another one shares the cache with."""
    for step in (steps := inside()).values():
        if step.name in ("normalize:one", "compile:one", "normalize:two"):
            step.is_fresh()
            step.build()
    export, work = steps["export:one"], steps["export:one"].place.work

    def work_and_collect(step, folder, out):
        wish = Wish(max_size=0, published_too=True)
        assert Collector(house.root / "cache", house.root / "build", wish).run().removed["results"] == 2
        work(step, folder, out)

    monkeypatch.setattr(export.place, "work", work_and_collect)
    export.is_fresh()
    export.build()
    left = verify(house.root / "cache")
    assert (left.results, left.damaged) == (2, [])  # that of compile:one, which it read, and its own
    assert inside()["export:one"].is_fresh()

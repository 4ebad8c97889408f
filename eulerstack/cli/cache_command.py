"""`eulerstack cache`: what the cache holds, making it smaller, reading it again, emptying it."""

import json
import re
from pathlib import Path

import click

from eulerstack.cli.options import size

SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SPANS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


class Size(click.ParamType):
    """Bytes: 500M, 10G, 1.5T, in powers of 1024."""

    name = "size"

    def convert(self, value, param, ctx) -> int:
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([KMGT]?)(?:i?B)?", value, re.ASCII | re.IGNORECASE)
        if not found:
            self.fail(f"'{value}' is no size; give one such as 500M or 10G", param, ctx)
        return int(float(found[1]) * SIZES[found[2].upper()])


class Span(click.ParamType):
    """Seconds: 45m, 12h, 30d, 2w."""

    name = "time"

    def convert(self, value, param, ctx) -> int:
        found = re.fullmatch(r"(\d{1,6})([mhdw])", value, re.ASCII)
        if not found:
            self.fail(f"'{value}' is no time; give one such as 12h, 30d or 2w", param, ctx)
        return int(found[1]) * SPANS[found[2]]


@click.group("cache")
def command() -> None:
    """See, shrink, check or empty the cache of results."""


@command.command("stats")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def stats(as_json: bool) -> None:
    """What the cache holds, in bytes and by stage; a file with several names counts once."""
    figures = _figures(*_places())
    if as_json:
        click.echo(json.dumps(figures, indent=1))
        return
    from eulerstack.cli.tables import columns

    counts = figures["counts"]
    rows = [(part, str(counts.get(part, "")), size(used)) for part, used in figures["bytes"].items()]
    stages = [(stage, str(row["results"]), size(row["bytes"])) for stage, row in figures["stages"].items()]
    here = figures["published"]
    title = [figures["cache"], ""]
    told = ["", f"build/ stands on {here['results']:,} results, {size(here['bytes'])}"]
    by = ["", "by stage; what several share counts in each", *columns(stages)] if stages else []
    click.echo("\n".join([*title, *columns(rows), *told, *by]))


@command.command("gc")
@click.option(
    "--max-size", type=Size(), metavar="SIZE", help="Remove what was not used for longest, until this is left."
)
@click.option("--older-than", type=Span(), metavar="TIME", help="Remove what was not used for 30d, whatever the size.")
@click.option("--published", is_flag=True, help="Remove also what build/ of this workspace stands on.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
def gc(max_size: int | None, older_than: int | None, published: bool, dry_run: bool) -> None:
    """Remove results, those first that were not used for longest; then what no result names, and what was left
    unfinished. May run beside doit: a result that is in use or being made stays.
    """
    from eulerstack.graph.collect import Collector, Wish

    cache, build = _places()
    wish = Wish(max_size, older_than, published, dry_run)
    done = Collector(cache, build, wish).run()
    counted = ", ".join(f"{count:,} {what}" for what, count in sorted(done.removed.items())) or "nothing"
    verb = "would remove" if dry_run else "removed"
    click.echo(f"{verb} {counted}: {size(done.freed)}; {size(done.left)} {'would be ' if dry_run else ''}left")
    for line in _stayed(done, max_size):
        click.echo(line)


@command.command("verify")
@click.option("--repair", is_flag=True, help="Set aside what is damaged; it is made again when it is asked for.")
def verify(repair: bool) -> None:
    """Read all results, objects and trees again and compare them with their hashes; status 1 if one differs."""
    from eulerstack.graph.verify import set_aside
    from eulerstack.graph.verify import verify as verified

    cache, _ = _places()
    found = verified(cache)
    for damage in found.damaged:
        click.echo(f"{damage.path}: {damage.what}")
    for path, target in set_aside(cache, found.damaged) if repair and found.damaged else ():
        click.echo(f"{path} is now {target}")
    parts = f"{found.results:,} results, {found.objects:,} objects, {found.trees:,} trees"
    click.echo(f"{parts}, {size(found.size)} read: {len(found.damaged):,} damaged")
    if found.damaged:
        if not repair:
            click.echo("`eulerstack cache verify --repair` sets them aside; doit then makes them again")
        raise SystemExit(1)


@command.command("clear")
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(yes: bool) -> None:
    """Remove everything in the cache. It asks first, and refuses while a run is at work."""
    from eulerstack.graph.clear import clear as emptied
    from eulerstack.graph.clear import refuse_if_at_work
    from eulerstack.graph.inventory import sizes

    cache, _ = _places()
    refuse_if_at_work(cache)
    held = sum(sizes(cache).values())
    if not yes:
        click.confirm(f"Remove {size(held)} in {cache}? Everything in it can be made again.", abort=True)
    emptied(cache)
    click.echo(f"{cache}: {size(held)} removed")


def _places() -> tuple[Path, Path]:
    from eulerstack.paths import build_dir, cache_dir

    return cache_dir(), build_dir()


def _figures(cache: Path, build: Path) -> dict:
    from eulerstack.graph.inventory import objects, published, results, shards, sizes, trees

    found, here = results(cache), published(build, cache)
    used = sizes(cache)
    standing = [one for one in found.values() if here.holds(one)]
    stages = sorted({one.stage for one in found.values()})
    return {
        "cache": str(cache),
        "counts": {
            "results": len(found),
            "objects": len(objects(cache)),
            "trees": len(trees(cache)),
            "tokens": sum(shard.whole for shard in shards(cache).values()),
            "damaged": len(list((cache / "damaged").glob("*"))),
            "logs": len(list((cache / "logs").glob("**/*.log"))),
        },
        "bytes": used | {"total": sum(used.values())},
        "published": {"results": len(standing), "bytes": _named(standing)},
        "stages": {stage: _row([one for one in found.values() if one.stage == stage]) for stage in stages},
    }


def _row(found: list) -> dict[str, int]:
    return {"results": len(found), "bytes": _named(found)}


def _named(found: list) -> int:
    """The bytes of all objects that these results name, each once."""
    return sum({sha256: length for one in found for sha256, length in one.objects.items()}.values())


def _stayed(done, max_size: int | None) -> list[str]:
    lines = []
    if max_size is not None and done.left > max_size:
        lines.append(f"that is more than {size(max_size)}; build/ stands on {done.published:,} results (--published)")
    if done.busy:
        lines.append(f"{done.busy:,} in use or being made stayed")
    if done.unswept:
        lines.append("results are being written without a pause: what none of them names stayed; run it again later")
    return lines

"""`eulerstack`: one file of this folder per command, loaded when it is asked for, so that none pays for another."""

import pkgutil
import sys
from importlib import import_module

import click

from eulerstack import __version__, cli
from eulerstack.errors import EulerStackError

CONTEXT = {"help_option_names": ["-h", "--help"]}


class Commands(click.Group):
    """The modules `<name>_command` of this package, each with a click command called `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (module.name.rpartition("_") for module in pkgutil.iter_modules(cli.__path__))
        return sorted(name for name, _, kind in names if kind == "command")

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        return import_module(f"{cli.__name__}.{name}_command").command

    def resolve_command(self, ctx, args):
        if args and args[0] not in (known := self.list_commands(ctx)):
            from difflib import get_close_matches

            near = get_close_matches(args[0], known, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"no command '{args[0]}'.{hint} Commands: {', '.join(known)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings=CONTEXT, epilog="Run `doit list` for the build graph.")
@click.version_option(__version__, prog_name="eulerstack")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def root(debug: bool) -> None:
    """Make for LLM architectures: a YAML preset to a checked Hugging Face directory."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line. Problems go to stderr in three lines each, with exit status 1; usage errors are 2."""
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    try:
        root([a for a in arguments if a != "--debug"], prog_name="eulerstack")
    except EulerStackError as error:
        if debug:
            raise
        click.echo(str(error), err=True)
        sys.exit(1)
    except OSError as error:
        if debug:
            raise
        what = f"{error.filename or 'eulerstack'}: {type(error).__name__}: {error.strerror or error}"
        click.echo(f"{what}\nFix: correct the path or its permissions\nSee: docs/building.md#failures", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()

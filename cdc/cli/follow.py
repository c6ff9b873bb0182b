"""Program `follow`: apply changelogs to mirrors and histories, or rebuild these."""

from __future__ import annotations

import logging
from functools import partial

import click
from rich.console import Console

from cdc.cli.commands import log_level_option, pipeline_options, run_as_command
from cdc.cli.starting import check_locally, start_session
from cdc.logs import escape_controls
from cdc.pipeline import Config, Following, check_following
from cdc.pipeline import config as configuration
from cdc.shutdown import Stop, end, has_jvm_ended
from cdc.terminal import Terminal

_log = logging.getLogger("cdc.cli.follow")  # also where the module runs as a program
_POLL_SECONDS = 0.2


def run(config: Config, available_now: bool, console: Console) -> int:
    """Follow until SIGTERM or Ctrl-C, or, with `available_now`, until nothing is pending.

    Returns the exit code. Exits the process with code 0 if a commit takes longer than
    `stop.seconds`: the next run makes it again.
    """
    with Stop() as stop:
        following = _open(config)
        stop.defer()
        try:
            return _run(following, config, available_now, console, stop)
        except Exception:
            # A service manager often signals all processes at once, the JVM too.
            if stop.wait(_POLL_SECONDS) and has_jvm_ended():
                return 0
            raise


def _open(config: Config) -> Following:
    check_locally(config, partial(check_following, config=config))
    return Following(start_session("mongodb-cdc follow", config), config)


def _run(
    following: Following, config: Config, available_now: bool, console: Console, stop: Stop
) -> int:
    following.start()
    shown: tuple[int, int] | None = None
    while not stop.wait(_POLL_SECONDS):
        has_caught_up = following.has_caught_up()
        last, backlog = following.last, following.backlog()
        if last is not None and shown != (last, backlog.batches):
            shown = (last, backlog.batches)
            _show(last, backlog.batches, backlog.seconds)
        if has_caught_up and available_now:
            break
    has_ended = following.stop(config.stop_seconds)
    console.print(f"ended with {following.backlog().batches} batches pending")
    if not has_ended:
        end(0)
    return 0


def _show(last: int, pending: int, seconds: float) -> None:
    text = f"batch={last} pending={pending}" + (f" waiting={seconds:.0f}s" if pending else "")
    _log.info(text)


def rebuild(config: Config, collections: tuple[str, ...], console: Console) -> int:
    """Rebuild the mirrors and histories of collections; return the exit code."""
    names = [config.parse_captured(name) for name in collections]
    for table in _open(config).rebuild(names):
        console.print(f"rebuilt {escape_controls(str(table.target))}", soft_wrap=True)
    return 0


@click.command()
@pipeline_options
@click.option("--available-now", is_flag=True, help="Stop when nothing is pending any more.")
@click.option(
    "--rebuild",
    "is_rebuild",
    is_flag=True,
    help="Make tables again from their changelogs, then end.",
)
@click.option(
    "--collection", "collections", multiple=True, help="With --rebuild: a full name, db.coll."
)
@log_level_option()
@run_as_command
def main(
    path: str | None,
    available_now: bool,
    is_rebuild: bool,
    collections: tuple[str, ...],
    overrides: tuple[str, ...],
) -> int:
    """Apply changelogs to mirrors and histories, on another machine than replicate if need be.

    Example: mongodb-cdc follow --config conf/local.toml -o sink.follow.by=follow
    """
    if is_rebuild != bool(collections):
        raise click.UsageError("--rebuild and --collection belong together.")
    config = configuration.load(path, overrides)
    console = Terminal(stderr=True)
    if is_rebuild:
        return rebuild(config, collections, console)
    return run(config, available_now, console)


if __name__ == "__main__":
    main()

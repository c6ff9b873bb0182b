"""Which process of a run executes a test: all tests of one scope, in one process.

A scope is what shares something that is slow to start: a JVM, or the servers of a file.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

FOLDER = Path(__file__).parent
_JVMS = ("landing", "followers", "jobs")
# The files of `tests/delta` about what follows a changelog. They take as long as all others there.
_OF_FOLLOWERS = frozenset(
    f"tests/delta/test_{name}.py"
    for name in (
        *("followers", "followers_at_once", "history", "live_view", "mirror", "point_in_time"),
        *("rebuild", "sql_view", "typed_mirror"),
    )
)


def sort_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that take longest come first, so that no process is left with one of them at the end.

    These are the tests that share a JVM: those of the tables, on which it warms up best, before
    those of the whole job. Among the slow ones these are programs, which start a JVM of their own.
    """
    is_slow = _is_slow(config)

    def rank(item: pytest.Item) -> int:
        scope = _scope(item.nodeid)
        if scope in _JVMS:
            return 4 * (scope == "jobs") if is_slow else _JVMS.index(scope)
        return 3 if scope != item.nodeid else 4

    items.sort(key=rank)


class ByScope(LoadScopeScheduling):
    """Gives all tests of one scope to one process."""

    # Not by marks: with pytest 9, xdist 3.8 heeds no `xdist_group`.
    def _split_scope(self, nodeid: str) -> str:
        return _scopes(self.config)(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give the rest of a process that ended to others.

        xdist would also give away the scopes that are complete. A process that gets one of them has
        nothing to report, so it would get nothing else, and the run would never end.
        """
        work = self.assigned_work[node]
        for scope in [scope for scope, tests in work.items() if all(tests.values())]:
            del work[scope]
        crashed: str | None = super().remove_node(node)
        return crashed

    def schedule(self) -> None:
        """Assign the first scopes to each process, also to one that replaces another.

        A process executes a test when it knows the next one. So two scopes are needed if the first
        has one test; xdist assigns two only when the run begins.
        """
        is_replacing = self.collection is not None
        super().schedule()
        if is_replacing:
            super().schedule()


def _scopes(config: pytest.Config) -> Callable[[str], str]:
    return _scope_of_slow if _is_slow(config) else _scope_of_fast


def _is_slow(config: pytest.Config) -> bool:
    return bool(config.getoption("-m") == "slow")


def _scope(nodeid: str) -> str:
    """The scope of a test.

    Tests that ask for `spark` have one of three scopes. The tests of a file that share servers have
    one, so that these are started once. Each other test has its own.
    """
    path, _, test = nodeid.partition("::")
    if test.partition("[")[0] in _list_spark_tests(path):
        if not path.startswith("tests/delta/"):
            return "jobs"
        return "followers" if path in _OF_FOLLOWERS else "landing"
    return path if _shares_servers(path) else nodeid


def _scope_of_fast(nodeid: str) -> str:
    """The scope of a test that is not slow: that of the whole job goes on in the JVM of the
    followers, which is warm by then. Together they take about as long as the landing does."""
    scope = _scope(nodeid)
    return "followers" if scope == "jobs" else scope


def _scope_of_slow(nodeid: str) -> str:
    """The scope of a slow test: that of the whole job is divided, because it takes so long that a
    third JVM pays."""
    scope = _scope(nodeid)
    return nodeid.partition("::")[0] if scope == "jobs" else scope


@cache
def _list_spark_tests(path: str) -> frozenset[str]:
    """The functions of a file that ask for `spark`, themselves or by a fixture of the file."""
    tree = ast.parse((FOLDER.parent / path).read_text())
    arguments = {
        each.name: [argument.arg for argument in each.args.args]
        for each in tree.body
        if isinstance(each, ast.FunctionDef)
    }

    def asks(name: str) -> bool:
        return name == "spark" or any(map(asks, arguments.get(name, ())))

    return frozenset(filter(asks, arguments))


@cache
def _shares_servers(path: str) -> bool:
    """Whether a fixture is made for the whole module, in the file or in `tests/mongo`."""
    text = (FOLDER.parent / path).read_text()
    return 'scope="module"' in text or "cluster: Cluster" in text

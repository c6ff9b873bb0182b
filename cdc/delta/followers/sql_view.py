"""The SQL view beside a mirror in a catalog: the mirror and what its changelog contains already.

`<mirror>_live` has the columns of the mirror, and the rows that the mirror will have when it has
applied its changelog: the rules are those of `cdc.delta.followers.mirror`. Whoever can read both
tables can read the view, in SQL alone.

    … FROM mirror VERSION AS OF 7 … FROM changelog WHERE _batch > 41 …

The text names one version of the mirror and the last batch in it. A query gets this pair before it
reads the changelog, which therefore contains that batch at least. So every result is exact as of
the changelog's newest batch, however old the text is, and whatever is committed meanwhile: an old
text only reads more of the changelog. It must be renewed before Delta removes the version, after
seven days by default. (A text that named the batch alone would not do: Delta may read the mirror
after the changelog, and a document that the mirror has deleted by then would come back.)
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cdc.delta.columns import BATCH, ID, Image, after_text, id_text, taken_text
from cdc.delta.followers.mirror import MIRROR
from cdc.delta.followers.pending_batches import feeds
from cdc.delta.landing import CHANGELOG, ROW_OPS, effects
from cdc.delta.log import Target
from cdc.delta.sql import literal, quoted
from cdc.delta.tables import (
    PIPELINE,
    SOFT,
    Layout,
    Table,
    Tables,
    identity,
    live_view,
    put_view,
    text_of_view,
)
from cdc.errors import TableOwnedElsewhere
from cdc.model import Namespace

_log = logging.getLogger(__name__)
KIND = "live_view"
# A catalog that refuses a view is not asked again with every commit.
_RETRY_SECONDS = 60.0
_TAIL = re.compile(rf"{BATCH} > -?\d+")
ViewUpTo: TypeAlias = Callable[[int], DataFrame]
_ROW = ("op", "position", "cluster_time", "cluster_inc", "db", "coll", "key", "txn", "description")


@dataclass(slots=True)
class SqlViews:
    """The views beside the mirrors of one pipeline.

    A view is a convenience: where none is possible, the log says why, once, and nothing fails.
    """

    _written: dict[Target, Hashable] = field(default_factory=dict)
    _refused: dict[Target, tuple[str, float]] = field(default_factory=dict)

    def renew(self, spark: SparkSession, table: Table, mirrors: Tables, changelogs: Tables) -> None:
        """Let the view beside a mirror begin at the version that is known of the mirror.

        Create it if there is none. Call it after each commit to the mirror. Without effect for a
        mirror at a path, and for one that contains no batch yet or is being rebuilt: the view that
        is there stays exact.
        """
        last = mirrors.last(table)
        _, until = self._refused.get(table.target, ("", 0.0))
        if not table.target.is_name or last is None or last.is_empty or time.monotonic() < until:
            return
        sources = frozenset(feeds(table, mirrors, changelogs))
        if self._written.get(table.target) == (mirrors.version(table), last.batch, sources):
            return
        place = live_view(table.target)
        try:
            query = _query(spark, table, mirrors, sources)
            put_view(spark, place, identity(mirrors.pipeline, KIND, table), query)
            self._written[table.target] = mirrors.version(table), last.batch, sources
        except _Impossible as reason:
            self._refuse(table.target, f"no view {place} is made: {reason}", logging.INFO)
        except (TableOwnedElsewhere, PySparkException, Py4JError) as error:
            text = str(error).strip().partition("\n")[0]
            self._refuse(table.target, f"the view {place} was not renewed: {text}", logging.WARNING)

    def _refuse(self, mirror: Target, text: str, level: int) -> None:
        if self._refused.get(mirror, ("", 0.0))[0] != text:
            _log.log(level, "%s: %s", mirror, text)
        self._refused[mirror] = text, time.monotonic() + _RETRY_SECONDS


def renew_view(spark: SparkSession, layout: Layout, namespace: Namespace) -> None:
    """Renew the view beside one mirror, for programs that change rows of mirrors.

    Without effect where no pipeline has created a mirror in a catalog.
    """
    table = layout.table("mirror", namespace)
    if table is None or not table.target.is_name or not table.target.exists(spark):
        return
    pipeline = table.target.properties(spark).get(PIPELINE, "")
    mirrors, changelogs = (Tables(kind, layout, pipeline) for kind in (MIRROR, CHANGELOG))
    if mirrors.learn(spark, namespace) is not None:
        changelogs.learn(spark, namespace)
        SqlViews().renew(spark, table, mirrors, changelogs)


def read_view(spark: SparkSession, layout: Layout, name: Namespace) -> ViewUpTo | None:
    """The view beside a mirror, as a function of the last batch of the changelog to be read.

    That batch must be in the changelog when this returns, or come later. None if there is no view.
    """
    table = layout.table("mirror", name)
    if table is None or not table.target.is_name or not table.target.exists(spark):
        return None
    owner = identity(table.target.properties(spark).get(PIPELINE, ""), KIND, table)
    if (text := text_of_view(spark, live_view(table.target), owner)) is None:
        return None
    # Below the tail there are names of collections, which may contain any text.
    tail, own, rest = text.partition("\nown AS")

    def up_to(last: int) -> DataFrame:
        return spark.sql(_TAIL.sub(rf"\g<0> AND {BATCH} <= {last}", tail) + own + rest)

    return up_to


class _Impossible(Exception):
    """SQL alone cannot give the rows of the mirror: `str` says why."""


def _query(spark: SparkSession, table: Table, mirrors: Tables, sources: Iterable[Target]) -> str:
    """The query of the view of a mirror that follows these changelogs. Raises _Impossible."""
    name = table.namespace
    if name is None:
        raise _Impossible("the mirror contains several collections")
    if not all(source.is_name for source in sources):
        raise _Impossible("its changelog is not in a catalog")
    there = sorted(source for source in sources if source.exists(spark))
    if not there:
        raise _Impossible("the mirror has no changelog")
    if mirrors.version(table) is None:
        mirrors.refresh(spark, table)
    last, version = mirrors.last(table), mirrors.version(table)
    assert last is not None, "a mirror with a batch has a commit"
    held = f"{table.target.address} VERSION AS OF {version}"
    schema = table.target.read(spark, version).schema
    tails = [_tail(spark, source, last.batch) for source in there]
    return view_text(table, name, held, schema.names, Image.of_table(schema), tails)


def _tail(spark: SparkSession, source: Target, applied: int) -> str:
    names = source.read(spark).columns
    if BATCH not in names:
        raise _Impossible("its changelog is of a release that did not number the batches")
    columns = ", ".join((*_ROW, f"{after_text(names)} AS after"))
    return f"SELECT {columns} FROM {source.address} WHERE {BATCH} > {applied}"


def view_text(
    table: Table,
    name: Namespace,
    held: str,
    columns: Sequence[str],
    image: Image,
    tails: Iterable[str],
) -> str:
    """The query of a view.

    Args:
        table: the mirror.
        name: its collection.
        held: the SQL for one version of the mirror.
        columns: the mirror's columns.
        image: those of them that contain the document.
        tails: the SQL for the rows of later batches, from each changelog.
    """
    new = {
        "key": "key",
        "document": "last.after",
        "_deleted": "false",
        **{each: f"last.{each[1:]}" for each in ("_position", "_cluster_time", "_cluster_inc")},
    }
    if image.has_id:
        new[ID] = id_text("key")
    known = new.keys() | set(image.names())
    # What somebody has added to the mirror keeps its value, as it does in a MERGE.
    others = {each: f"_other{n}" for n, each in enumerate(columns) if each not in known}
    kept = "".join(f", h.{quoted(each)} AS {name}" for each, name in others.items())
    made = f"""SELECT c.*{kept} FROM change AS c LEFT ANTI JOIN newer AS n ON c.key = n.key
  {"LEFT JOIN held AS h ON c.key = h.key" if others else ""} WHERE c.last.op <> 'delete'"""
    if image.typed:
        taken = taken_text(made, "last.after", image.typed.columns)
        made, new = taken.query, new | taken.columns
    new |= others
    theirs = ", ".join(f"m.{quoted(each)}" for each in columns)
    ours = ", ".join(f"{new[each]} AS {quoted(each)}" for each in columns)
    change = ", ".join(("op", "after", "position", "cluster_time", "cluster_inc"))
    since = f"(SELECT coalesce(max(position), '') FROM tail WHERE {_is_emptying(table, name)})"
    present = "WHERE NOT m._deleted" if table.options.delete == SOFT else ""
    return f"""WITH tail AS ({" UNION ALL ".join(tails)}),
own AS (SELECT * FROM tail WHERE position >= {since} AND {_is_change(name)} DISTRIBUTE BY key),
{_MOVES},
change AS (SELECT key, max_by(struct({change}), position) AS last FROM placed
  WHERE txn.shard IS NULL OR txn.shard = home GROUP BY key),
held AS (SELECT * FROM {held} WHERE _position >= {since}),
newer AS (SELECT c.key FROM held AS m JOIN change AS c ON m.key = c.key
  WHERE m._position >= c.last.position)
SELECT {theirs} FROM held AS m LEFT ANTI JOIN change AS c
  ON m.key = c.key AND m._position < c.last.position {present}
UNION ALL
SELECT {ours} FROM ({made})"""


# The rule of `effects.without_moves`.
_MOVES = """parts AS (SELECT *,
    max(position) OVER part AS part_end, max_by(op, position) OVER part AS part_op
  FROM own WINDOW part AS (PARTITION BY key, txn.lsid, txn.number, txn.shard)),
placed AS (SELECT *, coalesce(
    max_by(txn.shard, if(part_op = 'delete', null, part_end)) OVER whole,
    min_by(txn.shard, part_end) OVER whole) AS home
  FROM parts WINDOW whole AS (PARTITION BY key, txn.lsid, txn.number))"""


def _is_change(name: Namespace) -> str:
    """The rule of `effects.key_changes`."""
    ops = ", ".join(map(literal, ROW_OPS))
    own = f"db = {literal(name.db)} AND coll = {literal(name.coll)}"
    return f"{own} AND op IN ({ops}) AND (op = 'delete' OR after IS NOT NULL)"


def _is_emptying(table: Table, name: Namespace) -> str:
    """The rule of `effects.emptied`: whether a row makes all earlier ones of the mirror void."""
    db, coll = literal(name.db), literal(name.coll)
    to = "from_json(description, 'to struct<db: string, coll: string>').to"
    onto = f"op = 'rename' AND {to}.db = {db} AND {to}.coll = {coll}"
    ops = ", ".join(map(literal, effects.emptying(table.options)))
    own = f"op IN ({ops}) AND (db IS NULL OR db = {db}) AND (coll IS NULL OR coll = {coll})"
    return f"({own}) OR ({onto})"

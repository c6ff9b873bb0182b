"""The sinks: a batch of the source lands in Delta tables, of each kind one per collection.

A batch comes as data files that tasks have written, with a manifest, or as rows (`write.by`).
`sink` commits it to dead letters (images that could not be mapped), then to changelogs (every row,
appended). Followers apply whole batches of the changelogs to mirrors (the current documents) and
histories (all versions), in a thread or in another program; several batches may be one commit. Only
where a collection has no changelog are its mirror and history written with each batch. Each commit
states the time up to which its table is complete. A batch may be written again after any failure:
each table accepts it once.

* `log`: one Delta table: its place, its log, its commits, and the one transaction by which data
  files become rows.
* `tables`: which tables a pipeline has, where they lie, whose they are, and what they contain.
* `landing`: data files, the summary of a batch, changelogs and dead letters.
* `followers`: mirrors and histories. `columns`: the typed columns of both.
* `reading`: a changelog as the collection at a time; documents as BSON.
* `maintenance`: compaction, repair, redelivery; called by programs of their own.
"""

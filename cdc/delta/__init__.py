"""The sinks: a batch of the source lands in Delta tables, of each kind one per collection.

A batch comes as data files that tasks have written, with a manifest, or as rows (`write.by`).
`sink` takes it apart and calls the writers in this order: dead letters (what could not be mapped),
the changelog (every row, appended), the mirror (the collection as it is) and the history (what each
document was, and when). Each table gets a batch in one Delta commit, which also states the time up
to which the table is complete. A batch may be written again after any failure: each table takes it
once.

* `log`: one Delta table: its place, its log, its commits, and the one transaction by which data
  files become rows.
* `tables`: which tables a pipeline has, where they lie, whose they are, and what they contain.
* `landing`: data files, the summary of a batch, changelogs and dead letters.
* `followers`: mirrors and histories. `columns`: the typed columns of both.
* `reading`: a changelog as the collection at a time; documents as BSON.
* `maintenance`: compaction, repair, redelivery; called by programs of their own.
"""

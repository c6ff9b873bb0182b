"""The sinks: every batch of rows lands in Delta tables, of each kind one per collection or as told.

`sink` takes a batch apart (`facts`) and calls the writers in this order: `dead_letters` (what could
not be mapped), `changelog` (every row, appended), `mirror` (the collection as it is, merged) and
`history` (what each document was when: a table as `versioned` keeps it, by the rule in `versions`).
`layout` says which tables there are to be and how they are kept, `routing` where they lie, `target`
is one of them, by path or by name. `tables` knows which are there and whose they are, `commit` what
their commits say, `changes` what a batch does to rows that are there, `conflict` what to do when
others write them too, `concurrency` how several are written at once. `redelivery` and `maintenance`
are called by jobs of their own.

`point_in_time` reads a changelog, of either of its `forms`, as the collection at a time;
`documents` gives back what is in a column as BSON.
"""

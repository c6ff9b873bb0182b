"""The sinks: every batch of rows lands in Delta tables, one set per collection.

`sink` takes a batch apart and calls, in this order, `changelog` (every row, appended) and `mirror`
(the collection as it is, merged). `tables` knows which tables exist and whose they are, `commit`
what their commits say, `routing` where they live, `facts` what a batch holds.
"""

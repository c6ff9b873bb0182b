"""The programs: each module runs under spark-submit and as `mongodb-cdc NAME`.

The only place where the source (`cdc.source`) and the sinks (`cdc.delta`) meet.
"""

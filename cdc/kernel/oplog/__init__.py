"""Change events from oplog entries and pre-images, as `cdc.model.oplog` makes them."""

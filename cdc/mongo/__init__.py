"""Everything that queries a MongoDB server, and the one module that writes to one."""

"""How a batch is merged: into a mirror by its data files, into a history by intervals of time."""

"""What was done to a model and how well it went: the data, and its text, JSON and HTML."""

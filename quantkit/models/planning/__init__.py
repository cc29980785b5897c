"""What becomes of every node, and why."""

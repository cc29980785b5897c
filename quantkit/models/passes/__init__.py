"""Exact rewrites of the float model: what it computes stays. One file a pass; `prepare` runs them in order."""

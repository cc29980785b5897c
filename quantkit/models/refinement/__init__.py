"""Candidates measured beside the float model: which agrees best, and which is not slower."""

"""Whole jobs that join several rooms: compare two models, look into one."""

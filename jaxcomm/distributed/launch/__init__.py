"""Starts the processes of a job on this machine."""

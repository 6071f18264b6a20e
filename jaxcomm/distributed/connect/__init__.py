"""Connects this process with the other processes of its job."""

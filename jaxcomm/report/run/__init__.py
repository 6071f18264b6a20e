"""Runs in words, tables and pictures."""

"""Sums that may leave out the least important parts of a gradient."""

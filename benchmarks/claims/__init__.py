"""Reruns the figures that pages quote, and writes the tables that quote them: `make claims`.

`benchmarks/claims.toml` has every claim with its commands, its bound and its last figures. `model.py` reads and writes
that file, `ratios.py` computes ratios and their intervals, `load.py` measures the CPU time of other processes,
`running.py` runs commands, `judging.py` compares, `texts.py` formats figures, and `pages.py` writes them into pages.
"""

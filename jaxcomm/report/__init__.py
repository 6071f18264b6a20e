"""Tables, timelines and plots for people, made from plans, schedules and profiles.

Used by cli, the notebooks, and what `jaxcomm.stats()` returns when it is printed or written. Imports schedules, plan,
profile and simulate, never JAX; plots import Matplotlib when they are drawn.
"""

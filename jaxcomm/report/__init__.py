"""What people read: tables, timelines and plots made from plans, schedules and profiles.

Used by cli and the notebooks only. Imports schedules, plan and profile, never JAX; plots import Matplotlib when they
are drawn.
"""

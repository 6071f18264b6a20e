"""The plan file, the proof that its schedules give every rank the sum, and their compilation to programs.

Imports schedules, files, numpy and pydantic; never JAX, and OR-Tools only if a template must be found anew.
"""

from jaxcomm.plan.files import bind, encode, load, save
from jaxcomm.plan.proof import proofs, verify
from jaxcomm.plan.schema import Plan, json_schema
from jaxcomm.plan.specs import build
from jaxcomm.plan.verifier import Proof

__all__ = ["Plan", "Proof", "bind", "build", "encode", "json_schema", "load", "proofs", "save", "verify"]

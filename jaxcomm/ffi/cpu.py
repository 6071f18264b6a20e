"""The core for CPUs: the names of its C functions and the types of their arguments."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

from jaxcomm.ffi import arguments
from jaxcomm.ffi.core import TEXT, Core

# Functions of every core that records arrivals.
ARRIVALS: Final = {
    "arrivals": (ctypes.c_int64, ctypes.c_int64, TEXT),
    "arrivals_open": (ctypes.c_void_p,),
    "arrivals_about": (ctypes.c_int64, TEXT),
}

CPU: Final = Core(
    "C++ core",
    Path(__file__).parent / "libjaxcomm_cpu.so",
    {
        "register_program": (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64),
        "register_messages": (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64),
        "job_open": (ctypes.c_int64, ctypes.c_int64, ctypes.c_int),
        "job_open_fabric": (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, TEXT),
        "fabric_domains": (TEXT,),
        "job_open_rails": (ctypes.c_char_p,),
        "job_set_rails": (
            *(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64),
            ctypes.POINTER(arguments.RailShares),
        ),
        "job_set_shares": (ctypes.c_int64, ctypes.POINTER(arguments.RailShares)),
        "job_shm_file": (ctypes.c_void_p, ctypes.c_void_p),
        "job_add_shm": (ctypes.c_int64, ctypes.c_int, ctypes.c_uint64),
        "job_check_encryption": (),
        "job_seals_by_aes": (ctypes.c_void_p,),
        "job_add_tcp": (ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.POINTER(arguments.ConnectionKeys)),
        "job_add_udp": (ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(arguments.UdpConnection)),
        "job_add_fabric": (ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(arguments.FabricConnection)),
        "job_rails": (TEXT,),
        "job_gone": (TEXT,),
        "job_lost_rails": (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p),
        "job_restore_tcp": (*(ctypes.c_int64,) * 3, ctypes.c_int, ctypes.POINTER(arguments.ConnectionKeys)),
        "job_restore_udp": (*(ctypes.c_int64,) * 3, ctypes.POINTER(arguments.UdpConnection)),
        "job_restore_fabric": (*(ctypes.c_int64,) * 3, ctypes.POINTER(arguments.FabricConnection)),
        "job_start": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int),
        "job_awaits": (ctypes.c_void_p,),
        "job_close": (),
        "job_reset": (),
        "job_run": (ctypes.POINTER(arguments.MessageRun), ctypes.c_void_p),
        "backend_table": (ctypes.c_void_p,),
        "backend_expect": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64),
        "backend_forget": (ctypes.c_int64,),
        "backend_lists": (ctypes.POINTER(arguments.CollectiveLists),),
        "switch_launches": (TEXT,),
        "switch_periods": (TEXT,),
        "switch_prepare": (ctypes.POINTER(arguments.PlanSwitch), ctypes.c_void_p),
        "switch_decide": (ctypes.c_int,),
        "switch_fail": (ctypes.c_char_p,),
        "find_rounds": (
            *(ctypes.POINTER(arguments.PendingMoves), ctypes.c_void_p, ctypes.c_double),
            ctypes.POINTER(arguments.MoveRounds),
        ),
        "improve_trees": (
            *(ctypes.POINTER(arguments.TreeNetwork), ctypes.c_int64, ctypes.c_int64),
            *(ctypes.POINTER(arguments.ChunkTrees), ctypes.POINTER(arguments.TreeTimes)),
        ),
        "simulate": (ctypes.POINTER(arguments.MessageNetwork), ctypes.POINTER(arguments.MessageTimes)),
        "compare": (*(ctypes.c_void_p, ctypes.c_int64) * 2, ctypes.c_void_p),
        "set_deadline": (ctypes.c_double,),
        "failure": (ctypes.c_char_p, TEXT),
        "add_failure": (ctypes.c_char_p, ctypes.c_char_p),
        "await_failure": (ctypes.c_int64, ctypes.c_int, TEXT),
        "stats": (ctypes.c_int, TEXT),
        "calls": (TEXT,),
        "trials": (TEXT,),
        "reset_stats": (),
        "kernel_isa": (TEXT,),
        "floor_seconds": (*(ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64), ctypes.c_void_p),
        **ARRIVALS,
        "reset_marks": (),
        "marks": (*(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int64, ctypes.c_void_p),
    },
    cure="install the package (`make setup`)",
)

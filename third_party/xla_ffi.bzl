"""The XLA FFI headers that jaxlib ships, found by asking Python."""

_FIND = "from importlib.util import find_spec; print(find_spec('jaxlib').submodule_search_locations[0], end='')"

def _xla_ffi_headers_impl(repository_ctx):
    workspace = repository_ctx.path(Label("//:WORKSPACE")).dirname
    python = repository_ctx.os.environ.get("JAXCOMM_PYTHON") or "{}/.venv/bin/python".format(workspace)
    jaxlib = repository_ctx.execute([python, "-c", _FIND]).stdout
    include = repository_ctx.path("{}/include".format(jaxlib))
    if not repository_ctx.path("{}/xla/ffi/api/ffi.h".format(include)).exists:
        fail(("{} has no jaxlib with FFI headers. " +
              "Cure: run `make setup`, or set JAXCOMM_PYTHON to a Python that has jaxlib.").format(python))
    repository_ctx.symlink(include, "include")
    repository_ctx.file("BUILD.bazel", """
cc_library(
    name = "xla_ffi",
    hdrs = glob(["include/xla/ffi/api/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
""")

xla_ffi_headers = repository_rule(
    implementation = _xla_ffi_headers_impl,
    doc = "Python is $JAXCOMM_PYTHON, or .venv/bin/python.",
    environ = ["JAXCOMM_PYTHON"],
    local = True,
)

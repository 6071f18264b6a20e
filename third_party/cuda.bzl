"""NVIDIA's CUDA compiler from its wheels, found by asking Python; without it, the targets that need it do not exist."""

_FIND = "from importlib.util import find_spec; print(find_spec('nvidia.cu13').submodule_search_locations[0], end='')"

def _cuda_toolchain_impl(repository_ctx):
    workspace = repository_ctx.path(Label("//:WORKSPACE")).dirname
    python = repository_ctx.os.environ.get("JAXCOMM_PYTHON") or "{}/.venv/bin/python".format(workspace)
    found = repository_ctx.execute([python, "-c", _FIND])
    nvcc = "{}/bin/nvcc".format(found.stdout) if found.return_code == 0 else ""
    repository_ctx.file("cuda.bzl", "NVCC = \"{}\"\n".format(nvcc))
    if nvcc:
        repository_ctx.symlink("{}/include".format(found.stdout), "include")
        repository_ctx.symlink("{}/lib".format(found.stdout), "lib")
    repository_ctx.file("BUILD.bazel", """
cc_library(
    name = "runtime",
    srcs = glob(["lib/libcudart_static.a"]),
    hdrs = glob(["include/**/*.h", "include/**/*.hpp"]),
    includes = ["include"],
    linkopts = ["-ldl", "-lrt", "-pthread"],
    visibility = ["//visibility:public"],
)
""")

cuda_toolchain = repository_rule(
    implementation = _cuda_toolchain_impl,
    doc = "Python is $JAXCOMM_PYTHON, or .venv/bin/python.",
    environ = ["JAXCOMM_PYTHON"],
    local = True,
)

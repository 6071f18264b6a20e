"""The build rule of CUDA sources, with the compiler that //third_party:cuda.bzl found."""

load("@cuda//:cuda.bzl", "NVCC")

# As in tools/cuda.cmake.
_FLAGS = ["-std=c++17", "-O2", "--fmad=false", "--expt-relaxed-constexpr", "-Xcompiler=-fPIC,-fvisibility=hidden"]
_ARCHITECTURES = ["80", "90", "100", "120"]

_NO_NVCC = "echo \"$@: no CUDA compiler. Cure: run JAXCOMM_CUDA=ON make setup.\" >&2; exit 1"

def cuda_library(name, srcs, hdrs, headers, deps):
    """Compiles .cu files for every architecture. Built only by name: `bazel test //...` skips it.

    Args:
      name: the library's name.
      srcs: .cu files.
      hdrs: headers that declare what the sources define.
      headers: file groups of all headers of this repository that the sources include.
      deps: libraries that the sources call.
    """
    real = " ".join(["-gencode=arch=compute_{0},code=sm_{0}".format(arch) for arch in _ARCHITECTURES])
    ptx = "-gencode=arch=compute_{0},code=compute_{0}".format(_ARCHITECTURES[-1])
    for src in srcs:
        nvcc = " ".join([NVCC, real, ptx] + _FLAGS + ["-I. -c $(location {}) -o $@".format(src)])
        native.genrule(
            name = src + "_object",
            srcs = [src] + headers,
            outs = [src + ".pic.o"],
            cmd = nvcc if NVCC else _NO_NVCC,
            tags = ["manual"],
        )
    native.cc_library(
        name = name,
        srcs = [src + ".pic.o" for src in srcs],
        hdrs = hdrs,
        tags = ["manual"],
        visibility = ["//visibility:public"],
        deps = deps,
    )

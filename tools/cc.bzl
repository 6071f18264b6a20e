"""The build rule of one folder of the C++ core."""

def cc_folder(name, deps = [], exclude = [], test_deps = [], fuzz_deps = [], data = []):
    """Builds a folder: its library, one test per *_test.cc and one fuzzer per *_fuzz.cc.

    Args:
      name: the library's name; the folder's own name makes it the folder's default target.
      deps: other libraries that the folder's library includes.
      exclude: files of the folder that another rule compiles.
      test_deps: libraries that only the tests include.
      fuzz_deps: libraries that only the fuzzers include.
      data: files that the tests open.
    """
    native.cc_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = ["*_test.cc", "*_fuzz.cc"] + exclude),
        hdrs = native.glob(["*.h"], exclude = exclude),
        linkopts = ["-pthread"],
        visibility = ["//visibility:public"],
        deps = deps,
    )
    native.filegroup(
        name = name + "_headers",  # for nvcc's genrule, which must list its headers
        srcs = native.glob(["*.h"]),
        visibility = ["//visibility:public"],
    )
    for test in native.glob(["*_test.cc"]):
        native.cc_test(
            name = test[:-len(".cc")],
            size = "small",
            srcs = [test],
            data = data,
            deps = [":" + name, "@googletest//:gtest_main"] + deps + test_deps,
        )
    for fuzzer in native.glob(["*_fuzz.cc"]):
        native.cc_binary(
            name = fuzzer[:-len(".cc")],
            srcs = [fuzzer],
            linkopts = ["-fsanitize=fuzzer"],
            tags = ["manual"],  # only with --config=fuzz
            testonly = True,
            deps = [":" + name] + deps + fuzz_deps,
        )

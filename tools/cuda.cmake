# Builds jaxcomm_cuda13.so: the CUDA kernels and their handlers. Neither building nor loading it needs a driver or a GPU:
# the CUDA runtime is linked in, and itself finds libcuda if there is one.
#
# JAXCOMM_CUDA=ON builds it or fails, AUTO builds it if the toolchain is installed, OFF leaves it out. The toolchain is
# NVIDIA's wheels (`tools/setup.sh cuda` installs them), installed for the Python that builds.

# Found at each configuration: two Pythons never share a build folder, but an installation may gain or lose the wheels.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
          "from importlib.util import find_spec; print(find_spec('nvidia.cu13').submodule_search_locations[0], end='')"
  OUTPUT_VARIABLE CUDA_DIR
  RESULT_VARIABLE CUDA_MISSING
  ERROR_QUIET)
foreach(PART bin/nvcc include/crt/host_config.h include/cccl/cuda/atomic lib/libcudart_static.a nvvm/bin/cicc)
  if(NOT CUDA_MISSING AND NOT EXISTS "${CUDA_DIR}/${PART}")
    set(CUDA_MISSING "${PART}")
  endif()
endforeach()
if(CUDA_MISSING)
  if(JAXCOMM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "JAXCOMM_CUDA=ON, but ${Python_EXECUTABLE} has no CUDA 13 toolchain (nvidia/cu13/bin/nvcc and its "
                        "libraries).\nCure: run `JAXCOMM_CUDA=ON make setup`, or set JAXCOMM_CUDA=OFF.")
  endif()
  message(STATUS "No CUDA 13 toolchain beside ${Python_EXECUTABLE}: jaxcomm_cuda13.so is left out")
  return()
endif()

set(CMAKE_CUDA_COMPILER "${CUDA_DIR}/bin/nvcc")
# CMake would look for the runtime in lib64, which the wheels lack; it is named below.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
set(CMAKE_CUDA_FLAGS_INIT "-L${CUDA_DIR}/lib")
# Ampere, Hopper, Blackwell; and PTX, which the driver translates for later architectures.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 120)
enable_language(CUDA)

file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/cc/gpu/*/*.cu" "${PROJECT_SOURCE_DIR}/cc/gpu/*/*.cc")
list(FILTER CUDA_SOURCES EXCLUDE REGEX "_test\\.cc$")
# Sources that the core for CPUs also contains.
foreach(COMMON executor/calls/layout executor/calls/call_site_stats executor/decide/comparison executor/decide/trial ffi/arrivals ffi/groups ffi/kept_failures ffi/values program/direct
               program/message_lists program/message_registry program/messages program/program program/registry)
  list(APPEND CUDA_SOURCES "${PROJECT_SOURCE_DIR}/cc/${COMMON}.cc")
endforeach()
add_library(jaxcomm_cuda13 MODULE ${CUDA_SOURCES})
set_target_properties(
  jaxcomm_cuda13
  PROPERTIES PREFIX ""
             CXX_STANDARD 17
             CXX_STANDARD_REQUIRED ON
             CXX_EXTENSIONS OFF
             CXX_VISIBILITY_PRESET hidden
             VISIBILITY_INLINES_HIDDEN ON
             CUDA_STANDARD 17
             CUDA_STANDARD_REQUIRED ON
             CUDA_VISIBILITY_PRESET hidden)
# No contraction into fused multiply-add: GPUs must round as CPUs do. Architectures are compiled in parallel; otherwise the
# build would wait for the longest file, which has a kernel for each type and reduction.
target_compile_options(
  jaxcomm_cuda13
  PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-ffp-contract=off>
          $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;--expt-relaxed-constexpr;--threads=0;-Xcompiler=-Wall,-Wextra>)
target_include_directories(jaxcomm_cuda13 PRIVATE "${PROJECT_SOURCE_DIR}")
target_include_directories(jaxcomm_cuda13 SYSTEM PRIVATE "${JAXLIB_DIR}/include" "${CUDA_DIR}/include")
target_link_libraries(jaxcomm_cuda13 PRIVATE "${CUDA_DIR}/lib/libcudart_static.a" Threads::Threads ${CMAKE_DL_LIBS} rt)
target_link_options(jaxcomm_cuda13 PRIVATE -Wl,-z,defs -Wl,--exclude-libs,ALL "-Wl,--version-script=${EXPORTS}")
set_target_properties(jaxcomm_cuda13 PROPERTIES LINK_DEPENDS "${EXPORTS}")
if(SKBUILD_STATE STREQUAL "editable")
  set_target_properties(jaxcomm_cuda13 PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_SOURCE_DIR}/jaxcomm/gpu")
else()
  install(TARGETS jaxcomm_cuda13 LIBRARY DESTINATION jaxcomm/gpu)
endif()

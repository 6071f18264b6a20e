#pragma once

#include <cuda_runtime_api.h>  // the fake header, which also has the driver's functions that reach.cc calls

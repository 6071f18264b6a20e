#pragma once

#include <cuda_runtime_api.h>  // also has the driver's functions that reach.cc calls

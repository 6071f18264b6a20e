#pragma once

#include <cuda_runtime_api.h>  // has what reach.cc asks of the driver, too

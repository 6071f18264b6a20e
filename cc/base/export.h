// JAXCOMM_EXPORT marks the C functions that a shared object exports; all its other symbols are hidden.
#pragma once

#define JAXCOMM_EXPORT extern "C" __attribute__((visibility("default")))

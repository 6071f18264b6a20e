// JAXCOMM_EXPORT marks the C functions that a shared object shows; all its other names are hidden.
#pragma once

#define JAXCOMM_EXPORT extern "C" __attribute__((visibility("default")))

// How tests talk to the fake libnccl: they look these up in it by name.
#pragma once

#include <cstddef>

extern "C" {

// Forgets everything, and what was to go wrong.
void fake_reset();
// The nth call (from 1) of a function by any rank returns this outcome; of ncclCommGetAsyncError: it reports it.
void fake_fail(const char* function, int nth, int outcome);
// What a rank has called, one line per call; the size of the text.
size_t fake_calls(int rank, char* text, size_t size);
// Communicators that were made and not yet aborted.
int fake_live();
}

// Runs the body of a C function that Python calls. The C function returns 0 on success. Otherwise it returns the number
// of the error's Code and stores the error's text.
//
//   JAXCOMM_EXPORT int jaxcomm_set_deadline(double seconds, JaxcommText* error) {
//     return Answer(error, [&] { TheExecutor().SetDeadline(seconds); });
//   }
//
// The function's last argument is the buffer for the error's text. A text that exceeds the buffer is cut. Results are
// stored through pointers. No exception escapes.
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/base/export.h"
#include "cc/base/status.h"
#include "cc/base/text.h"

namespace jaxcomm {

// A caller's buffer for a text.
struct JaxcommText {
  char* bytes;
  int64_t capacity;
  int64_t length;  // size of the whole text; if it exceeds `capacity`, the caller can call again with a larger buffer
};

// Stores a text, cut to fit and terminated by a zero.
inline void CopyText(std::string_view text, JaxcommText* out) {
  const auto capacity = static_cast<size_t>(out->capacity);
  if (capacity > 0) out->bytes[CutText(text, capacity - 1).copy(out->bytes, text.size())] = '\0';
  out->length = static_cast<int64_t>(text.size());
}

// Runs the body of a C function. The body returns a Status or nothing.
template <typename Body>
int Answer(JaxcommText* error, Body body) {
  Status status;
  const auto fail = [&](const char* text) {  // must not allocate memory
    CopyText(text, error);
    return static_cast<int>(Code::kInternal);
  };
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      body();
    } else {
      status = body();
    }
  } catch (const std::bad_alloc&) {
    return fail(kNoMemory);
  } catch (const std::exception& thrown) {
    return fail(thrown.what());
  }
  if (!status.ok()) CopyText(status.message(), error);
  return static_cast<int>(status.code());
}

// Returns a copy of the words of an encoded program. The bytes come from a Python object and need not be aligned.
inline Result<std::vector<uint32_t>> ReadWords(const void* bytes, int64_t num_bytes) {
  std::vector<uint32_t> words(static_cast<size_t>(num_bytes) / sizeof(uint32_t));
  if (words.size() * sizeof(uint32_t) != static_cast<size_t>(num_bytes)) {
    return InvalidArgument("program of " + std::to_string(num_bytes) + " bytes is not a whole number of words");
  }
  if (num_bytes > 0) std::memcpy(words.data(), bytes, static_cast<size_t>(num_bytes));
  return words;
}

}  // namespace jaxcomm

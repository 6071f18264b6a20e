// The end of a C function that Python calls: it returns 0, or the number of an error's Code, with the error's text.
//
//   JAXCOMM_EXPORT int jaxcomm_set_deadline(double seconds, char* error, int64_t capacity) {
//     return Answer(error, capacity, [&] { TheExecutor().SetDeadline(seconds); });
//   }
//
// The last two arguments are the buffer for that text, which is cut to what fits. Results go out through pointers. No
// exception leaves such a function.
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

// As many letters of a text as fit, with a zero at the end. `size`, unless null, becomes the length of the whole text,
// so that a caller whose buffer was too small can come again.
inline void CopyText(std::string_view text, char* out, int64_t capacity, int64_t* size = nullptr) {
  if (capacity > 0) out[CutText(text, static_cast<size_t>(capacity) - 1).copy(out, text.size())] = '\0';
  if (size != nullptr) *size = static_cast<int64_t>(text.size());
}

// Runs the body of a C function, which returns a Status or nothing.
template <typename Body>
int Answer(char* error, int64_t capacity, Body body) {
  Status status;
  const auto fail = [&](const char* text) {  // needs no memory
    CopyText(text, error, capacity);
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
  if (!status.ok()) CopyText(status.message(), error, capacity);
  return static_cast<int>(status.code());
}

// The words of an encoded program; the bytes of a Python object need not be aligned for them.
inline Result<std::vector<uint32_t>> ReadWords(const void* bytes, int64_t num_bytes) {
  std::vector<uint32_t> words(static_cast<size_t>(num_bytes) / sizeof(uint32_t));
  if (words.size() * sizeof(uint32_t) != static_cast<size_t>(num_bytes)) {
    return InvalidArgument("program of " + std::to_string(num_bytes) + " bytes is not a whole number of words");
  }
  if (num_bytes > 0) std::memcpy(words.data(), bytes, static_cast<size_t>(num_bytes));
  return words;
}

}  // namespace jaxcomm

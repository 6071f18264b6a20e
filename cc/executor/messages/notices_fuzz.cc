// libFuzzer target. DecodeNotice must refuse the bytes, or return a notice that Encode turns into the same bytes. It
// must not read beyond the bytes.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "cc/executor/messages/notices.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::optional<jaxcomm::Notice> notice = jaxcomm::DecodeNotice(bytes);
  if (!notice) return 0;
  const std::string again = std::visit([](const auto& each) { return jaxcomm::Encode(each); }, *notice);
  if (again != bytes) std::abort();
  return 0;
}

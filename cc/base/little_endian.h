// Stores numbers as little-endian bytes and reads them. All supported machines store numbers this way.
//
//   StoreNumber<uint32_t>(7, out);       // to out[0], …, out[3]
//   auto seven = LoadNumber<uint32_t>(in);
//   AppendNumber<uint32_t>(bytes, 7);
//   NumberReader reader(bytes);
//   seven = reader.Get<uint32_t>();
//   if (!reader.ok()) ...                // the input was too short
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace jaxcomm {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

template <typename Number>
void StoreNumber(Number number, std::byte* out) {
  std::memcpy(out, &number, sizeof(Number));
}

template <typename Number>
Number LoadNumber(const std::byte* in) {
  Number number;
  std::memcpy(&number, in, sizeof(Number));
  return number;
}

template <typename Number>
void AppendNumber(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(Number));
}

// Reads numbers from the front of the input, and never beyond its end. After a read that does not fit, all reads fail.
class NumberReader {
 public:
  explicit NumberReader(std::string_view bytes) : bytes_(bytes) {}

  // Returns zero if the input is too short.
  template <typename Number>
  Number Get() {
    const std::byte* const in = Take(sizeof(Number));
    return in ? LoadNumber<Number>(in) : 0;
  }
  // Returns the next `bytes` bytes, or nullptr if fewer bytes are left.
  const std::byte* Take(size_t bytes) {
    ok_ = ok_ && bytes_.size() >= bytes;
    if (!ok_) return nullptr;
    const auto* const in = reinterpret_cast<const std::byte*>(bytes_.data());
    bytes_.remove_prefix(bytes);
    return in;
  }
  bool ok() const { return ok_; }
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace jaxcomm

// Writes a text as a JSON string.
//
//   WriteJsonString(out, "eth0");   // writes "eth0" with its quotes
#pragma once

#include <ostream>
#include <string>

namespace jaxcomm {

inline void WriteJsonString(std::ostream& out, const std::string& text) {
  out << '"';
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out << "\\u00" << (c >> 4) << "0123456789abcdef"[c & 0xf];
    } else {
      if (c == '"' || c == '\\') out << '\\';
      out << c;
    }
  }
  out << '"';
}

}  // namespace jaxcomm

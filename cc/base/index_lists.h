// Lists of indices, one after the other in memory, as Python hands them over.
#pragma once

#include <cstdint>

namespace jaxcomm {

// A list for each of some: the i-th is members[first[i]] up to, not including, members[first[i + 1]].
struct IndexLists {
  const int64_t* first;
  const int64_t* members;
};

}  // namespace jaxcomm

// Lists of indices that Python passes. All lists lie in one array.
#pragma once

#include <cstdint>

namespace jaxcomm {

// List i has the elements of `members` from first[i] to first[i + 1] - 1.
struct IndexLists {
  const int64_t* first;
  const int64_t* members;
};

}  // namespace jaxcomm

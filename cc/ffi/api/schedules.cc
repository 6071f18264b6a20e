// C functions that Python calls to search for schedules. c_function.h defines how they report errors.

#include <cstdint>

#include "cc/base/c_function.h"
#include "cc/search/list_scheduling.h"
#include "cc/search/tree_search.h"

namespace jaxcomm {

// Calls FindRounds of list_scheduling.h.
JAXCOMM_EXPORT int jaxcomm_find_rounds(const PendingMoves* moves, const int64_t* late, double delay,
                                       const MoveRounds* rounds, JaxcommText* error) {
  return Answer(error, [&] { return FindRounds(*moves, late, delay, *rounds); });
}

// Calls ImproveTrees of tree_search.h.
JAXCOMM_EXPORT int jaxcomm_improve_trees(const TreeNetwork* network, int64_t tries, int64_t seed,
                                         const ChunkTrees* trees, const TreeTimes* times, JaxcommText* error) {
  return Answer(error, [&] { return ImproveTrees(*network, tries, static_cast<uint64_t>(seed), *trees, *times); });
}

}  // namespace jaxcomm

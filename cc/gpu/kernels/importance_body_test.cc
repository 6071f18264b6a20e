// Runs the lanes of the importance kernel one after another, and compares the means with those of the CPU's kernel.

#include "cc/gpu/kernels/importance_body.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm::cuda {
namespace {

struct alignas(16) Line {
  std::byte bytes[16];
};

template <typename E>
void ExpectCpuBits(DType dtype, size_t elements, size_t segment) {
  using Stored = typename E::Stored;
  std::vector<Line> lines(elements * sizeof(Stored) / sizeof(Line) + 1);
  Stored* const values = reinterpret_cast<Stored*>(lines.data());
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < elements; ++i) values[i] = E::Round(normal(random));
  const size_t segments = (elements + segment - 1) / segment;
  std::vector<float> expected(segments), means(segments);
  FindImportance(dtype)(lines.data()->bytes, elements, segment, expected.data());
  const Gradient<E> gradient = {values, elements, segment};
  const bool aligned = segment * sizeof(Stored) % kPackBytes == 0;
  using Body = ImportanceBody<E>;
  for (size_t s = 0; s < segments; ++s) {
    typename E::Wide sums[Body::kSums];
    for (size_t lane = 0; lane < Body::kLanes; ++lane) {
      (aligned ? Body::template Accumulate<true> : Body::template Accumulate<false>)(gradient, s, lane, sums);
    }
    means[s] = Body::Mean(gradient, s, sums);
  }
  EXPECT_EQ(memcmp(means.data(), expected.data(), segments * sizeof(float)), 0);
}

TEST(ImportanceBodyTest, MeansAreTheCpusBitForBit) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (size_t elements : {1, 100, 1024, 5000}) {
      for (size_t segment : {3, 64, 512, 1000}) {
        SCOPED_TRACE(testing::Message() << elements << " in " << segment);
        VisitFloat(dtype, [&](auto element) { ExpectCpuBits<decltype(element)>(dtype, elements, segment); });
      }
    }
  }
}

}  // namespace
}  // namespace jaxcomm::cuda

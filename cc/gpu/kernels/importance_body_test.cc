// The importance kernel's lanes, one after the other, against the CPU's kernel.

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
void ExpectCpuBits(DType dtype, size_t elements, size_t segment, uint32_t stride) {
  using Stored = typename E::Stored;
  constexpr uint32_t kSeed = 11;
  std::vector<Line> lines(elements * sizeof(Stored) / sizeof(Line) + 1);
  Stored* const values = reinterpret_cast<Stored*>(lines.data());
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < elements; ++i) values[i] = E::Round(normal(random));
  const size_t segments = (elements + segment - 1) / segment;
  std::vector<float> expected(segments), means(segments);
  std::vector<uint32_t> expected_bins(kBins), bins(kBins);
  FindImportance(dtype)(lines.data()->bytes, elements, segment, stride, kSeed, expected.data(), expected_bins.data());
  const Gradient<E> gradient = {values, elements, segment, stride};
  const bool aligned = segment * sizeof(Stored) % kPackBytes == 0;
  using Body = ImportanceBody<E>;
  for (size_t s = 0; s < segments; ++s) {
    typename E::Wide sums[Body::kSums];
    for (size_t lane = 0; lane < Body::kLanes; ++lane) {
      (aligned ? Body::template Accumulate<true> : Body::template Accumulate<false>)(gradient, s, lane, kSeed,
                                                                                     bins.data(), sums);
    }
    means[s] = Body::Mean(gradient, s, sums);
  }
  EXPECT_EQ(memcmp(means.data(), expected.data(), segments * sizeof(float)), 0);
  EXPECT_EQ(bins, expected_bins);
}

TEST(ImportanceBodyTest, MeansAndSampleAreTheCpusBitForBit) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (size_t elements : {1, 100, 1024, 5000}) {
      for (size_t segment : {3, 64, 512, 1000}) {
        for (uint32_t stride : {1u, 20u, 0x7fffffffu}) {
          SCOPED_TRACE(testing::Message() << elements << " in " << segment << ", stride " << stride);
          VisitFloat(dtype, [&](auto element) { ExpectCpuBits<decltype(element)>(dtype, elements, segment, stride); });
        }
      }
    }
  }
}

// As the kernel does: the threads' bins are neighbours, and each knows how many samples lie below.
float Median(const std::vector<uint32_t>& bins, uint32_t threads) {
  const uint32_t count = kBins / threads;
  uint64_t total = 0, before = 0;
  for (uint32_t bin : bins) total += bin;
  float median = 0;
  int found = 0;
  for (uint32_t thread = 0; thread < threads; ++thread) {
    found += MedianAmong(bins.data(), thread * count, count, before, total, &median);
    for (uint32_t i = 0; i < count; ++i) before += bins[thread * count + i];
  }
  EXPECT_EQ(found, total == 0 ? 0 : 1);
  return median;
}

TEST(MedianTest, OneThreadFindsTheCpusMedian) {
  std::vector<uint32_t> bins(kBins);
  std::mt19937 random(2);
  for (int sample = 0; sample < 200; ++sample) {
    EXPECT_EQ(Median(bins, 1024), LowerMedian(bins.data())) << sample;
    bins[16000 + random() % 300] += random() % 3;
  }
}

}  // namespace
}  // namespace jaxcomm::cuda

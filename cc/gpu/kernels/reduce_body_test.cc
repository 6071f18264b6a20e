// The reduction's threads, one after the other, against the CPU's kernel.

#include "cc/gpu/kernels/reduce_body.h"

#include <random>
#include <string>
#include <vector>

#include "cc/kernels/reduce.h"
#include "gtest/gtest.h"

namespace jaxcomm::cuda {
namespace {

constexpr DType kDTypes[] = {DType::kS8,  DType::kS16, DType::kS32, DType::kS64, DType::kU8,
                             DType::kU16, DType::kU32, DType::kU64, DType::kF16, DType::kBF16,
                             DType::kF32, DType::kF64, DType::kC64, DType::kC128};

struct alignas(16) Line {
  std::byte bytes[16];
};

// Random bits, but numbers: how a NaN's payload travels is the processor's affair.
template <typename E>
std::vector<Line> RandomNumbers(size_t elements, unsigned seed) {
  using Stored = typename E::Stored;
  std::mt19937_64 random(seed);
  std::vector<Line> lines(elements * sizeof(Stored) / sizeof(Line) + 2);
  Stored* values = reinterpret_cast<Stored*>(lines.data());
  for (size_t i = 0; i < lines.size() * sizeof(Line) / sizeof(Stored); ++i) {
    const uint64_t bits = random();
    do {
      const uint64_t word = values == nullptr ? 0 : random() ^ bits;
      memcpy(values + i, &word, sizeof(Stored));
    } while (E::Widen(values[i]) != E::Widen(values[i]));
  }
  return lines;
}

// All threads of a grid.
template <typename E, Reduction kReduction, bool kAligned>
void RunAll(const Sources& sources, std::byte* to, size_t elements, size_t threads) {
  for (size_t thread = 0; thread < threads; ++thread) {
    ReduceBody<E, kReduction>::template Run<kAligned>(sources, reinterpret_cast<typename E::Stored*>(to), elements,
                                                      {thread, threads});
  }
}

template <typename E, Reduction kReduction>
void ExpectCpuBits(DType dtype, size_t elements, size_t count, size_t shift, size_t threads) {
  using Stored = typename E::Stored;
  const size_t bytes = elements * sizeof(Stored);
  std::vector<std::vector<Line>> inputs;
  std::vector<const std::byte*> from;
  Sources sources = {{}, count};
  for (size_t s = 0; s < count; ++s) {
    inputs.push_back(RandomNumbers<E>(elements, static_cast<unsigned>(s)));
    from.push_back(reinterpret_cast<const std::byte*>(inputs[s].data()) + shift * sizeof(Stored));
    sources.buffers[s] = from[s];
  }
  std::vector<std::byte> expected(bytes);
  std::byte* destination = expected.data();
  FindReduce(dtype, kReduction)(from.data(), count, &destination, 1, 1, bytes);
  // In place, as the executors do; what lies behind the end stays.
  std::byte* const to = const_cast<std::byte*>(from[count - 1]);
  const std::vector<std::byte> behind(to + bytes, to + bytes + sizeof(Stored));
  shift == 0 ? RunAll<E, kReduction, true>(sources, to, elements, threads)
             : RunAll<E, kReduction, false>(sources, to, elements, threads);
  EXPECT_EQ(std::vector<std::byte>(to, to + bytes), expected);
  EXPECT_EQ(std::vector<std::byte>(to + bytes, to + bytes + sizeof(Stored)), behind);
}

template <Reduction kReduction>
void ExpectCpuBitsOfEveryType() {
  for (DType dtype : kDTypes) {
    const bool known = VisitReduced<kReduction>(dtype, [&](auto element) {
      for (size_t elements : {1, 7, 16, 33, 1000}) {
        for (size_t count : {1, 2, 5, 64}) {
          for (size_t shift : {0, 1}) {
            SCOPED_TRACE("dtype " + std::to_string(static_cast<int>(dtype)) + ", " + std::to_string(elements) +
                         " elements of " + std::to_string(count) + " sources, shift " + std::to_string(shift));
            ExpectCpuBits<decltype(element), kReduction>(dtype, elements, count, shift, 8);
          }
        }
      }
    });
    EXPECT_EQ(known, FindReduce(dtype, kReduction) != nullptr) << static_cast<int>(dtype);
  }
}

TEST(ReduceBodyTest, SumsAreTheCpusBitForBit) { ExpectCpuBitsOfEveryType<Reduction::kSum>(); }
TEST(ReduceBodyTest, MaximaAreTheCpusBitForBit) { ExpectCpuBitsOfEveryType<Reduction::kMax>(); }
TEST(ReduceBodyTest, MinimaAreTheCpusBitForBit) { ExpectCpuBitsOfEveryType<Reduction::kMin>(); }

TEST(ReduceBodyTest, TheNumberOfThreadsDoesNotMatter) {
  for (size_t threads : {1, 3, 100, 1000}) {
    ExpectCpuBits<BFloat16, Reduction::kSum>(DType::kBF16, 777, 8, 0, threads);
  }
}

TEST(ReduceBodyTest, MaximaAndMinimaPropagateNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [a, b] : {std::pair(nan, 1.0f), std::pair(1.0f, nan)}) {
    const float max = Combine<Reduction::kMax>(a, b), min = Combine<Reduction::kMin>(a, b);
    EXPECT_TRUE(max != max && min != min);
  }
}

// Every 16-bit pattern comes back from its 32-bit value, and only NaNs come back as another NaN.
template <typename E>
void ExpectRoundTrips(uint16_t infinity) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t stored = static_cast<uint16_t>(bits);
    const float wide = E::Widen(stored);
    const bool is_nan = (stored & 0x7fff) > infinity;
    EXPECT_EQ(wide != wide, is_nan) << bits;
    const uint16_t back = E::Round(wide);
    EXPECT_TRUE(is_nan ? (back & 0x7fff) > infinity : back == stored) << bits << " " << back;
  }
}

TEST(ElementsTest, SixteenBitFloatsRoundTrip) {
  ExpectRoundTrips<BFloat16>(0x7f80);
  ExpectRoundTrips<Float16>(0x7c00);
}

TEST(ElementsTest, SixteenBitFloatsRoundToNearestEven) {
  EXPECT_EQ(Float16::Round(1 + 0x1p-11f), 0x3c00);      // halfway, even below
  EXPECT_EQ(Float16::Round(1 + 3 * 0x1p-11f), 0x3c02);  // halfway, even above
  EXPECT_EQ(Float16::Round(65519.0f), 0x7bff);          // the last that does not round to infinity
  EXPECT_EQ(Float16::Round(-65520.0f), 0xfc00);         // the first that does
  EXPECT_EQ(Float16::Round(0x1p-24f * 2.5f), 2);        // subnormal, halfway, even below
  EXPECT_EQ(Float16::Round(-0x1p-25f), 0x8000);         // to a zero that keeps its sign
  EXPECT_EQ(BFloat16::Round(1 + 0x1p-8f), 0x3f80);
  EXPECT_EQ(BFloat16::Round(1 + 3 * 0x1p-8f), 0x3f82);
}

}  // namespace
}  // namespace jaxcomm::cuda

// Packing, unpacking and scaling, unit by unit and lane by lane, against what they are defined as.

#include "cc/gpu/kernels/segments_body.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cc/kernels/importance.h"
#include "gtest/gtest.h"

namespace jaxcomm::cuda {
namespace {

struct alignas(16) Line {
  std::byte bytes[16];
};

// Bytes at an address that is a multiple of 16, and one more line behind them that nobody may touch.
class Buffer {
 public:
  explicit Buffer(size_t size, unsigned seed = 0) : size_(size), lines_(size / sizeof(Line) + 2) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < lines_.size() * sizeof(Line); ++i) data()[i] = static_cast<std::byte>(random());
    behind_.assign(data() + size_, data() + lines_.size() * sizeof(Line));
  }
  std::byte* data() { return lines_.data()->bytes; }
  std::vector<std::byte> Bytes() { return {data(), data() + size_}; }
  bool BehindIsWhole() { return std::equal(behind_.begin(), behind_.end(), data() + size_); }

 private:
  size_t size_;
  std::vector<Line> lines_;
  std::vector<std::byte> behind_;
};

template <typename Work>
void ForEachLane(size_t units, Work work) {
  for (size_t unit = 0; unit < units; ++unit) {
    for (size_t lane = 0; lane < kLanes; ++lane) work(unit, lane);
  }
}

struct Case {
  size_t bytes, segment;
};
// The last segment whole, shorter by packs, by elements; segments of several tiles, smaller than a pack, not in packs.
constexpr Case kCases[] = {{4096, 1024}, {4000, 1024}, {4012, 1024}, {30000, 10240}, {40, 8}, {36, 8}, {1000, 72}};

TEST(SegmentsBodyTest, UnpackingWhatWasPackedIsZeroElsewhere) {
  for (const Case& c : kCases) {
    const Segments segments = {c.bytes, c.segment};
    for (unsigned seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(std::to_string(c.bytes) + " in " + std::to_string(c.segment) + ", seed " + std::to_string(seed));
      std::mt19937 random(seed);
      std::vector<int32_t> indices;
      for (size_t s = 0; s < segments.Count(); ++s) {
        if (random() % 2 == 0 || (indices.empty() && s + 1 == segments.Count()))
          indices.push_back(static_cast<int32_t>(s));
      }
      Buffer gradients(c.bytes, 1), packed(indices.size() * c.segment, 2), back(c.bytes, 3);
      std::vector<std::byte> expected_packed, expected(c.bytes);
      for (int32_t s : indices) {
        const auto begin = gradients.data() + s * c.segment, end = begin + segments.Length(s);
        expected_packed.insert(expected_packed.end(), begin, end);
        expected_packed.resize((expected_packed.size() + c.segment - 1) / c.segment * c.segment);
        std::copy(begin, end, expected.begin() + s * c.segment);
      }
      const bool aligned = c.segment % kPackBytes == 0;
      ForEachLane(indices.size() * segments.TilesOfOne(), [&](size_t unit, size_t lane) {
        (aligned ? PackTile<true> : PackTile<false>)(gradients.data(), segments, indices.data(), packed.data(), unit,
                                                     lane);
      });
      EXPECT_EQ(packed.Bytes(), expected_packed);
      ForEachLane(segments.Count() * segments.TilesOfOne(), [&](size_t unit, size_t lane) {
        (aligned ? UnpackTile<true> : UnpackTile<false>)(packed.data(), indices.data(), indices.size(), segments,
                                                         back.data(), unit, lane);
      });
      EXPECT_EQ(back.Bytes(), expected);
      EXPECT_TRUE(packed.BehindIsWhole() && back.BehindIsWhole());
    }
  }
}

TEST(SegmentsBodyTest, SegmentsThatDoNotExistAreZeros) {
  Buffer gradients(64), packed(64, 1);
  const int32_t indices[] = {-1, 3, 4, 1 << 30};
  ForEachLane(4, [&](size_t unit, size_t lane) {
    PackTile<true>(gradients.data(), {64, 16}, indices, packed.data(), unit, lane);
  });
  std::vector<std::byte> expected(64);
  std::copy(gradients.data() + 48, gradients.data() + 64, expected.begin() + 16);
  EXPECT_EQ(packed.Bytes(), expected);
}

template <typename E>
void ExpectCpuScale(DType dtype, const Case& c, bool in_place) {
  using Stored = typename E::Stored;
  const Segments segments = {c.bytes, c.segment};
  Buffer from(c.bytes), other(c.bytes, 1);
  Stored* const values = reinterpret_cast<Stored*>(from.data());
  std::mt19937 random(4);
  for (size_t i = 0; i < c.bytes / sizeof(Stored); ++i) values[i] = E::Round((random() % 2001 - 1000.0f) / 64);
  Buffer& to = in_place ? from : other;
  std::vector<std::byte> expected = from.Bytes();
  std::vector<float> factors;
  for (size_t s = 0; s < segments.Count(); ++s) {
    factors.push_back(std::vector<float>{0, 1, 1.0f / 3, 0.5f}[(s + 2) % 4]);
    std::byte* const begin = expected.data() + s * c.segment;
    FindScale(dtype)(begin, segments.Length(static_cast<int64_t>(s)) / sizeof(Stored), factors[s]);
    if (factors[s] == 0) std::fill_n(begin, segments.Length(static_cast<int64_t>(s)), std::byte{0});
  }
  const bool aligned = c.segment % kPackBytes == 0;
  ForEachLane(segments.Count() * segments.TilesOfOne(), [&](size_t unit, size_t lane) {
    (aligned ? ScaleTile<E, true> : ScaleTile<E, false>)(values, segments, factors.data(),
                                                         reinterpret_cast<Stored*>(to.data()), unit, lane);
  });
  EXPECT_EQ(to.Bytes(), expected);
  EXPECT_TRUE(to.BehindIsWhole());
}

TEST(SegmentsBodyTest, ScalingIsTheCpusBitForBit) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const Case& c : kCases) {
      if (c.bytes % ByteWidth(dtype) != 0) continue;
      for (bool in_place : {true, false}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(dtype)) + " " + std::to_string(c.bytes) + " in " +
                     std::to_string(c.segment) + (in_place ? " in place" : ""));
        VisitFloat(dtype, [&](auto element) { ExpectCpuScale<decltype(element)>(dtype, c, in_place); });
      }
    }
  }
}

}  // namespace
}  // namespace jaxcomm::cuda

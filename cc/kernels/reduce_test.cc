#include "cc/kernels/reduce.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

struct Isa {
  std::string name;
  ReduceFn (*find)(DType, Reduction);
};

// The instruction sets that this processor can run.
std::vector<Isa> Isas() {
  std::vector<Isa> isas = {{"plain", plain::Find}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) isas.push_back({"avx2", avx2::Find});
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    isas.push_back({"avx512", avx512::Find});
#elif defined(__aarch64__)
  isas.push_back({"neon", neon::Find});
#endif
  return isas;
}

constexpr DType kDTypes[] = {DType::kS8,  DType::kS16, DType::kS32, DType::kS64, DType::kU8,
                             DType::kU16, DType::kU32, DType::kU64, DType::kF16, DType::kBF16,
                             DType::kF32, DType::kF64, DType::kC64, DType::kC128};
constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kMax, Reduction::kMin, Reduction::kProduct};

std::vector<std::byte> RandomBytes(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> Combine(ReduceFn reduce, const std::vector<std::vector<std::byte>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<std::byte> result(inputs[0].size());
  std::byte* destination = result.data();
  reduce(sources.data(), sources.size(), &destination, 1, 1, result.size());
  return result;
}

template <typename T>
std::vector<T> As(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
T Apply(Reduction reduction, T a, T b) {
  if (reduction == Reduction::kMax) return a > b ? a : b;
  if (reduction == Reduction::kMin) return a < b ? a : b;
  if (reduction == Reduction::kProduct) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    return static_cast<T>(a * b);
  }
  return static_cast<T>(a + b);
}

// Uses integers and small whole floats, for which every order of summation gives the same value.
template <typename T>
void ExpectMatchesScalar(DType dtype) {
  for (const Isa& isa : Isas()) {
    for (const Reduction reduction : kReductions) {
      for (const size_t elements : {0u, 1u, 3u, 15u, 16u, 17u, 64u, 255u, 1000u}) {
        std::mt19937 random(elements);
        std::vector<std::vector<std::byte>> inputs;
        std::vector<T> expected(elements);
        for (int source = 0; source < 5; ++source) {
          std::vector<T> values(elements);
          for (size_t i = 0; i < elements; ++i) {
            values[i] = static_cast<T>(static_cast<int64_t>(random() % 41) - 20);
            expected[i] = source == 0 ? values[i] : Apply(reduction, expected[i], values[i]);
          }
          inputs.push_back(Bytes(values));
        }
        EXPECT_EQ(As<T>(Combine(isa.find(dtype, reduction), inputs)), expected) << isa.name << " " << elements;
      }
    }
  }
}

TEST(ReduceTest, IntegersAndWholeFloatsMatchScalars) {
  ExpectMatchesScalar<int8_t>(DType::kS8);
  ExpectMatchesScalar<int16_t>(DType::kS16);
  ExpectMatchesScalar<int32_t>(DType::kS32);
  ExpectMatchesScalar<int64_t>(DType::kS64);
  ExpectMatchesScalar<uint8_t>(DType::kU8);
  ExpectMatchesScalar<uint16_t>(DType::kU16);
  ExpectMatchesScalar<uint32_t>(DType::kU32);
  ExpectMatchesScalar<uint64_t>(DType::kU64);
  ExpectMatchesScalar<float>(DType::kF32);
  ExpectMatchesScalar<double>(DType::kF64);
}

TEST(ReduceTest, ProductsOfComplexNumbersMixTheirParts) {
  const std::vector<std::complex<double>> a = {{1, 2}, {3, -4}, {0, 1}}, b = {{5, 6}, {-1, 2}, {0, 1}};
  std::vector<std::complex<double>> expected;
  for (size_t i = 0; i < a.size(); ++i) expected.push_back(a[i] * b[i]);
  std::vector<std::complex<float>> a32(a.begin(), a.end()), b32(b.begin(), b.end()),
      e32(expected.begin(), expected.end());
  for (const Isa& isa : Isas()) {
    EXPECT_EQ(As<std::complex<double>>(Combine(isa.find(DType::kC128, Reduction::kProduct), {Bytes(a), Bytes(b)})),
              expected);
    EXPECT_EQ(As<std::complex<float>>(Combine(isa.find(DType::kC64, Reduction::kProduct), {Bytes(a32), Bytes(b32)})),
              e32);
  }
}

TEST(ReduceTest, SignedSumsWrap) {
  for (const Isa& isa : Isas()) {
    const auto top = Bytes(std::vector<int32_t>{std::numeric_limits<int32_t>::max()});
    const auto one = Bytes(std::vector<int32_t>{1});
    EXPECT_EQ(As<int32_t>(Combine(isa.find(DType::kS32, Reduction::kSum), {top, one}))[0],
              std::numeric_limits<int32_t>::min());
  }
}

TEST(ReduceTest, MaxAndMinPropagateNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Isa& isa : Isas()) {
    for (const Reduction reduction : {Reduction::kMax, Reduction::kMin}) {
      const auto result = As<float>(Combine(isa.find(DType::kF32, reduction), {Bytes(std::vector<float>{nan, 1, 2}),
                                                                               Bytes(std::vector<float>{1, nan, 3})}));
      EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1])) << isa.name;
      EXPECT_EQ(result[2], reduction == Reduction::kMax ? 3 : 2);
    }
  }
}

TEST(ReduceTest, BFloat16AccumulatesInF32AndRoundsOnce) {
  // Adds 256 + 1 + 1. Rounding to bf16 after each step would lose both ones. The f32 sum is 258, which bf16 can hold.
  const std::vector<uint16_t> big = {0x4380}, one = {0x3f80}, sum = {0x4381};
  for (const Isa& isa : Isas()) {
    EXPECT_EQ(As<uint16_t>(Combine(isa.find(DType::kBF16, Reduction::kSum), {Bytes(big), Bytes(one), Bytes(one)})),
              sum);
  }
}

TEST(ReduceTest, EveryHalfSurvivesARoundTrip) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const Isa& isa : Isas()) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const auto back = As<uint16_t>(Combine(isa.find(dtype, Reduction::kSum), {Bytes(all)}));
      const uint16_t infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
      for (size_t i = 0; i < all.size(); ++i) {
        if ((all[i] & 0x7fff) <= infinity) {
          ASSERT_EQ(back[i], all[i]) << isa.name;
        } else {
          ASSERT_GT(back[i] & 0x7fff, infinity) << isa.name;  // a NaN stays a NaN
        }
      }
    }
  }
}

// Uses random bits. The bits of NaNs may differ, because the processor chooses which of two NaNs survives.
TEST(ReduceTest, InstructionSetsAgreeBitForBit) {
  for (const Isa& isa : Isas()) {
    for (const DType dtype : kDTypes) {
      for (const Reduction reduction : kReductions) {
        const ReduceFn reduce = isa.find(dtype, reduction);
        const ReduceFn reference = plain::Find(dtype, reduction);
        ASSERT_EQ(reduce == nullptr, reference == nullptr);
        if (reduce == nullptr) continue;
        std::vector<std::vector<std::byte>> inputs;
        for (unsigned source = 0; source < 3; ++source) inputs.push_back(RandomBytes(16 * 1003, source));
        const auto result = Combine(reduce, inputs);
        const auto expected = Combine(reference, inputs);
        const size_t width = ByteWidth(dtype) > 8 ? 8 : (dtype == DType::kC64 ? 4 : ByteWidth(dtype));
        for (size_t at = 0; at < result.size(); at += width) {
          if (std::memcmp(&result[at], &expected[at], width) == 0) continue;
          uint64_t a = 0, b = 0;
          std::memcpy(&a, &result[at], width);
          std::memcpy(&b, &expected[at], width);
          const uint64_t infinity = dtype == DType::kF16    ? 0x7c00
                                    : dtype == DType::kBF16 ? 0x7f80
                                    : width == 4            ? 0x7f800000
                                                            : 0x7ff0000000000000;
          const uint64_t magnitude = (uint64_t{1} << (8 * width - 1)) - 1;
          ASSERT_TRUE((a & magnitude) > infinity && (b & magnitude) > infinity)
              << isa.name << " dtype " << static_cast<int>(dtype) << " at byte " << at;
        }
      }
    }
  }
}

// Reduces one element in f32, in the order given, then rounds once to nearest even. A NaN becomes quiet.
uint16_t BFloat16(Reduction reduction, const std::vector<uint16_t>& values) {
  const auto wide = [](uint16_t value) { return As<float>(Bytes(std::vector<uint32_t>{uint32_t{value} << 16}))[0]; };
  float result = wide(values[0]);
  for (size_t i = 1; i < values.size(); ++i) {
    const float other = wide(values[i]);
    result = reduction == Reduction::kSum || std::isnan(result) || std::isnan(other) ? result + other
                                                                                     : Apply(reduction, result, other);
  }
  const uint32_t bits = As<uint32_t>(Bytes(std::vector<float>{result}))[0];
  if (std::isnan(result)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  const uint32_t last = 1u << 16, rest = bits & (last - 1);
  const bool up = rest > last / 2 || (rest == last / 2 && (bits & last) != 0);
  return static_cast<uint16_t>((bits >> 16) + up);
}

// Combines values of the whole 16-bit range with zeros, rounding ties, denormals, infinities, NaNs and random values.
// Covers even and odd positions. The bits of NaNs may differ, because the processor chooses which of two NaNs survives.
TEST(ReduceTest, BFloat16IsWhatOneElementAfterTheOtherGives) {
  const std::vector<uint16_t> edges = {0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x3f80, 0x3f81, 0x3b80, 0x3b81, 0xbb80,
                                       0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0x7fc1, 0xffff, 0x4380, 0x437f};
  std::mt19937 random(1);
  std::vector<std::vector<uint16_t>> values(3);
  for (const uint16_t edge : edges) {
    for (uint32_t value = 0; value < 65536; value += 1 + random() % 4) {
      values[0].push_back(static_cast<uint16_t>(value));
      values[1].push_back(edge);
      values[2].push_back(random() % 2 ? edges[random() % edges.size()] : static_cast<uint16_t>(random()));
    }
  }
  values[0].push_back(1), values[1].push_back(2), values[2].push_back(3);
  // The number of elements is odd, so that the last vector and the last pair are incomplete.
  for (auto& each : values) each.resize(each.size() | 1);
  std::vector<std::vector<std::byte>> inputs;
  for (const auto& each : values) inputs.push_back(Bytes(each));
  for (const Isa& isa : Isas()) {
    for (const Reduction reduction : kReductions) {
      const auto found = As<uint16_t>(Combine(isa.find(DType::kBF16, reduction), inputs));
      for (size_t i = 0; i < found.size(); ++i) {
        const uint16_t expected = BFloat16(reduction, {values[0][i], values[1][i], values[2][i]});
        if ((expected & 0x7fff) > 0x7f80 && (found[i] & 0x7fff) > 0x7f80) continue;
        ASSERT_EQ(found[i], expected) << isa.name << " " << static_cast<int>(reduction) << " of " << values[0][i] << " "
                                      << values[1][i] << " " << values[2][i];
      }
    }
  }
}

TEST(ReduceTest, StoresInPlaceToEverySource) {
  for (const Isa& isa : Isas()) {
    std::vector<std::vector<float>> buffers(8, std::vector<float>(1001));
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> destinations;
    for (size_t rank = 0; rank < buffers.size(); ++rank) {
      for (size_t i = 0; i < buffers[rank].size(); ++i) buffers[rank][i] = static_cast<float>(rank + i);
      sources.push_back(reinterpret_cast<const std::byte*>(buffers[rank].data()));
      destinations.push_back(reinterpret_cast<std::byte*>(buffers[rank].data()));
    }
    isa.find(DType::kF32, Reduction::kSum)(sources.data(), 8, destinations.data(), 8, 8, 1001 * sizeof(float));
    for (const auto& buffer : buffers) {
      for (size_t i = 0; i < buffer.size(); ++i) ASSERT_EQ(buffer[i], static_cast<float>(28 + 8 * i)) << isa.name;
    }
  }
}

TEST(ReduceTest, StreamsPastTheCachesAlignedOrNot) {
  constexpr size_t kElements = 1003, kRoom = 64;
  for (const Isa& isa : Isas()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const size_t bytes = kElements * ByteWidth(dtype);
      const auto first = RandomBytes(bytes, 1), second = RandomBytes(bytes, 2);
      const auto expected = Combine(isa.find(dtype, Reduction::kMax), {first, second});
      for (const size_t shift : {0u, 4u}) {
        std::vector<std::vector<std::byte>> memory(3, std::vector<std::byte>(bytes + 2 * kRoom));
        const std::byte* sources[] = {first.data(), second.data()};
        std::byte* destinations[3];
        for (size_t i = 0; i < 3; ++i) {
          void* at = memory[i].data();
          size_t space = memory[i].size();
          destinations[i] = static_cast<std::byte*>(std::align(kRoom, bytes, at, space)) + shift;
        }
        isa.find(dtype, Reduction::kMax)(sources, 2, destinations, 3, 1, bytes);
        for (const std::byte* destination : destinations) {
          EXPECT_EQ(std::memcmp(destination, expected.data(), bytes), 0) << isa.name << " " << shift;
        }
      }
    }
  }
}

TEST(ReduceTest, ComplexNumbersHaveNoOrder) {
  for (const DType dtype : {DType::kC64, DType::kC128}) {
    EXPECT_NE(FindReduce(dtype, Reduction::kSum), nullptr);
    EXPECT_EQ(FindReduce(dtype, Reduction::kMax), nullptr);
    EXPECT_EQ(FindReduce(dtype, Reduction::kMin), nullptr);
  }
}

}  // namespace
}  // namespace jaxcomm

#include "cc/kernels/importance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

struct Kernels {
  std::string name;
  ImportanceFn (*importance)(DType);
  ScaleFn (*scale)(DType);
};

// The kernels of the instruction sets that this processor can run.
std::vector<Kernels> AllKernels() {
  std::vector<Kernels> all = {{"plain", plain::FindImportance, plain::FindScale}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) all.push_back({"avx2", avx2::FindImportance, avx2::FindScale});
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    all.push_back({"avx512", avx512::FindImportance, avx512::FindScale});
#elif defined(__aarch64__)
  all.push_back({"neon", neon::FindImportance, neon::FindScale});
#endif
  return all;
}

constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
constexpr size_t kSegment = 96;

// Every type holds these values exactly, so all kernels must agree with the same reference.
double Value(size_t i) { return (static_cast<double>(i * 37 % 101) - 50) / 4; }

std::vector<std::byte> Gradients(DType dtype, size_t elements) {
  std::vector<std::byte> bytes(elements * ByteWidth(dtype));
  for (size_t i = 0; i < elements; ++i) {
    const double value = Value(i);
    const float single = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &single, sizeof(bits));
    const uint16_t brain = static_cast<uint16_t>(bits >> 16);
    // All values are normal in f16, so only the exponent's bias must change.
    const uint16_t half =
        value == 0
            ? 0
            : static_cast<uint16_t>((bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff));
    const void* from = dtype == DType::kF64    ? static_cast<const void*>(&value)
                       : dtype == DType::kF32  ? static_cast<const void*>(&single)
                       : dtype == DType::kBF16 ? static_cast<const void*>(&brain)
                                               : static_cast<const void*>(&half);
    std::memcpy(bytes.data() + i * ByteWidth(dtype), from, ByteWidth(dtype));
  }
  return bytes;
}

TEST(ImportanceTest, EveryTypeAndInstructionSetFindsTheMeans) {
  for (const Kernels& kernels : AllKernels()) {
    for (DType dtype : kFloats) {
      for (size_t elements : {1, 15, 16, 95, 96, 97, 1000}) {
        SCOPED_TRACE(kernels.name + " " + std::to_string(static_cast<int>(dtype)) + " " + std::to_string(elements));
        const std::vector<std::byte> gradients = Gradients(dtype, elements);
        std::vector<float> expected_means;
        for (size_t begin = 0; begin < elements; begin += kSegment) {
          const size_t end = std::min(begin + kSegment, elements);
          double sum = 0;
          for (size_t i = begin; i < end; ++i) sum += std::abs(Value(i));
          expected_means.push_back(static_cast<float>(sum / static_cast<double>(end - begin)));
        }
        std::vector<float> means(expected_means.size());
        kernels.importance(dtype)(gradients.data(), elements, kSegment, means.data());
        for (size_t s = 0; s < means.size(); ++s) EXPECT_FLOAT_EQ(means[s], expected_means[s]) << s;
      }
    }
  }
}

TEST(ImportanceTest, InstructionSetsAgreeBitForBit) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> gradients(10007);
  for (float& value : gradients) value = normal(random);
  std::vector<std::vector<float>> results;
  for (const Kernels& kernels : AllKernels()) {
    std::vector<float> means((gradients.size() + kSegment - 1) / kSegment);
    kernels.importance(DType::kF32)(reinterpret_cast<const std::byte*>(gradients.data()), gradients.size(), kSegment,
                                    means.data());
    results.push_back(means);
    EXPECT_EQ(std::memcmp(results[0].data(), means.data(), means.size() * sizeof(float)), 0) << kernels.name;
  }
}

TEST(ImportanceTest, ScaleMultipliesEveryElementOnce) {
  for (const Kernels& kernels : AllKernels()) {
    for (DType dtype : kFloats) {
      for (size_t elements : {1, 7, 64, 101}) {
        std::vector<std::byte> values = Gradients(dtype, elements);
        kernels.scale(dtype)(values.data(), elements, -1.0f);
        kernels.scale(dtype)(values.data(), elements, -0.5f);
        kernels.scale(dtype)(values.data(), elements, 2.0f);
        EXPECT_EQ(values, Gradients(dtype, elements)) << kernels.name << " " << elements;
      }
    }
  }
}

TEST(ImportanceTest, NoKernelForIntegers) {
  EXPECT_EQ(FindImportance(DType::kS32), nullptr);
  EXPECT_EQ(FindScale(DType::kU8), nullptr);
}

}  // namespace
}  // namespace jaxcomm

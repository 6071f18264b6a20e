// Random calls of a DeviceCommunicator with known results. All ranks draw the same calls.
//
//   std::mt19937 random(seed);
//   const CheckedCall call = CallAtRandom(communicator, number, /*words=*/300, random);
//   if (call.status.ok() && !call.is_right) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cc/executor/device_communicator.h"

namespace jaxcomm {

// Element `index` of a rank's operand in call number `call`.
inline uint32_t Word(uint32_t rank, uint32_t call, size_t index) {
  return (rank + 1) * 1000003u + call * 7919u + static_cast<uint32_t>(index);
}

// The sum of the ranks' elements.
inline uint32_t SumOfWords(uint32_t ranks, uint32_t call, size_t index) {
  return ranks * (ranks + 1) / 2 * 1000003u + ranks * Word(0, call, index) - ranks * 1000003u;
}

struct CheckedCall {
  Status status;
  bool is_right;  // meaningful only if the call succeeded
};

// Makes one of six kinds of call. `words`: the size of a rank's slice.
inline CheckedCall CallAtRandom(DeviceCommunicator& communicator, uint32_t call, size_t words, std::mt19937& random) {
  const uint32_t rank = communicator.rank(), ranks = communicator.size();
  enum Kinds { kSum, kSumOfSlices, kGather, kShift, kSwap, kAllToAll };
  const auto kind = static_cast<Kinds>(random() % 6);
  const auto bytes = static_cast<int64_t>(words * sizeof(uint32_t));
  std::vector<uint32_t> mine(kind == kSumOfSlices || kind == kAllToAll ? words * ranks : words);
  std::vector<uint32_t> result(kind == kGather || kind == kAllToAll ? words * ranks : words), expected(result.size());
  for (size_t i = 0; i < mine.size(); ++i) mine[i] = Word(rank, call, i);
  const auto* const operand = reinterpret_cast<const std::byte*>(mine.data());
  auto* const stored = reinterpret_cast<std::byte*>(result.data());
  Status status;
  switch (kind) {
    case kSum:
      status = communicator.AllReduce(operand, stored, bytes, DType::kU32, Reduction::kSum);
      for (size_t i = 0; i < words; ++i) expected[i] = SumOfWords(ranks, call, i);
      break;
    case kSumOfSlices:
      status = communicator.ReduceScatter(operand, stored, bytes, DType::kU32, Reduction::kSum);
      for (size_t i = 0; i < words; ++i) expected[i] = SumOfWords(ranks, call, rank * words + i);
      break;
    case kGather:
      status = communicator.AllGather(operand, stored, bytes);
      for (uint32_t each = 0; each < ranks; ++each) {
        for (size_t i = 0; i < words; ++i) expected[each * words + i] = Word(each, call, i);
      }
      break;
    case kShift: {
      const uint32_t from = (rank + ranks - 1) % ranks;
      const auto in = communicator.Receive(stored, bytes, from, "shift");
      const auto out = communicator.Send(operand, bytes, (rank + 1) % ranks, "shift");
      const Status first = communicator.Wait(in), second = communicator.Wait(out);
      status = first.ok() ? second : first;
      for (size_t i = 0; i < words; ++i) expected[i] = Word(from, call, i);
      break;
    }
    case kSwap: {
      const uint32_t other = rank ^ 1;  // the last of an odd number of ranks has no other rank
      if (other >= ranks) return {Status(), true};
      const auto in = communicator.Receive(stored, bytes, other, "swap");
      const auto out = communicator.Send(operand, bytes, other, "swap");
      const Status first = communicator.Wait(in), second = communicator.Wait(out);
      status = first.ok() ? second : first;
      for (size_t i = 0; i < words; ++i) expected[i] = Word(other, call, i);
      break;
    }
    case kAllToAll:
      for (uint32_t i = 1; i < ranks && status.ok(); ++i) {
        const uint32_t to = (rank + i) % ranks, from = (rank + ranks - i) % ranks;
        status = communicator.Exchange(operand + to * bytes, to, stored + from * bytes, from, bytes);
        for (size_t k = 0; k < words; ++k) expected[from * words + k] = Word(from, call, rank * words + k);
      }
  }
  return {status, result == expected};
}

// A DeviceCommunicator::ChooseList that chooses the lists for calls without a plan.
inline DeviceCommunicator::ChosenList ChooseDirect(Kind kind, const DeviceGroup& group, int64_t bytes) {
  const std::string size = std::to_string(group.devices().size());
  if (kind == Kind::kReduceScatter) return {"reduce_scatter/direct/" + size, "direct"};
  if (kind == Kind::kAllGather) return {"all_gather/direct/" + size, "direct"};
  return {(bytes <= 16 << 10 ? "all_reduce/flat/" : "all_reduce/direct/") + size, "direct"};
}

}  // namespace jaxcomm

#include "cc/gpu/executor/block.h"

#include <string>
#include <vector>

#include "cc/gpu/executor/device.h"
#include "cc/gpu/executor/fused.h"

namespace jaxcomm::fused {
namespace {

constexpr size_t kAlignment = 256;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Result<Block> Block::Make(int device, const Program& program, const Table& table, uint32_t ranks, uint32_t num_blocks) {
  const size_t clocks = ClockWords(program.ranks(), static_cast<uint32_t>(program.ops().size())) * kKeptCalls;
  const size_t flags = Aligned(clocks * sizeof(uint64_t)), of_rank = ControlBytes(table.num_flags, num_blocks);
  std::vector<std::byte> tables;
  const auto add = [&tables](const auto& items) {
    const size_t begin = tables.size();
    const auto* const bytes = reinterpret_cast<const std::byte*>(items.data());
    tables.insert(tables.end(), bytes, bytes + items.size() * sizeof(items[0]));
    tables.resize(Aligned(tables.size()));
    return begin;
  };
  const size_t rank_tables = add(table.rank_tables), ops = add(table.ops), list = add(table.ranks);
  const size_t waits = add(table.waits), zeros = flags + Aligned(of_rank * ranks);

  const OnDevice on(device);
  void* memory = nullptr;
  cudaError_t error = on.error();
  if (error == cudaSuccess) error = cudaMalloc(&memory, zeros + tables.size());
  if (error != cudaSuccess) return CudaError("memory on GPU " + std::to_string(device), error);
  Block block{std::unique_ptr<std::byte, FreeOnDevice>(static_cast<std::byte*>(memory)), nullptr, of_rank, {}};
  std::byte* const base = block.memory.get();
  error = cudaMemset(base, 0, zeros);
  if (error == cudaSuccess) error = cudaMemcpy(base + zeros, tables.data(), tables.size(), cudaMemcpyHostToDevice);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) return CudaError("the fused executor's tables", error);
  block.flags = base + flags;
  block.tables = table.view();
  block.tables.rank_tables = reinterpret_cast<const RankTable*>(base + zeros + rank_tables);
  block.tables.ops = reinterpret_cast<const TableOp*>(base + zeros + ops);
  block.tables.ranks = reinterpret_cast<const uint32_t*>(base + zeros + list);
  block.tables.waits = reinterpret_cast<const Wait*>(base + zeros + waits);
  return block;
}

}  // namespace jaxcomm::fused

#include "cc/gpu/executor/block.h"

#include <cstring>
#include <vector>

#include "cc/gpu/executor/error.h"

namespace jaxcomm::fused {
namespace {

constexpr size_t kAlignment = 256;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename Items>
size_t BytesOf(const Items& items) {
  return items.size() * sizeof(items[0]);
}

}  // namespace

BlockLayout::BlockLayout(const Program& program, const Table& table)
    : num_flags_(table.num_flags),
      clock_words_(ClockWords(program.ranks(), static_cast<uint32_t>(program.ops().size())) * kKeptCalls) {
  size_t end = 0;
  const auto add = [&end](size_t bytes) {
    const size_t begin = end;
    end += Aligned(bytes);
    return begin;
  };
  add(sizeof(BlockHeader));
  clocks_ = add(clock_words_ * sizeof(uint64_t));
  flags_ = end;
  end = 0;
  rank_tables_ = add(BytesOf(table.rank_tables));
  ops_ = add(BytesOf(table.ops));
  ranks_ = add(BytesOf(table.ranks));
  waits_ = add(BytesOf(table.waits));
  tables_bytes_ = end;
}

size_t BlockLayout::TablesAt(uint32_t ranks, uint32_t num_blocks) const {
  return flags_ + Aligned(ControlBytes(num_flags_, num_blocks) * ranks);
}

size_t BlockLayout::Bytes(uint32_t ranks, uint32_t num_blocks) const {
  return TablesAt(ranks, num_blocks) + tables_bytes_;
}

Result<TableView> BlockLayout::Fill(std::byte* block, const Table& table, uint32_t ranks,
                                    const BlockHeader& header) const {
  std::vector<std::byte> image(tables_bytes_);
  const auto put = [&image](size_t at, const auto& items) {
    if (!items.empty()) std::memcpy(image.data() + at, items.data(), BytesOf(items));
  };
  put(rank_tables_, table.rank_tables);
  put(ops_, table.ops);
  put(ranks_, table.ranks);
  put(waits_, table.waits);
  std::byte* const tables = block + TablesAt(ranks, header.num_blocks);
  cudaError_t error = cudaMemset(block, 0, static_cast<size_t>(tables - block));
  if (error == cudaSuccess) error = cudaMemcpy(block, &header, sizeof(header), cudaMemcpyHostToDevice);
  if (error == cudaSuccess) error = cudaMemcpy(tables, image.data(), image.size(), cudaMemcpyHostToDevice);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) return CudaError("the fused executor's tables", error);
  TableView view = table.view();
  view.rank_tables = reinterpret_cast<const RankTable*>(tables + rank_tables_);
  view.ops = reinterpret_cast<const TableOp*>(tables + ops_);
  view.ranks = reinterpret_cast<const uint32_t*>(tables + ranks_);
  view.waits = reinterpret_cast<const Wait*>(tables + waits_);
  return view;
}

}  // namespace jaxcomm::fused

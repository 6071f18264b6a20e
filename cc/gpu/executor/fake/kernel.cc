// Runs the fused kernel's own source without a GPU, on one host thread for each block of each rank.

#include <thread>
#include <vector>

#include "cc/gpu/executor/block_ops.cuh"

namespace jaxcomm::fused {
namespace {

thread_local int the_device = 0;

template <typename E, Reduction kReduction>
void RunOne(const Arguments& arguments) {
  Shared shared;
  BlockOps<E, kReduction> ops(arguments, shared);
  ops.Begin();
  ops.End(RunBlock(ops, arguments.table, ops.rank(), ops.call(), arguments.timeout));
}

template <Reduction kReduction>
auto Find(DType dtype) {
  void (*run)(const Arguments&) = nullptr;
  cuda::VisitReduced<kReduction>(dtype, [&run](auto element) { run = RunOne<decltype(element), kReduction>; });
  return run;
}

}  // namespace

uint64_t GlobalTimer() { return ::fake::TheMachine().Now(the_device); }

Status LaunchFused(const Arguments& arguments, DType dtype, Reduction reduction, uint32_t ranks_here,
                   cudaStream_t stream) {
  if (stream->device != ::fake::Machine::current_device) return Status(Code::kInternal, "stream of another device");
  const auto run = reduction == Reduction::kSum   ? Find<Reduction::kSum>(dtype)
                   : reduction == Reduction::kMax ? Find<Reduction::kMax>(dtype)
                                                  : Find<Reduction::kMin>(dtype);
  ::fake::TheMachine().blocks = ranks_here * arguments.num_blocks;
  stream->Enqueue([arguments, run, ranks_here, device = stream->device] {
    std::vector<std::thread> blocks;
    for (uint32_t i = 0; i < ranks_here * arguments.num_blocks; ++i) {
      blocks.emplace_back([&, i] {
        the_device = device;
        blockIdx = {i % arguments.num_blocks, i / arguments.num_blocks, 0};
        run(arguments);
      });
    }
    for (std::thread& block : blocks) block.join();
  });
  return Status();
}

Status LoadFused(DType, Reduction) { return Status(); }

cudaError_t LaunchReadClock(uint64_t* now, cudaStream_t stream) {
  stream->Enqueue([now, device = stream->device] { *now = ::fake::TheMachine().Now(device); });
  return cudaSuccess;
}

}  // namespace jaxcomm::fused

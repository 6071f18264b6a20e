#include "cc/ffi/cuda/lanes.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "cc/executor/cuda/on_device.h"
#include "cc/kernels/cuda/reduce.h"
#include "cc/nccl/wire.h"

namespace jaxcomm {
namespace {

using nccl::Clock;

Status Reduce(DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to,
              size_t bytes, cudaStream_t stream) {
  if (sources.size() > cuda::kMaxSources) {
    return Status(Code::kUnimplemented, "messages: a sum of " + std::to_string(sources.size()) +
                                            " ranks at once; the kernel adds 64.\n  Cure: plan with fewer `ports`.");
  }
  cuda::Sources all = {{}, sources.size()};
  std::copy(sources.begin(), sources.end(), all.buffers);
  return cuda::Reduce(dtype, reduction, all, to, bytes, stream);
}

// Has one stream wait for what another has been given so far.
Status Follow(cudaStream_t follower, cudaStream_t leader) {
  Event event;
  if (Status status = event.Record(leader); !status.ok()) return status;
  return event.HaveWait(follower);
}

// Queues a call lane by lane, in the order that all ranks have in common. Whatever comes after it on the stream comes
// after all lanes, also where one fails: they write to its memory.
Status Queue(const Part& part, const std::vector<Lane>& lanes, cudaStream_t stream, Clock::time_point deadline) {
  const std::vector<uint32_t> places = part.loan ? part.loan->places() : std::vector<uint32_t>();
  Status status;
  for (const Lane& lane : lanes) {
    if (status.ok() && lane.stream != stream) status = Follow(lane.stream, stream);
  }
  for (const Lane& lane : lanes) {
    if (!status.ok()) break;
    nccl::NcclWire wire(
        part.carrier().library(), lane.comm, places, lane.stream, deadline,
        [&lane](DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to,
                size_t bytes) { return Reduce(dtype, reduction, sources, to, bytes, lane.stream); });
    status = lane.runner.Run(lane.leaves, lane.scratch, wire);
  }
  for (const Lane& lane : lanes) {
    if (lane.stream == stream) continue;
    const Status joined = Follow(stream, lane.stream);
    if (status.ok()) status = joined;
  }
  return status;
}

// Work on a thread of its own, which is left behind if it has not ended when this does.
class Apart {
 public:
  Apart(int device, std::function<Status()> work)
      : task_([device, work = std::move(work)] {
          const OnDevice here(device);
          return here.error() == cudaSuccess ? work() : CudaError("choosing the device", here.error());
        }),
        result_(task_.get_future()),
        thread_(std::move(task_)) {}
  ~Apart() { Ended() ? thread_.join() : thread_.detach(); }

  bool Ended() const { return result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  Status Result() const { return result_.get(); }

 private:
  std::packaged_task<Status()> task_;
  const std::shared_future<Status> result_;
  std::thread thread_;
};

}  // namespace

Status RunLanes(const Turn& turn, const nccl::Attendance& attendance, const Before& before,
                const std::vector<Lane>& lanes, cudaStream_t stream) {
  // What the step computes before the call takes as long as it takes; the deadline counts from this rank's arrival.
  Event arrived;
  if (Status status = arrived.Record(stream); !status.ok()) return status;
  cudaError_t step;
  for (nccl::Pause pause; (step = arrived.Query()) == cudaErrorNotReady;) pause.Wait();
  if (step != cudaSuccess) return CudaError("the step before it", step);
  attendance.Arrive();

  nccl::Carrier& carrier = turn.part->carrier();
  const Clock::time_point start = Clock::now(), deadline = nccl::After(turn.deadline_s);
  // Owns all that it needs: on a communicator of XLA's, where NCCL may block, it may outlive the call.
  const auto queue = [part = turn.part, before, lanes, stream, deadline] {
    Status status = before(deadline);
    return status.ok() ? Queue(*part, lanes, stream, deadline) : status;
  };
  Status queued = attendance.WrongOrder();
  if (queued.ok() && turn.part->loan) {
    const Apart apart(turn.device, queue);
    const auto ended = [&] { return apart.Ended(); };
    if (Status status = carrier.Await(attendance, ended, start, deadline); !status.ok()) return status;
    queued = apart.Result();
  } else if (queued.ok()) {
    queued = queue();
  }
  Event end;
  if (queued.ok()) queued = end.Record(stream);
  // Where peers are not there before everything is queued, the deadline has passed, and Await says who is missing.
  if (queued.code() == Code::kDeadlineExceeded) {
    return carrier.Await(
        attendance, [] { return false; }, start, deadline);
  }
  if (!queued.ok()) return carrier.Fail(attendance.Lost(queued));
  cudaError_t state = cudaErrorNotReady;
  const auto done = [&] { return (state = end.Query()) != cudaErrorNotReady; };
  const Status status = carrier.Await(attendance, done, start, deadline);
  if (status.ok() && state != cudaSuccess) return carrier.Fail(CudaError(attendance.call.c_str(), state));
  return status;
}

}  // namespace jaxcomm

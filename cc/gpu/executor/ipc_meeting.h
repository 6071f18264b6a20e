// The meeting of processes of one host, by CUDA IPC: each opens the others' blocks, and the whole regions of memory in
// which their operands lie, so that nothing is copied.
//
//   IpcMeeting meeting("3f9a01c2-0", places, {{0, {base, bytes}}}, deadline);   // a name that nobody uses twice
//
// Memory that another process has opened must not be freed: a meeting that ends leaves its blocks behind, and those
// that nobody uses any more are freed when another one begins or ends.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "cc/gpu/executor/meeting.h"
#include "cc/gpu/executor/one_process.h"
#include "cc/gpu/executor/places.h"
#include "cc/gpu/executor/rendezvous.h"

namespace jaxcomm::fused {

// An allocation on a device, from its first byte.
struct Region {
  std::byte* base;
  size_t bytes;
};

class IpcMeeting : public Meeting {
 public:
  // `regions`: where operands lie, by device of this process.
  IpcMeeting(std::string name, const Places& places, std::map<int, Region> regions, Rendezvous::Patience patience)
      : name_(std::move(name)), places_(places), regions_(std::move(regions)), patience_(patience) {}
  ~IpcMeeting() override;

  Result<std::byte*> Allocate(size_t place, size_t bytes) override;
  Status Meet(const Status& mine) override;
  View See(size_t from, size_t to) const override;
  Status CheckReach(size_t place, const std::byte* data, int64_t bytes) const override;

 private:
  using Blocks = std::map<size_t, DeviceMemory>;  // by place

  // Another process's memory, as a device of this one has opened it.
  struct Close {
    int device;
    void operator()(std::byte* memory) const;
  };
  using Opened = std::unique_ptr<std::byte, Close>;
  struct OpenedPlace {
    Opened block, region;
  };

  // What ended meetings have left behind.
  struct Left;

  Status Offer();
  Status OpenOthers();
  static Result<Opened> Open(int device, const cudaIpcMemHandle_t& handle);
  bool IsHere(size_t place) const { return places_.all[place].process == places_.process; }

  const std::string name_;
  const Places places_;
  const std::map<int, Region> regions_;
  const Rendezvous::Patience patience_;
  std::unique_ptr<Rendezvous> rendezvous_;
  Blocks blocks_;
  std::map<std::pair<size_t, size_t>, OpenedPlace> opened_;  // by place here and there
};

}  // namespace jaxcomm::fused

// An endpoint of a libfabric domain, which sends and receives tagged messages without a connection.
//
//   Result<std::unique_ptr<Endpoint>> made = Endpoint::Open({"verbs", "mlx5_0"});
//   const fi_addr_t peer = made.value()->Insert(address);           // another endpoint's address()
//   int64_t error = made.value()->Send(peer, bytes, size, descriptor, tag, &context);   // -FI_EAGAIN: try again later
//
// A completion returns the context of its operation. Until then, the operation's memory must stay valid. Not
// thread-safe.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

// A domain of a provider, such as a network adapter. If `domain` is empty, libfabric chooses.
struct DomainName {
  std::string provider, domain;
};

// A domain in which an endpoint can be opened.
struct Domain {
  std::string provider, domain;
  uint32_t protocol = 0;
  int64_t mbit = 0;  // 0 if unknown
  std::string address;
};

class Endpoint {
 public:
  static constexpr size_t kMaxAddress = 128;  // bytes

  // One operation that has ended.
  struct Completion {
    void* context;
    size_t bytes;
    int error;  // 0, or libfabric's error number
  };

  // Opens the first matching domain of libfabric's list. `operations`: the largest number of operations at a time.
  static Result<std::unique_ptr<Endpoint>> Open(const DomainName& name, size_t operations);
  // Returns all domains that support tagged messages between unconnected endpoints.
  static Result<std::vector<Domain>> Domains();
  // Closes the endpoint. Must not run while operations are under way: some providers crash.
  ~Endpoint();

  // The provider, domain and protocol that libfabric has chosen, and this endpoint's address.
  const Domain& domain() const { return domain_; }
  // The descriptor that becomes readable with a completion; -1 if the completions must be polled.
  int descriptor() const { return descriptor_; }

  // Prepares the memory for operations, if the provider requires that. `*described` receives the descriptor that
  // operations on the memory must pass.
  Status Register(std::byte* memory, size_t bytes, void** described);
  // Returns FI_ADDR_UNSPEC if the provider refuses the address.
  fi_addr_t Insert(const std::string& address);
  int64_t Send(fi_addr_t to, const std::byte* bytes, size_t size, void* described, uint64_t tag, void* context);
  int64_t Receive(std::byte* memory, size_t size, void* described, uint64_t tag, void* context);
  // Returns the operations that have ended since the last call.
  const std::vector<Completion>& Completed();
  // Returns whether the descriptor will report the next completion.
  bool MaySleep();

 private:
  struct Close {
    template <typename Object>
    void operator()(Object* object) const {
      object->fid.ops->close(&object->fid);
    }
  };
  template <typename Object>
  using Owned = std::unique_ptr<Object, Close>;
  struct FreeInfo {
    void operator()(fi_info* info) const;
  };
  using Info = std::unique_ptr<fi_info, FreeInfo>;

  Endpoint() = default;
  static Result<Info> Find(const std::string& provider);
  static Domain Describe(const fi_info& info);
  int OpenAll(size_t operations);
  int OpenCompletions(size_t operations);

  // These members are closed in reverse order.
  Info info_;
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> opened_;
  Owned<fid_mr> region_;
  Owned<fid_av> addresses_;
  Owned<fid_cq> completions_;
  Owned<fid_ep> endpoint_;
  int descriptor_ = -1;
  Domain domain_;
  std::map<std::string, fi_addr_t> inserted_;
  std::vector<Completion> completed_;
};

}  // namespace jaxcomm

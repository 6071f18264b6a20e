#include "cc/transport/fabric/endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cc/base/text.h"
#include "cc/transport/fabric/library.h"

namespace jaxcomm {
namespace {

constexpr size_t kCompletions = 32;  // number of completions that are read at a time

const Libfabric& TheLibfabric() { return Libfabric::Get().value(); }

// Calls a function of libfabric that opens an object, and makes `owner` own the object.
template <typename Object, typename Owner, typename Function>
int Own(Owner& owner, const Function& open) {
  Object* opened = nullptr;
  const int error = open(&opened);
  if (error == 0) owner.reset(opened);
  return error;
}

}  // namespace

void Endpoint::FreeInfo::operator()(fi_info* info) const { TheLibfabric().freeinfo(info); }

Endpoint::~Endpoint() = default;

// Returns the list of the provider's domains, or of all domains if `provider` is empty.
Result<Endpoint::Info> Endpoint::Find(const std::string& provider) {
  const Result<Libfabric>& library = Libfabric::Get();
  if (!library.ok()) return library.status();
  const KeptSignalHandlers kept;
  const Info hints(library.value().dupinfo(nullptr));
  if (!hints) return Status(Code::kInternal, "libfabric has no memory");
  hints->caps = FI_TAGGED;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  if (!provider.empty()) hints->fabric_attr->prov_name = strdup(provider.c_str());  // libfabric frees this text
  fi_info* found = nullptr;
  const int error = library.value().getinfo(library.value().api(), nullptr, nullptr, 0, hints.get(), &found);
  if (error == 0) return Info(found);
  return InvalidArgument("libfabric has no provider " + provider + " for tagged messages here (" +
                         library.value().Describe(error) + ").\n  Cure: name a fabric that `jaxcomm rails` lists");
}

Domain Endpoint::Describe(const fi_info& info) {
  const bool has_rate = info.nic != nullptr && info.nic->link_attr != nullptr;
  return {info.fabric_attr->prov_name, info.domain_attr->name, info.ep_attr->protocol,
          has_rate ? static_cast<int64_t>(info.nic->link_attr->speed / 1000000) : 0, ""};
}

Result<std::vector<Domain>> Endpoint::Domains() {
  Result<Info> found = Find("");
  if (!found.ok()) return found.status();
  std::vector<Domain> domains;
  for (const fi_info* info = found.value().get(); info != nullptr; info = info->next) {
    Domain domain = Describe(*info);
    const auto is_same = [&](const Domain& other) {
      return other.provider == domain.provider && other.domain == domain.domain;
    };
    if (std::none_of(domains.begin(), domains.end(), is_same)) domains.push_back(std::move(domain));
  }
  return domains;
}

Result<std::unique_ptr<Endpoint>> Endpoint::Open(const DomainName& name, size_t operations) {
  Result<Info> found = Find(name.provider);
  if (!found.ok()) return found.status();
  const KeptSignalHandlers kept;
  const fi_info* info = found.value().get();  // the hints name no domain, because some providers would ignore it
  while (info != nullptr && !name.domain.empty() && name.domain != info->domain_attr->name) info = info->next;
  if (info == nullptr) {
    return InvalidArgument("libfabric's " + name.provider + " has no domain " + name.domain +
                           " here.\n  Cure: name a fabric that `jaxcomm rails` lists");
  }
  std::unique_ptr<Endpoint> endpoint(new Endpoint());
  endpoint->info_.reset(TheLibfabric().dupinfo(info));
  endpoint->domain_ = Describe(*endpoint->info_);
  if (const int error = endpoint->OpenAll(operations); error != 0) {
    return Status(Code::kInternal, "libfabric cannot open an endpoint of " + endpoint->domain_.provider + "/" +
                                       endpoint->domain_.domain + ": " + TheLibfabric().Describe(error));
  }
  return endpoint;
}

// Returns 0 or libfabric's error number.
int Endpoint::OpenAll(size_t operations) {
  int error = Own<fid_fabric>(fabric_, [&](auto to) { return TheLibfabric().fabric(info_->fabric_attr, to, nullptr); });
  if (error == 0) {
    error = Own<fid_domain>(opened_, [&](auto to) { return fi_domain(fabric_.get(), info_.get(), to, nullptr); });
  }
  if (error == 0) error = OpenCompletions(operations);
  fi_av_attr addresses{};
  addresses.type = info_->domain_attr->av_type;
  if (error == 0) {
    error = Own<fid_av>(addresses_, [&](auto to) { return fi_av_open(opened_.get(), &addresses, to, nullptr); });
  }
  if (error == 0) {
    error = Own<fid_ep>(endpoint_, [&](auto to) { return fi_endpoint(opened_.get(), info_.get(), to, nullptr); });
  }
  if (error == 0) error = fi_ep_bind(endpoint_.get(), &addresses_->fid, 0);
  if (error == 0) error = fi_ep_bind(endpoint_.get(), &completions_->fid, FI_TRANSMIT | FI_RECV);
  if (error == 0) error = fi_enable(endpoint_.get());
  std::array<char, kMaxAddress> address{};
  size_t size = address.size();
  if (error == 0) error = fi_getname(&endpoint_->fid, address.data(), &size);
  if (error == 0) domain_.address.assign(address.data(), size);
  return error;
}

// Opens the completion queue, with a descriptor if the provider supports one.
int Endpoint::OpenCompletions(size_t operations) {
  fi_cq_attr attributes{};
  attributes.format = FI_CQ_FORMAT_TAGGED;
  attributes.size = operations;
  attributes.wait_obj = FI_WAIT_FD;
  const auto open = [&](auto to) { return fi_cq_open(opened_.get(), &attributes, to, nullptr); };
  if (Own<fid_cq>(completions_, open) == 0) {
    if (fi_control(&completions_->fid, FI_GETWAIT, &descriptor_) != 0) descriptor_ = -1;
    return 0;
  }
  attributes.wait_obj = FI_WAIT_NONE;
  return Own<fid_cq>(completions_, open);
}

Status Endpoint::Register(std::byte* memory, size_t bytes, void** described) {
  *described = nullptr;
  if ((info_->domain_attr->mr_mode & FI_MR_LOCAL) == 0) return Status();
  int error = Own<fid_mr>(region_, [&](auto to) {
    return fi_mr_reg(opened_.get(), memory, bytes, FI_SEND | FI_RECV, 0, /*requested_key=*/1, 0, to, nullptr);
  });
  if (error == 0 && (info_->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
    error = fi_mr_bind(region_.get(), &endpoint_->fid, 0);
    if (error == 0) error = fi_mr_enable(region_.get());
  }
  if (error != 0) {
    return Status(Code::kInternal, "libfabric cannot register " + FormatBytes(static_cast<int64_t>(bytes)) +
                                       " of memory: " + TheLibfabric().Describe(error) +
                                       ".\n  Cure: raise the limit of locked memory (`ulimit -l unlimited`)");
  }
  *described = fi_mr_desc(region_.get());
  return Status();
}

fi_addr_t Endpoint::Insert(const std::string& address) {
  const auto known = inserted_.find(address);
  if (known != inserted_.end()) return known->second;
  fi_addr_t inserted = FI_ADDR_UNSPEC;
  if (fi_av_insert(addresses_.get(), address.data(), 1, &inserted, 0, nullptr) != 1) return FI_ADDR_UNSPEC;
  inserted_.emplace(address, inserted);
  return inserted;
}

int64_t Endpoint::Send(fi_addr_t to, const std::byte* bytes, size_t size, void* described, uint64_t tag,
                       void* context) {
  return fi_tsend(endpoint_.get(), bytes, size, described, to, tag, context);
}

int64_t Endpoint::Receive(std::byte* memory, size_t size, void* described, uint64_t tag, void* context) {
  return fi_trecv(endpoint_.get(), memory, size, described, FI_ADDR_UNSPEC, tag, /*ignore=*/0, context);
}

const std::vector<Endpoint::Completion>& Endpoint::Completed() {
  completed_.clear();
  for (;;) {
    std::array<fi_cq_tagged_entry, kCompletions> entries;
    const ssize_t count = fi_cq_read(completions_.get(), entries.data(), entries.size());
    for (ssize_t i = 0; i < count; ++i) {
      const fi_cq_tagged_entry& entry = entries[static_cast<size_t>(i)];
      completed_.push_back({entry.op_context, entry.len, 0});
    }
    if (count > 0) continue;
    fi_cq_err_entry failed{};
    if (count != -FI_EAVAIL || fi_cq_readerr(completions_.get(), &failed, 0) != 1) return completed_;
    if (failed.op_context != nullptr) completed_.push_back({failed.op_context, 0, failed.err});
  }
}

bool Endpoint::MaySleep() {
  fid* queue = &completions_->fid;
  return fi_trywait(fabric_.get(), &queue, 1) == 0;
}

}  // namespace jaxcomm

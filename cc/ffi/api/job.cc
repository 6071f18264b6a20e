// C functions that Python calls to connect the processes of a job. c_function.h defines how they report errors.

#include "cc/ffi/job.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/c_function.h"
#include "cc/base/json.h"
#include "cc/executor/sites/message_site.h"
#include "cc/ffi/api/arguments.h"
#include "cc/ffi/runtime.h"

namespace jaxcomm {
namespace {

// When the process leaves the job, its calls fail. The process waits at most this long for these calls to end.
constexpr std::chrono::seconds kDisconnect{10};

// Runs a list of messages for the ranks of `group` in this process, and waits until these ranks are done or the
// executor's deadline passes. Returns the seconds from the last arrival to the end. `bytes` holds the buffers of these
// ranks, one after the other.
Result<double> RunMessages(const MessageSite::Label& label, uint64_t number, const MessageGroup& group,
                           std::byte* bytes, int64_t num_bytes) {
  const Result<std::shared_ptr<MessageSite>> made =
      MessageSite::Make(label, {Kind::kAllReduce, Reduction::kSum}, number, /*site=*/0, {group}, TheJob().process());
  if (!made.ok()) return made.status();
  const std::shared_ptr<MessageSite>& site = made.value();
  CallSiteStats stats;  // separate from the statistics that users read
  if (Status status = site->SetLeaves({{DType::kU8, num_bytes}}, stats); !status.ok()) return status;
  std::vector<std::future<Status>> ends;
  for (const SiteRanks::Local& local : site->ranks().locals()) {
    const auto end = std::make_shared<std::promise<Status>>();
    ends.push_back(end->get_future());
    TheExecutor().messages().Arrive(site, static_cast<int64_t>(number), local.rank, {{bytes}, {bytes}},
                                    [end](const Status& status) { end->set_value(status); });
    bytes += num_bytes;
  }
  Status status;
  for (std::future<Status>& end : ends) {
    if (Status found = end.get(); !found.ok()) status = std::move(found);
  }
  TheExecutor().messages().Forget(site.get());
  TheExecutor().messages().ForgetCommunicator(number);
  if (!status.ok()) return status;
  const std::optional<CallRecord> record = site->stats().Last();
  return record ? record->after_arrival : 0.0;
}

std::string GoneJson() {
  std::ostringstream out;
  const char* comma = "";
  out << "[";
  for (const GoneProcess& each : TheExecutor().messages().gone()) {
    const auto since = std::chrono::duration_cast<std::chrono::microseconds>(each.since.time_since_epoch());
    out << std::exchange(comma, ",") << "{\"process\":" << each.process << ",\"at_us\":" << since.count()
        << ",\"has_left\":" << (each.has_left ? "true" : "false") << ",\"why\":";
    WriteJsonString(out, each.why.message());
    out << "}";
  }
  out << "]";
  return out.str();
}

template <typename Key>
Key KeyOf(const uint8_t* bytes) {
  Key key;
  std::copy_n(bytes, key.size(), key.begin());
  return key;
}

std::optional<CipherKeys> KeysOf(const ConnectionKeys& given) {
  if (given.sends == nullptr) return std::nullopt;
  return CipherKeys{KeyOf<CipherKey>(given.sends), KeyOf<CipherKey>(given.receives)};
}

// `keys`: the key for outgoing packets, then the key for incoming packets.
PacketKeys PacketKeysOf(SealKind kind, const uint8_t* keys) {
  if (kind == SealKind::kSipHash) {
    return {kind, KeyOf<SipKey>(keys), KeyOf<SipKey>(keys + std::tuple_size_v<SipKey>), {}};
  }
  return {kind, {}, {}, {KeyOf<CipherKey>(keys), KeyOf<CipherKey>(keys + std::tuple_size_v<CipherKey>)}};
}

UdpPath PathOf(const UdpConnection& given) {
  const std::string_view seals = given.seals;
  const SealKind kind = seals == "siphash" ? SealKind::kSipHash : seals == "gmac" ? SealKind::kGmac : SealKind::kGcm;
  const size_t key_bytes = kind == SealKind::kSipHash ? std::tuple_size_v<SipKey> : std::tuple_size_v<CipherKey>;
  std::vector<UdpSocket> sockets;
  for (int64_t i = 0; i < given.num_paths; ++i) {
    sockets.push_back({given.sockets[i], PacketKeysOf(kind, given.keys + 2 * key_bytes * static_cast<size_t>(i))});
  }
  return {given.connection, std::move(sockets), static_cast<uint32_t>(given.packet_bytes),
          static_cast<uint32_t>(given.window), static_cast<uint32_t>(given.priorities)};
}

FabricPath PathOf(const FabricConnection& given) {
  return {given.connection,
          {given.address, static_cast<size_t>(given.address_bytes)},
          KeyOf<SipKey>(given.sends),
          KeyOf<SipKey>(given.receives)};
}

RailKind KindOf(std::string_view name) {
  return name == "fabric" ? RailKind::kFabric : name == "udp" ? RailKind::kUdp : RailKind::kTcp;
}

void WriteDomain(std::ostream& out, const Domain& domain) {
  out << "{\"provider\":";
  WriteJsonString(out, domain.provider);
  out << ",\"domain\":";
  WriteJsonString(out, domain.domain);
  out << ",\"protocol\":" << domain.protocol << ",\"mbit\":" << domain.mbit << ",\"address\":\"";
  for (const char byte : domain.address) {
    out << "0123456789abcdef"[static_cast<uint8_t>(byte) >> 4] << "0123456789abcdef"[byte & 0xf];
  }
  out << "\"}";
}

std::vector<RailTable::Range> TableOf(const RailShares& given) {
  std::vector<RailTable::Range> table;
  for (int64_t i = 0; i < given.ranges; ++i) {
    table.push_back({given.min_bytes[i], {given.shares + i * given.rails, given.shares + (i + 1) * given.rails}});
  }
  return table;
}

Rails::Lost LostOf(int64_t process, int64_t rail, int64_t fences) {
  return {static_cast<uint32_t>(process), static_cast<uint32_t>(rail), static_cast<uint32_t>(fences)};
}

}  // namespace

// Registers one rank's list of messages. The lists of all ranks have the same name.
JAXCOMM_EXPORT int jaxcomm_register_messages(const char* name, const void* bytes, int64_t num_bytes,
                                             JaxcommText* error) {
  return Answer(error, [&] {
    const Result<std::vector<uint32_t>> words = ReadWords(bytes, num_bytes);
    return words.ok() ? TheMessages().Add(name, words.value().data(), words.value().size()) : words.status();
  });
}

JAXCOMM_EXPORT int jaxcomm_job_open(int64_t process, int64_t processes, int same_job, JaxcommText* error) {
  return Answer(error, [&] {
    return TheJob().Open(static_cast<uint32_t>(process), static_cast<uint32_t>(processes), same_job != 0);
  });
}

// Leaves the job and releases its connections, so that another job may be opened. Does nothing if no job is open.
JAXCOMM_EXPORT int jaxcomm_job_reset(JaxcommText* error) {
  return Answer(error, [&] {
    TheJob().Close();
    Status status = TheExecutor().messages().Disconnect(Clock::now() + kDisconnect);
    if (status.ok()) TheJob().Reset();
    return status;
  });
}

// Opens an endpoint for a fabric rail. `json` receives the chosen domain and the endpoint's address.
JAXCOMM_EXPORT int jaxcomm_job_open_fabric(const char* rail, const char* provider, const char* domain,
                                           JaxcommText* json, JaxcommText* error) {
  return Answer(error, [&]() -> Status {
    const Result<Domain> opened = TheJob().OpenFabric(rail, {provider, domain});
    if (!opened.ok()) return opened.status();
    std::ostringstream out;
    WriteDomain(out, opened.value());
    CopyText(out.str(), json);
    return Status();
  });
}

// Returns the domains of libfabric on this machine, as JSON.
JAXCOMM_EXPORT int jaxcomm_fabric_domains(JaxcommText* json, JaxcommText* error) {
  return Answer(error, [&]() -> Status {
    const Result<std::vector<Domain>> domains = Endpoint::Domains();
    if (!domains.ok()) return domains.status();
    std::ostringstream out;
    const char* comma = "";
    out << "[";
    for (const Domain& domain : domains.value()) {
      out << std::exchange(comma, ",");
      WriteDomain(out, domain);
    }
    out << "]";
    CopyText(out.str(), json);
    return Status();
  });
}

// `rails`: a line for each rail: its kind ("tcp", "udp" or "fabric"), a space, and its name.
JAXCOMM_EXPORT int jaxcomm_job_open_rails(const char* rails, JaxcommText* error) {
  return Answer(error, [&] {
    std::vector<NamedRail> named;
    std::istringstream lines(rails);
    for (std::string line; std::getline(lines, line);) {
      const size_t space = line.find(' ');
      named.push_back({line.substr(space + 1), KindOf(line.substr(0, space))});
    }
    return TheJob().OpenRails(named);
  });
}

// Only for a job with several rails. Sets the rails that lead to a process: the rails that are connected, the rails
// that are down and will be connected later, and the shares of all these rails.
JAXCOMM_EXPORT int jaxcomm_job_set_rails(int64_t process, const uint32_t* connected, int64_t num_connected,
                                         const uint32_t* down, int64_t num_down, const RailShares* shares,
                                         JaxcommText* error) {
  return Answer(error, [&] {
    return TheJob().SetRails(static_cast<uint32_t>(process), TableOf(*shares), {connected, connected + num_connected},
                             {down, down + num_down});
  });
}

// Changes the shares of the rails to a process, for all messages sent from now on.
JAXCOMM_EXPORT int jaxcomm_job_set_shares(int64_t process, const RailShares* shares, JaxcommText* error) {
  return Answer(error, [&] { return TheJob().SetShares(static_cast<uint32_t>(process), TableOf(*shares)); });
}

// Returns the descriptor and the nonce of this process's shared-memory file. The core still owns the descriptor.
JAXCOMM_EXPORT int jaxcomm_job_shm_file(int* fd, uint64_t* nonce, JaxcommText* error) {
  return Answer(error, [&]() -> Status {
    const Result<ShmTransport*> shm = TheJob().Shm();
    if (!shm.ok()) return shm.status();
    *fd = shm.value()->fd();
    *nonce = shm.value()->nonce();
    return Status();
  });
}

JAXCOMM_EXPORT int jaxcomm_job_add_shm(int64_t process, int fd, uint64_t nonce, JaxcommText* error) {
  return Answer(error, [&] { return TheJob().AddShm(static_cast<uint32_t>(process), nonce, fd); });
}

JAXCOMM_EXPORT int jaxcomm_job_add_tcp(int64_t process, int64_t rail, int socket, const ConnectionKeys* keys,
                                       JaxcommText* error) {
  return Answer(error, [&] {
    return TheJob().AddTcp(static_cast<uint32_t>(process), static_cast<uint32_t>(rail), {socket, KeysOf(*keys)});
  });
}

// Fails if this process cannot encrypt messages.
JAXCOMM_EXPORT int jaxcomm_job_check_encryption(JaxcommText* error) {
  return Answer(error, [&] { return Job::CheckEncryption(); });
}

// `seals` receives 1 if AES is faster than SipHash at sealing packets in this process, otherwise 0.
JAXCOMM_EXPORT int jaxcomm_job_seals_by_aes(int* seals, JaxcommText* error) {
  return Answer(error, [&] { *seals = HasFastAead() ? 1 : 0; });
}

JAXCOMM_EXPORT int jaxcomm_job_add_udp(int64_t process, int64_t rail, const UdpConnection* given, JaxcommText* error) {
  return Answer(error, [&] {
    return TheJob().AddUdp(static_cast<uint32_t>(process), static_cast<uint32_t>(rail), PathOf(*given));
  });
}

JAXCOMM_EXPORT int jaxcomm_job_add_fabric(int64_t process, int64_t rail, const FabricConnection* given,
                                          JaxcommText* error) {
  return Answer(error, [&] {
    return TheJob().AddFabric(static_cast<uint32_t>(process), static_cast<uint32_t>(rail), PathOf(*given));
  });
}

JAXCOMM_EXPORT int jaxcomm_job_rails(JaxcommText* json, JaxcommText* error) {
  return Answer(error, [&] { CopyText(TheJob().RailsJson(), json); });
}

// Returns the other processes that have left or failed, as JSON.
JAXCOMM_EXPORT int jaxcomm_job_gone(JaxcommText* json, JaxcommText* error) {
  return Answer(error, [&] { CopyText(GoneJson(), json); });
}

// Stores at most `capacity` rails that may be restored. A triple holds the process, the rail and the rail's number of
// fences.
JAXCOMM_EXPORT int jaxcomm_job_lost_rails(uint32_t* triples, int64_t capacity, int64_t* count, JaxcommText* error) {
  return Answer(error, [&] {
    *count = 0;
    for (const Rails::Lost& lost : TheJob().lost_rails()) {
      if (*count == capacity) break;
      uint32_t* const triple = triples + 3 * (*count)++;
      triple[0] = lost.process;
      triple[1] = lost.rail;
      triple[2] = lost.fences;
    }
    return Status();
  });
}

// Restores a rail with a new connection. Takes ownership of `socket`. Closes `socket` if the rail cannot be restored
// now.
JAXCOMM_EXPORT int jaxcomm_job_restore_tcp(int64_t process, int64_t rail, int64_t fences, int socket,
                                           const ConnectionKeys* keys, JaxcommText* error) {
  return Answer(error, [&] { return TheJob().RestoreTcp(LostOf(process, rail, fences), {socket, KeysOf(*keys)}); });
}

// Restores a rail with a new path over UDP. Takes ownership of the path's sockets. Closes the sockets if the rail
// cannot be restored now.
JAXCOMM_EXPORT int jaxcomm_job_restore_udp(int64_t process, int64_t rail, int64_t fences, const UdpConnection* given,
                                           JaxcommText* error) {
  return Answer(error, [&] { return TheJob().RestoreUdp(LostOf(process, rail, fences), PathOf(*given)); });
}

// Restores a rail with a new path over libfabric. Takes ownership of the path's socket. Closes the socket if the rail
// cannot be restored now.
JAXCOMM_EXPORT int jaxcomm_job_restore_fabric(int64_t process, int64_t rail, int64_t fences,
                                              const FabricConnection* given, JaxcommText* error) {
  return Answer(error, [&] { return TheJob().RestoreFabric(LostOf(process, rail, fences), PathOf(*given)); });
}

// `hosts[p]` is the number of process p's host; line p of `names` is the host's name. `has_processor_each`: whether the
// processes of this host have at least one processor each.
JAXCOMM_EXPORT int jaxcomm_job_start(const uint32_t* hosts, const char* names, int64_t processes,
                                     int has_processor_each, JaxcommText* error) {
  return Answer(error, [&]() -> Status {
    std::vector<std::string> host_names(static_cast<size_t>(processes));
    std::istringstream lines(names);
    for (std::string& name : host_names) std::getline(lines, name);
    Status status = TheJob().Start({hosts, hosts + processes}, host_names);
    if (!status.ok()) return status;
    TheExecutor().messages().Connect(TheJob().transport(), has_processor_each != 0);
    for (const uint32_t absent : TheJob().absent()) {
      const std::string who = "process " + std::to_string(absent);
      TheExecutor().messages().OnPeerGone(absent, Status(Code::kInternal, who + " is not among the live processes"));
    }
    return status;
  });
}

// `awaits` receives 1 if ranks of this process wait in calls between processes, otherwise 0.
JAXCOMM_EXPORT int jaxcomm_job_awaits(int* awaits, JaxcommText* error) {
  return Answer(error, [&] { *awaits = TheExecutor().messages().waiting() ? 1 : 0; });
}

JAXCOMM_EXPORT int jaxcomm_job_close(JaxcommText* error) {
  return Answer(error, [&] {
    TheJob().Close();
    return Status();
  });
}

// Runs a registered list of messages, for one or more ranks of this process. `seconds` receives the time from the
// arrival of the call's last rank until the ranks of this process are done. It is 0 if one of them was done before that
// arrival.
JAXCOMM_EXPORT int jaxcomm_job_run(const MessageRun* run, double* seconds, JaxcommText* error) {
  return Answer(error, [&]() -> Status {
    if (!TheJob().started()) return InvalidArgument("the processes of the job are not connected.");
    MessageGroup group{{}, run->list, {}};
    for (uint32_t rank = 0; rank < static_cast<uint32_t>(run->ranks); ++rank) {
      const uint32_t process = run->processes[rank];
      group.ranks.push_back(TheJob().Rank(process, run->devices[rank]));
      group.lists.push_back(process == TheJob().process() ? TheMessages().Find(run->list, rank) : nullptr);
    }
    const Result<double> found =
        RunMessages({run->call, "processes", "none", run->call}, run->number, group, run->bytes, run->num_bytes);
    if (found.ok()) *seconds = found.value();
    return found.status();
  });
}

}  // namespace jaxcomm

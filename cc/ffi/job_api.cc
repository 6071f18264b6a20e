// The C functions by which Python connects the processes of a job; c_function.h says how they end.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/c_function.h"
#include "cc/base/json.h"
#include "cc/executor/message_site.h"
#include "cc/ffi/job.h"
#include "cc/ffi/runtime.h"

namespace jaxcomm {
namespace {

// For calls that fail as the process leaves the job to end.
constexpr std::chrono::seconds kDisconnect{10};

// Runs a list of messages between processes, of which this has some of the ranks, and waits for the end, which the
// executor's deadline bounds; the seconds from the last arrival to it. `bytes`: of each rank of this process in turn.
Result<double> RunMessages(const MessageSite::Label& label, uint64_t number, const MessageGroup& group,
                           std::byte* bytes, int64_t num_bytes) {
  const Result<std::shared_ptr<MessageSite>> made =
      MessageSite::Make(label, Kind::kAllReduce, Reduction::kSum, number, /*site=*/0, {group}, TheJob().process());
  if (!made.ok()) return made.status();
  const std::shared_ptr<MessageSite>& site = made.value();
  CallSiteStats stats;  // not those that users read
  if (Status status = site->SetLeaves({{DType::kU8, num_bytes}}, stats); !status.ok()) return status;
  std::vector<std::future<Status>> ends;
  for (const MessageSite::Local& local : site->locals()) {
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

UdpPath PathOf(int connection, int socket, const uint8_t* sends, const uint8_t* receives, int64_t packet_bytes,
               int64_t window) {
  UdpPath path{connection, socket, {}, {}, static_cast<uint32_t>(packet_bytes), static_cast<uint32_t>(window)};
  std::copy_n(sends, path.sends.size(), path.sends.begin());
  std::copy_n(receives, path.receives.size(), path.receives.begin());
  return path;
}

Rails::Lost LostOf(int64_t process, int64_t rail, int64_t fences) {
  return {static_cast<uint32_t>(process), static_cast<uint32_t>(rail), static_cast<uint32_t>(fences)};
}

}  // namespace

// The list of one rank; those of all ranks have one name.
JAXCOMM_EXPORT int jaxcomm_register_messages(const char* name, const void* bytes, int64_t num_bytes, char* error,
                                             int64_t capacity) {
  return Answer(error, capacity, [&] {
    const Result<std::vector<uint32_t>> words = ReadWords(bytes, num_bytes);
    return words.ok() ? TheMessages().Add(name, words.value().data(), words.value().size()) : words.status();
  });
}

JAXCOMM_EXPORT int jaxcomm_job_open(int64_t process, int64_t processes, char* error, int64_t capacity) {
  return Answer(error, capacity,
                [&] { return TheJob().Open(static_cast<uint32_t>(process), static_cast<uint32_t>(processes)); });
}

// Leaves the job, if there is one, and forgets it: another one may be opened.
JAXCOMM_EXPORT int jaxcomm_job_reset(char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    TheJob().Close();
    Status status = TheExecutor().messages().Disconnect(Clock::now() + kDisconnect);
    if (status.ok()) TheJob().Reset();
    return status;
  });
}

// `kind`: "tcp" or "udp", of all; `names`: one in a line.
JAXCOMM_EXPORT int jaxcomm_job_open_rails(const char* kind, const char* names, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    std::vector<std::string> rails;
    std::istringstream lines(names);
    for (std::string name; std::getline(lines, name);) rails.push_back(name);
    return TheJob().OpenRails(std::string_view(kind) == "udp" ? RailKind::kUdp : RailKind::kTcp, rails);
  });
}

// Of a job of several rails: those that lead to a process, those that are down and will, and their shares of calls of
// at least `min_bytes[i]` bytes: `rails` numbers of 1024, for each of the `ranges`.
JAXCOMM_EXPORT int jaxcomm_job_set_rails(int64_t process, const uint32_t* connected, int64_t num_connected,
                                         const uint32_t* down, int64_t num_down, const int64_t* min_bytes,
                                         const uint32_t* shares, int64_t ranges, int64_t rails, char* error,
                                         int64_t capacity) {
  return Answer(error, capacity, [&] {
    std::vector<RailTable::Range> table;
    for (int64_t i = 0; i < ranges; ++i) {
      table.push_back({min_bytes[i], {shares + i * rails, shares + (i + 1) * rails}});
    }
    return TheJob().SetRails(static_cast<uint32_t>(process), table, {connected, connected + num_connected},
                             {down, down + num_down});
  });
}

// The descriptor of this process's shared-memory file, which stays ours, and the number that it bears.
JAXCOMM_EXPORT int jaxcomm_job_shm_file(int* fd, uint64_t* nonce, char* error, int64_t capacity) {
  return Answer(error, capacity, [&]() -> Status {
    const Result<ShmTransport*> shm = TheJob().Shm();
    if (!shm.ok()) return shm.status();
    *fd = shm.value()->fd();
    *nonce = shm.value()->nonce();
    return Status();
  });
}

JAXCOMM_EXPORT int jaxcomm_job_add_shm(int64_t process, int fd, uint64_t nonce, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { return TheJob().AddShm(static_cast<uint32_t>(process), nonce, fd); });
}

JAXCOMM_EXPORT int jaxcomm_job_add_tcp(int64_t process, int64_t rail, int socket, char* error, int64_t capacity) {
  return Answer(error, capacity,
                [&] { return TheJob().AddTcp(static_cast<uint32_t>(process), static_cast<uint32_t>(rail), socket); });
}

// `connection` is a TCP socket and `socket` a UDP one; each of the keys has 16 bytes.
JAXCOMM_EXPORT int jaxcomm_job_add_udp(int64_t process, int64_t rail, int connection, int socket, const uint8_t* sends,
                                       const uint8_t* receives, int64_t packet_bytes, int64_t window, char* error,
                                       int64_t capacity) {
  return Answer(error, capacity, [&] {
    return TheJob().AddUdp(static_cast<uint32_t>(process), static_cast<uint32_t>(rail),
                           PathOf(connection, socket, sends, receives, packet_bytes, window));
  });
}

JAXCOMM_EXPORT int jaxcomm_job_rails(char* json, int64_t json_capacity, int64_t* size, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { CopyText(TheJob().RailsJson(), json, json_capacity, size); });
}

// The other processes that are gone, as JSON.
JAXCOMM_EXPORT int jaxcomm_job_gone(char* json, int64_t json_capacity, int64_t* size, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { CopyText(GoneJson(), json, json_capacity, size); });
}

// Rails that may be restored, `capacity` of them at most: of each the process, the rail, and how often it was fenced.
JAXCOMM_EXPORT int jaxcomm_job_lost_rails(uint32_t* triples, int64_t capacity, int64_t* count, char* error,
                                          int64_t error_capacity) {
  return Answer(error, error_capacity, [&] {
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

// Takes a new connection, which is closed where it comes too early or too late.
JAXCOMM_EXPORT int jaxcomm_job_restore_tcp(int64_t process, int64_t rail, int64_t fences, int socket, char* error,
                                           int64_t capacity) {
  return Answer(error, capacity, [&] { return TheJob().RestoreTcp(LostOf(process, rail, fences), socket); });
}

// The same for a new path.
JAXCOMM_EXPORT int jaxcomm_job_restore_udp(int64_t process, int64_t rail, int64_t fences, int connection, int socket,
                                           const uint8_t* sends, const uint8_t* receives, int64_t packet_bytes,
                                           int64_t window, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    return TheJob().RestoreUdp(LostOf(process, rail, fences),
                               PathOf(connection, socket, sends, receives, packet_bytes, window));
  });
}

// `hosts`: the number of each process's host.
JAXCOMM_EXPORT int jaxcomm_job_start(const uint32_t* hosts, const char* names, int64_t processes, char* error,
                                     int64_t capacity) {
  return Answer(error, capacity, [&]() -> Status {
    std::vector<std::string> host_names(static_cast<size_t>(processes));
    std::istringstream lines(names);
    for (std::string& name : host_names) std::getline(lines, name);
    Status status = TheJob().Start({hosts, hosts + processes}, host_names);
    if (status.ok()) TheExecutor().messages().Connect(TheJob().transport(), TheJob().has_processor_each());
    return status;
  });
}

// Whether ranks of this process wait in calls between processes.
JAXCOMM_EXPORT int jaxcomm_job_awaits(int* awaits, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] { *awaits = TheExecutor().messages().waiting() ? 1 : 0; });
}

JAXCOMM_EXPORT int jaxcomm_job_close(char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    TheJob().Close();
    return Status();
  });
}

// Runs a registered list of messages, of which this process has a rank or several: rank r is device `devices[r]` of
// `processes[r]`. `bytes` has the buffers of this process's ranks, one after the other. All processes of the call give
// the same number, which no other call has had. `seconds`: from the last arrival to the end here, or 0 if the first of
// these ranks needed no other.
JAXCOMM_EXPORT int jaxcomm_job_run(const char* call, uint64_t number, const char* list, const uint32_t* processes,
                                   const uint32_t* devices, int64_t ranks, void* bytes, int64_t num_bytes,
                                   double* seconds, char* error, int64_t capacity) {
  return Answer(error, capacity, [&]() -> Status {
    if (!TheJob().started()) return InvalidArgument("the processes of the job are not connected.");
    MessageGroup group{{}, list, {}};
    for (uint32_t rank = 0; rank < static_cast<uint32_t>(ranks); ++rank) {
      group.ranks.push_back(TheJob().Rank(processes[rank], devices[rank]));
      group.lists.push_back(processes[rank] == TheJob().process() ? TheMessages().Find(list, rank) : nullptr);
    }
    const Result<double> found =
        RunMessages({call, "processes", "none", call}, number, group, static_cast<std::byte*>(bytes), num_bytes);
    if (found.ok()) *seconds = found.value();
    return found.status();
  });
}

}  // namespace jaxcomm

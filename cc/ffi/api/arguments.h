// The structs that Python passes to the core's C functions. jaxcomm/ffi/arguments.py has the same structs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxcomm {

// The keys with which a connection over TCP is encrypted, 28 bytes each; null if the connection is not encrypted.
struct ConnectionKeys {
  const uint8_t* sends;     // for outgoing bytes
  const uint8_t* receives;  // for incoming bytes
};

// The sockets and keys of a connection over UDP.
struct UdpConnection {
  int32_t connection;      // a TCP socket
  const int32_t* sockets;  // by path: a UDP socket
  const uint8_t* keys;     // by path: the key for outgoing packets, then the key for incoming packets
  int64_t num_paths;
  const char* seals;  // "siphash", with keys of 16 bytes; "gmac" or "gcm", with keys of 28 bytes
  int64_t packet_bytes;
  int64_t window;
  int64_t priorities;  // of the packets that this process sends
};

// The socket, address and keys of a connection over libfabric.
struct FabricConnection {
  int32_t connection;   // a TCP socket
  const char* address;  // the address of the process's endpoint
  int64_t address_bytes;
  const uint8_t* sends;     // the key for frames that this process sends, 16 bytes
  const uint8_t* receives;  // the key for frames that this process receives, 16 bytes
};

// The shares of the rails to a process.
struct RailShares {
  const int64_t* min_bytes;  // by range: the minimum number of bytes of the range's calls
  const uint32_t* shares;    // by [range, rail]: the share, in units of 1/1024
  int64_t ranges;
  int64_t rails;
};

// A registered list of messages to run, the ranks that run it, and the ranks' buffers.
struct MessageRun {
  uint64_t number;            // the same in all processes of the call, and different for every other call
  const char* call;           // the call's name for errors
  const char* list;           // the list's registered name
  const uint32_t* processes;  // by rank
  const uint32_t* devices;    // by rank
  int64_t ranks;
  std::byte* bytes;   // the buffers of this process's ranks, one after the other
  int64_t num_bytes;  // the size of one buffer in bytes
};

// The rules by which the collectives of unchanged programs choose their lists of messages.
struct CollectiveLists {
  // The bounds of ListRules for schedules without a plan.
  int64_t flat_bytes;
  int64_t flat_bytes_on_one_host;
  int64_t ring_bytes;
  int64_t ring_bytes_of_several;
  // A plan's lists, for all-reduces of `ranks` ranks.
  const char* plan;
  int64_t ranks;
  const int64_t* min_bytes;  // by range: the smallest size in bytes, ascending from 0
  const char* names;         // a line for each range: a list's name and its schedule's kind; empty if there is no list
  int64_t ranges;
  int64_t tries;  // not 0 if the plan's schedules are in a trial
};

// A change of plan. On each communicator, calls follow the plan from a given launch on.
struct PlanSwitch {
  const char* plan;  // "" if calls no longer follow a plan
  int64_t ranks;
  const int64_t* min_bytes;  // by range
  const char* names;         // a line for each range: the name of the range's lists
  const int64_t* sizes;      // by [range, rank]: the list's size in bytes; 0 if calls of this range follow no plan
  const char* bytes;         // the lists, one after the other
  int64_t ranges;
  const uint64_t* communicators;
  const uint32_t* launches;  // by communicator: the first launch that follows the plan
  int64_t num_communicators;
};

}  // namespace jaxcomm

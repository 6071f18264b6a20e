// Runs the messages of a schedule between ranks that the fake NCCL connects.
//
//   play TIMEOUT_S DTYPE MESSAGES... < operands > results
//
// MESSAGES are files, one per rank. DTYPE is the number of a DType. Reads one row per rank, and writes the row that
// each rank holds at the end. On an error it prints the error text and exits with 1.

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <string>

#include "cc/gpu/nccl/communicator.h"
#include "cc/gpu/nccl/fake/nccl.h"
#include "cc/gpu/nccl/message_rounds.h"

namespace jaxcomm::nccl {
namespace {

// Joins as one rank, and runs this rank's messages.
Status Play(const std::string& file, const GroupRank& joining, const Layout& layout, char* row) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<uint32_t> words(bytes.size() / sizeof(uint32_t));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(uint32_t));
  Result<Messages> messages = Messages::Decode(words.data(), words.size());
  if (!messages.ok()) return messages.status();
  auto made = Communicator::Join(FakeNccl(), 0, joining, std::chrono::seconds(60));
  if (!made.ok()) return made.status();
  const MessageRounds rounds{std::make_shared<const Messages>(messages.value()), layout, Reduction::kSum};
  std::vector<std::byte> scratch(rounds.ScratchBytes());
  return made.value()->Run([&](const Library& nccl, Comm comm) {
    return rounds.Queue(nccl, comm, {reinterpret_cast<std::byte*>(row)}, scratch.data(), nullptr);
  });
}

int Main(uint32_t ranks, DType dtype, char** files) {
  std::string rows{std::istreambuf_iterator<char>(std::cin), {}};
  const size_t bytes = rows.size() / ranks;
  const Layout layout({{dtype, static_cast<int64_t>(bytes)}});
  Id id;
  FakeNccl().GetUniqueId(&id);
  std::vector<std::future<Status>> running;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    running.push_back(std::async(std::launch::async, Play, std::string(files[rank]), GroupRank{ranks, rank, id},
                                 std::cref(layout), rows.data() + rank * bytes));
  }
  for (auto& each : running) {
    if (const Status status = each.get(); !status.ok()) return std::cerr << status.message() << "\n", 1;
  }
  std::cout.write(rows.data(), static_cast<std::streamsize>(rows.size()));
  return 0;
}

}  // namespace
}  // namespace jaxcomm::nccl

int main(int argc, char** argv) {
  const ::fake::Machine machine(1);
  jaxcomm::nccl::fake::Nccl nccl;
  nccl.timeout_s = std::atof(argv[1]);
  return jaxcomm::nccl::Main(static_cast<uint32_t>(argc - 3), static_cast<jaxcomm::DType>(std::atoi(argv[2])),
                             argv + 3);
}

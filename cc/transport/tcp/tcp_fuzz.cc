// libFuzzer target: arbitrary bytes arrive in arbitrary pieces, with arbitrary Posts and cancels in between. No byte
// may be stored outside the posted spans or in the spans of another call. Every callback must run once.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/transport/tcp/frame_reader.h"
#include "cc/transport/testing/inbox_fuzz.h"

namespace jaxcomm {
namespace {

class Fuzz {
 public:
  explicit Fuzz(FuzzInput input) : input_(input) {}

  void Run() {
    while (!input_.empty() && !reader_.at_end() && status_.ok()) {
      const uint8_t action = input_.Next();
      switch (action % 8) {
        case 0:
          status_ = fuzzed_.Post();
          break;
        case 1:
          Cancel();
          break;
        case 2:  // a valid header: mutations of the input would seldom produce one
          Feed(Header(), kHeaderBytes);
          break;
        default: {
          std::byte bytes[256];
          const size_t size = input_.Read(bytes, action);
          Feed(bytes, size);
        }
      }
      fuzzed_.RunCallbacks();
    }
    fuzzed_.inbox().Fail(FuzzedInbox::kPeer, InvalidArgument("over"), reader_.TakeArrival());
    fuzzed_.RunCallbacks();
    fuzzed_.CheckEnds();
  }

 private:
  const std::byte* Header() {
    const FrameType types[] = {FrameType::kMessage, FrameType::kNotice, FrameType::kMessage, FrameType::kGoodbye};
    const FrameType type = types[input_.Next() % 4];
    const uint32_t bytes = type == FrameType::kGoodbye ? 0 : input_.Next();
    EncodeHeader({type, bytes, type == FrameType::kMessage ? fuzzed_.Id() : MessageId()}, header_);
    return header_;
  }

  void Cancel() {
    const CallId call = fuzzed_.Id().call;
    reader_.Cancel(call);
    fuzzed_.Cancel(call);
    if (reader_.waits()) status_ = reader_.Resume();
  }

  void Feed(const std::byte* bytes, size_t size) {
    while (size > 0 && status_.ok() && !reader_.waits() && !reader_.at_end()) {
      iovec vectors[FrameReader::kMaxVectors];
      const size_t count = reader_.Gather(vectors);
      Require(count > 0 && count <= FrameReader::kMaxVectors);
      size_t taken = 0;
      for (size_t i = 0; i < count && taken < size; ++i) {
        const size_t part = std::min(vectors[i].iov_len, size - taken);
        if (part) std::memcpy(vectors[i].iov_base, bytes + taken, part);
        taken += part;
      }
      Require(taken > 0);
      bytes += taken;
      size -= taken;
      status_ = reader_.Take(taken);
    }
  }

  FuzzInput input_;
  FuzzedInbox fuzzed_{&input_};
  FrameReader reader_{FuzzedInbox::kPeer, &fuzzed_.inbox()};
  Status status_;
  std::byte header_[kHeaderBytes];
};

}  // namespace
}  // namespace jaxcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jaxcomm::Fuzz(jaxcomm::FuzzInput(data, size)).Run();
  return 0;
}

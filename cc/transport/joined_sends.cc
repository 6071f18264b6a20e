#include "cc/transport/joined_sends.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

namespace jaxcomm {
namespace {

class Joined {
 public:
  Joined(size_t left, Sent done) : left_(left), done_(std::move(done)) {}

  void End(const Status& status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (status_.ok()) status_ = status;
      if (--left_ > 0) return;
    }
    done_(status_);
  }

 private:
  std::mutex mutex_;
  size_t left_;
  Status status_;
  const Sent done_;
};

}  // namespace

void SendParts(const std::vector<Transport*>& transports, const std::vector<std::vector<Receiver>>& parts,
               std::vector<ConstSpan> spans, Sent done) {
  const auto has_receiver = [](const std::vector<Receiver>& part) { return !part.empty(); };
  const auto count = static_cast<size_t>(std::count_if(parts.begin(), parts.end(), has_receiver));
  if (count == 0) return done(Status());
  if (count == 1) {
    const auto only = std::find_if(parts.begin(), parts.end(), has_receiver);
    return transports[static_cast<size_t>(only - parts.begin())]->Send(*only, std::move(spans), std::move(done));
  }
  const auto joined = std::make_shared<Joined>(count, std::move(done));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty()) continue;
    transports[i]->Send(parts[i], spans, [joined](const Status& status) { joined->End(status); });
  }
}

}  // namespace jaxcomm

// Sums from which the network may lose a part.
#include <chrono>
#include <cstddef>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/program/message_registry.h"
#include "cc/transport/router.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kSegment = 1024;

// A transport on which about half of the lossy messages lose bytes. Such a message loses at most the allowed number of
// bytes, at random places.
class LosingTransport : public Router {
 public:
  LosingTransport(Transport* transport, uint32_t processes, unsigned seed)
      : Router({transport}, std::vector<uint32_t>(processes, 0)), transport_(transport), random_(seed) {}

  void PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, const LossLimit& limit,
                 ReceivedLossy done) override {
    const auto lost = std::make_shared<std::vector<ByteRange>>();
    // With a time limit, spans are lost whole. A span that is shorter than a segment may be only a part of a segment,
    // so it is never lost.
    for (int64_t left = Draw() % 2 ? limit.bytes / 8 * 8 : 0; left > 0;) {
      const Span& span = spans[Draw() % spans.size()];
      const int64_t bytes = limit.until ? span.bytes : std::min(left, span.bytes / 8 * 8);
      if (bytes == 0 || bytes > left || !places_.insert({id, span.at}).second) break;
      if (limit.until && bytes < kSegment) continue;
      lost->push_back({span.at, span.at + bytes});
      left -= bytes;
      std::lock_guard<std::mutex> lock(mutex_);
      lost_bytes_ += bytes;
    }
    std::sort(lost->begin(), lost->end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    const std::vector<Span> kept = spans;
    transport_->Post(process, id, std::move(spans), /*accepts_view=*/false,
                     [lost, kept, done = std::move(done)](const Status& status, std::shared_ptr<const std::byte>) {
                       for (const ByteRange& range : *lost) {
                         for (const Span& span : kept) {
                           if (span.at == range.begin) std::memset(span.data, 0, size_t(range.end - range.begin));
                         }
                       }
                       done(status, nullptr, *lost);
                     });
  }
  void SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important,
                 const LossLimit& limit, Sent done) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      EXPECT_EQ(spans.size(), important.size());
      for (const bool each : important) ++(each ? important_ : unimportant_);
      may_lose_ += limit.bytes;
    }
    transport_->Send({to}, std::move(spans), std::move(done));
  }

  int64_t lost_bytes() const { return lost_bytes_; }
  int64_t important() const { return important_; }
  int64_t unimportant() const { return unimportant_; }
  int64_t may_lose() const { return may_lose_; }

 private:
  uint32_t Draw() {
    std::lock_guard<std::mutex> lock(mutex_);
    return random_();
  }

  Transport* const transport_;
  std::mutex mutex_;
  std::mt19937 random_;
  std::set<std::pair<MessageId, int64_t>> places_;
  int64_t lost_bytes_ = 0, important_ = 0, unimportant_ = 0, may_lose_ = 0;
};

class LossyCallTest : public testing::Test {
 protected:
  static constexpr uint32_t kRanks = 4;

  void Connect(bool loses) {
    for (uint32_t process = 0; process < kRanks; ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      network_.Connect(process, &executors_[process]->messages());
      losing_.push_back(std::make_unique<LosingTransport>(&network_.transport(process), kRanks, process));
      Transport* const whole = &network_.transport(process);
      executors_[process]->messages().Connect(loses ? losing_[process].get() : whole);
    }
  }
  ~LossyCallTest() override { network_.Stop(); }

  Result<std::shared_ptr<MessageSite>> MakeSite(uint32_t process, const std::vector<Leaf>& leaves, AllowedLoss loss,
                                                const std::string& list = "all_reduce/direct/4",
                                                Reduction reduction = Reduction::kSum) {
    MessageGroup group;
    group.list = list;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      group.ranks.push_back({rank, 10 * rank});
      group.lists.push_back(registry_.Find(list, rank));
    }
    auto made =
        MessageSite::Make({"psum", "data", "direct", "train.py:5"}, {Kind::kAllReduce, reduction, std::move(loss)},
                          /*module=*/7,
                          /*site=*/0, {group}, process);
    if (!made.ok()) return made;
    const Status status = made.value()->SetLeaves(leaves, executors_[process]->stats());
    if (!status.ok()) return status;
    return made;
  }

  // Returns the ranks' results. All values of a rank's operand are 2^rank.
  std::vector<std::vector<float>> Sum(int64_t elements, AllowedLoss loss) {
    std::vector<std::vector<float>> values;
    std::vector<std::future<Status>> ends;
    Bytes important(static_cast<size_t>((4 * elements + kSegment - 1) / kSegment));
    for (size_t i = 0; i < important.size(); i += 2) important[i] = std::byte{1};
    important_.assign(kRanks, important);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      values.emplace_back(elements, static_cast<float>(1 << rank));
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      auto site = MakeSite(rank, {{DType::kF32, 4 * elements}}, loss);
      EXPECT_TRUE(site.ok()) << site.status().message();
      Buffers buffers;
      buffers.results = {reinterpret_cast<std::byte*>(values[rank].data())};
      buffers.operands = {buffers.results[0]};
      buffers.leading = buffers.leading_result = important_[rank].data();
      const auto promise = std::make_shared<std::promise<Status>>();
      ends.push_back(promise->get_future());
      executors_[rank]->messages().Arrive(site.value(), /*run=*/rank, rank, std::move(buffers),
                                          [promise](const Status& status) { promise->set_value(status); });
    }
    for (std::future<Status>& end : ends) {
      const Status status = end.get();
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return values;
  }

  MessageRegistry registry_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::unique_ptr<LosingTransport>> losing_;
  SimulatedNetwork network_{kRanks, /*seed=*/3};
  std::vector<Bytes> important_;  // by rank: the importance mask; after a call with reports, the rank's lost segments
};

TEST_F(LossyCallTest, WhatIsLostCountsAsTheMeanOfWhatHasComeAndAllRanksGetTheSame) {
  Connect(/*loses=*/true);
  constexpr int64_t kElements = 700001;
  const std::vector<std::vector<float>> values = Sum(kElements, {{0.1}, kSegment});
  for (uint32_t rank = 1; rank < kRanks; ++rank) EXPECT_EQ(values[rank], values[0]);
  std::map<float, int> may_be;  // by sum: the mask of the ranks that were added
  for (int mask = 1; mask < 1 << kRanks; ++mask) {
    const float scale = 4.0f / static_cast<float>(__builtin_popcount(static_cast<unsigned>(mask)));
    may_be[static_cast<float>(mask) * scale] = mask;
  }
  int64_t missing = 0, lost = 0, may_lose = 0, important = 0, unimportant = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    const auto found = may_be.find(values[0][static_cast<size_t>(i)]);
    ASSERT_NE(found, may_be.end()) << i << ": " << values[0][static_cast<size_t>(i)];
    missing += kRanks - __builtin_popcount(static_cast<unsigned>(found->second));
  }
  for (const auto& each : losing_) {
    lost += each->lost_bytes();
    may_lose += each->may_lose();
    important += each->important();
    unimportant += each->unimportant();
  }
  EXPECT_GT(lost, 0);
  EXPECT_EQ(4 * missing, lost);
  EXPECT_LE(lost, may_lose);
  EXPECT_NEAR(static_cast<double>(may_lose), 0.1 * 3 * 4 * kElements, 100.0);
  EXPECT_NEAR(static_cast<double>(important), static_cast<double>(unimportant), 20.0);
  int64_t counted = 0;
  for (const auto& executor : executors_) {
    const std::string json = executor->stats().Json();
    counted += std::stoll(json.substr(json.find("\"lost_bytes\":") + 13));
  }
  EXPECT_EQ(counted, lost);
}

TEST_F(LossyCallTest, ReportsNameExactlyTheSegmentsThatTheSumLacks) {
  Connect(/*loses=*/true);
  constexpr int64_t kElements = 700001;
  const std::vector<std::vector<float>> values =
      Sum(kElements, {{0.1}, kSegment, /*time_limit_s=*/1.0, /*makes_up=*/false});
  int64_t lost = 0, missing = 0;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(values[rank], values[0]);
    for (int64_t i = 0; i < kElements; ++i) {
      const bool is_there = (static_cast<int>(values[0][static_cast<size_t>(i)]) >> rank) % 2 == 1;
      ASSERT_EQ(important_[rank][static_cast<size_t>(4 * i / kSegment)], std::byte{!is_there}) << rank << ", " << i;
      missing += is_there ? 0 : 4;
    }
  }
  for (const auto& each : losing_) lost += each->lost_bytes();
  EXPECT_GT(lost, 0);
  EXPECT_EQ(missing, lost);
}

TEST_F(LossyCallTest, OverWhatLosesNothingNothingIsReported) {
  Connect(/*loses=*/false);
  for (const std::vector<float>& values : Sum(300000, {{0.1}, kSegment, /*time_limit_s=*/0.0, /*makes_up=*/false})) {
    EXPECT_EQ(values, std::vector<float>(300000, 15.0f));
  }
  for (const Bytes& lost : important_) EXPECT_EQ(lost, Bytes(lost.size()));
}

TEST_F(LossyCallTest, OverWhatLosesNothingItIsTheSum) {
  Connect(/*loses=*/false);
  for (const std::vector<float>& values : Sum(300000, {{0.1}, kSegment}))
    EXPECT_EQ(values, std::vector<float>(300000, 15.0f));
}

TEST_F(LossyCallTest, OfMessagesOfTwoArraysThereAreNone) {
  Connect(/*loses=*/false);
  auto site = MakeSite(0, {{DType::kF32, 40000}, {DType::kBF16, 600000}, {DType::kF64, 80}}, {{0.1, 0.2, 0}, kSegment});
  ASSERT_TRUE(site.ok()) << site.status().message();
  const Layout& layout = site.value()->layout();
  for (const MessageTask& task : site.value()->graph(0).tasks()) {
    int leaves = 0;
    layout.ForEach(task.begin, task.end, [&](size_t, int64_t, int64_t) { ++leaves; });
    EXPECT_EQ(leaves, 1);
    // Rank 0 adds chunk 0. Therefore its receives of chunk 0 and its sends of the other chunks are lossy.
    if (task.kind != MessageTask::Kind::kAdd) {
      EXPECT_EQ(task.is_lossy, (task.kind == MessageTask::Kind::kSend) == (task.chunk != 0));
    }
  }
}

TEST_F(LossyCallTest, LossesThatDifferMakeDifferentCalls) {
  Connect(/*loses=*/false);
  const AllowedLoss losses[] = {{{0.30000286, 0.1}, 1024},       {{0.30000316, 0.1}, 1024},
                                {{0.30000286, 0.2}, 1024},       {{0.30000286, 0.1}, 2048},
                                {{0.30000286, 0.1}, 1024, 0.0},  {{0.30000286, 0.1}, 1024, 0.5},
                                {{0.30000286, 0.1}, 1024, 0.25}, {{0.30000286, 0.1}, 1024, 0.25, false}};
  std::set<uint64_t> fingerprints;
  std::set<std::string> texts;
  for (const AllowedLoss& loss : losses) {
    auto site = MakeSite(0, {{DType::kF32, 4096}, {DType::kF32, 8192}}, loss);
    ASSERT_TRUE(site.ok()) << site.status().message();
    fingerprints.insert(site.value()->fingerprint());
    texts.insert(site.value()->text());
  }
  EXPECT_EQ(fingerprints.size(), std::size(losses));
  EXPECT_EQ(texts.size(), std::size(losses));
}

TEST_F(LossyCallTest, WhatCannotLoseSomeIsRefused) {
  Connect(/*loses=*/false);
  const std::vector<Leaf> floats = {{DType::kF32, 4096}};
  const auto why = [&](const std::vector<Leaf>& leaves, const AllowedLoss& loss, const std::string& list,
                       Reduction reduction = Reduction::kSum) {
    return MakeSite(0, leaves, loss, list, reduction).status().message();
  };
  const std::string direct = "all_reduce/direct/4";
  EXPECT_EQ(why(floats, {{0.1}, kSegment}, direct, Reduction::kMax), "psum over 'data': a loss needs a sum");
  EXPECT_EQ(why(floats, {{0.1, 0.1}, kSegment}, direct), "psum over 'data': a loss has 2 shares, not one per array");
  EXPECT_EQ(why({{DType::kS32, 4096}}, {{0.1}, kSegment}, direct), "psum over 'data': a loss needs floats");
  EXPECT_EQ(why(floats, {{1.0}, kSegment}, direct), "psum over 'data': a loss has a share outside [0, 1)");
  EXPECT_EQ(why(floats, {{0.1}, 1000 + 4}, direct),
            "psum over 'data': a loss has segments of 1004 bytes; they need 1024 or more, a multiple of 8");
  EXPECT_EQ(why(floats, {{0.1}, kSegment, -1.0}, direct),
            "psum over 'data': a loss has a time limit that is not from 0 to 1000000.000000 seconds");
  EXPECT_EQ(why(floats, {{0.1}, kSegment, std::nullopt, false}, direct),
            "psum over 'data': a loss that is reported needs a time limit");
  EXPECT_EQ(why(floats, {{0.1}, kSegment}, "all_reduce/flat/4"),
            "psum over 'data': messages of rank 0: chunk 0 is not added by rank 0, as a lossy all-reduce requires");
}

}  // namespace
}  // namespace jaxcomm

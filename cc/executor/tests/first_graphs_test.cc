// A schedule's first call makes the schedule's graphs. The thread that receives the decision must not make the graphs,
// because this thread may be the transport's.
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/program/message_registry.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

// Sanitizers define their own operators new and delete.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

thread_local size_t allocated = 0;  // the number of bytes that this thread has allocated

}  // namespace

void* operator new(size_t bytes) {
  allocated += bytes;
  void* const block = std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }

namespace jaxcomm {
namespace {

constexpr size_t kFloats = 1 << 20;
constexpr char kFirst[] = "all_reduce/direct/2", kSecond[] = "all_reduce/ring/2";

// Two processes. The second process waits for a decision.
class FirstGraphs : public testing::Test {
 protected:
  FirstGraphs() : network_(2, /*seed=*/1) {
    for (uint32_t process = 0; process < 2; ++process) {
      executors_.push_back(std::make_unique<Executor>(1));
      network_.Connect(process, &executors_[process]->messages());
      executors_[process]->messages().Connect(&network_.transport(process));
    }
  }
  ~FirstGraphs() override { network_.Stop(); }

  std::shared_ptr<MessageSite> MakeSite(const std::string& list, uint32_t process) {
    MessageGroup group{{{0, 0}, {1, 1}}, list, {lists_.Find(list, 0), lists_.Find(list, 1)}};
    auto made = MessageSite::Make({"psum", "data", "auto", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum}, 8,
                                  /*site=*/0, {group}, process);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.value();
  }
  std::future<Status> Arrive(MessageSite& site, uint32_t rank) {
    EXPECT_TRUE(site.SetLeaves({{DType::kF32, 4 * kFloats}}, executors_[rank]->stats()).ok());
    auto* const bytes = reinterpret_cast<std::byte*>(values_[rank].data());
    const auto end = std::make_shared<std::promise<Status>>();
    site.Arrive(*executors_[rank], /*run=*/0, rank, {{bytes}, {bytes}},
                [end](const Status& status) { end->set_value(status); });
    return end->get_future();
  }
  // Returns the number of bytes that this thread allocates to make a graph of the second list.
  size_t BytesOfGraph() {
    const size_t before = allocated;
    EXPECT_TRUE(
        MessageGraph::Make(*lists_.Find(kSecond, 1), Layout({{DType::kF32, 4 * kFloats}}), Kind::kAllReduce, {}).ok());
    return allocated - before;
  }
  void ExpectSums(std::vector<std::future<Status>> ends) {
    for (auto& end : ends) {
      const Status status = end.get();
      EXPECT_TRUE(status.ok()) << status.message();
    }
    for (const auto& values : values_) EXPECT_EQ(values, std::vector<float>(kFloats, 2));
  }

  SimulatedNetwork network_;
  MessageRegistry lists_;
  std::vector<std::vector<float>> values_{2, std::vector<float>(kFloats, 1)};
  std::vector<std::unique_ptr<Executor>> executors_;
};

TEST_F(FirstGraphs, AreAWorkersWhereADecisionArrives) {
  std::vector<std::shared_ptr<MessageSite>> sites;
  for (uint32_t process = 0; process < 2; ++process) {
    sites.push_back(MakeSite(kFirst, process));
    const std::vector<std::shared_ptr<MessageSite>> others{MakeSite(kSecond, process)};
    sites[process]->SelectFrom(
        others, executors_[process]->messages().SelectorOf(*sites[process], others, ScheduleSelector::kNoLateRank,
                                                           /*step=*/0, {{/*rank=*/0, /*rail=*/0, /*schedule=*/1}}));
  }
  std::vector<std::future<Status>> ends;
  ends.push_back(Arrive(*sites[1], 1));
  const Decided decided{{8, 0, 0, 0}, {/*schedule=*/1}};
  const size_t most = BytesOfGraph(), before = allocated;
  executors_[1]->messages().OnNotice(0, Encode(decided));
  EXPECT_LT(allocated - before, most);
  sites[0]->selector()->Receive(decided.call, decided.decision);
  ends.push_back(Arrive(*sites[0], 0));
  ExpectSums(std::move(ends));
}

TEST_F(FirstGraphs, AreAWorkersWhereAPlanIsDecided) {
  const auto plan = std::make_shared<PlannedLists>(
      PlannedLists{"ring", 2, {{0, kSecond, {lists_.Find(kSecond, 0), lists_.Find(kSecond, 1)}}}});
  std::vector<std::shared_ptr<MessageSite>> sites;
  for (uint32_t process = 0; process < 2; ++process) {
    sites.push_back(MakeSite(kFirst, process));
    ASSERT_TRUE(executors_[process]->messages().plans().Prepare(plan, {{8, 0}}));
  }
  executors_[0]->messages().plans().Decide(/*commit=*/true);
  std::vector<std::future<Status>> ends;
  ends.push_back(Arrive(*sites[1], 1));
  const size_t most = BytesOfGraph(), before = allocated;
  executors_[1]->messages().plans().Decide(/*commit=*/true);
  EXPECT_LT(allocated - before, most);
  ends.push_back(Arrive(*sites[0], 0));
  ExpectSums(std::move(ends));
}

}  // namespace
}  // namespace jaxcomm
#endif

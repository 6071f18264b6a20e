// Runs a function when the scope ends, even if an exception ends the scope.
//
//   is_running_ = true;
//   const Finally end([&] { is_running_ = false; });
//   callback();   // throws if memory runs out
#pragma once

#include <utility>

namespace jaxcomm {

template <typename Function>
class Finally {
 public:
  explicit Finally(Function function) : function_(std::move(function)) {}
  Finally(const Finally&) = delete;
  ~Finally() { function_(); }

 private:
  const Function function_;
};

}  // namespace jaxcomm

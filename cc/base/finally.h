// Runs a function where its scope ends, also by an exception.
//
//   is_running_ = true;
//   const Finally end([&] { is_running_ = false; });
//   callback();   // where memory runs out, it throws
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

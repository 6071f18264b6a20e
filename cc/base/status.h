// Errors as values.
//
//   Status status = Check(x);
//   if (!status.ok()) return status;
//   Result<Program> program = Program::Decode(words);
//   if (!program.ok()) return program.status();
//
// An ok Status is cheap to make and to copy. A Result holds a value only if its status is ok. The errors that users
// catch (error_texts.h) also carry a record, so that programs need not parse an error's text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace jaxcomm {

enum class Code { kOk, kInvalidArgument, kUnimplemented, kDeadlineExceeded, kInternal };

class Status {
 public:
  Status() = default;
  Status(Code code, std::string message, std::string record = "")
      : code_(code), message_(std::move(message)), record_(std::move(record)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // The error's record, a JSON object; "" if the error has no record.
  const std::string& record() const { return record_; }

  // Returns the same error, with the end of `process` as its cause.
  Status CausedByEndOf(uint32_t process) const {
    Status status = *this;
    status.ended_process_ = process;
    return status;
  }
  // The process whose end caused the error; nullopt if the error has another cause.
  std::optional<uint32_t> ended_process() const { return ended_process_; }

 private:
  Code code_ = Code::kOk;
  std::string message_, record_;
  std::optional<uint32_t> ended_process_;
};

inline Status InvalidArgument(std::string message, std::string record = "") {
  return Status(Code::kInvalidArgument, std::move(message), std::move(record));
}

template <typename T>
class Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace jaxcomm

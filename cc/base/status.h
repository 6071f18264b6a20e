// Errors as values.
//
//   Status status = Check(x);
//   if (!status.ok()) return status;
//   Result<Program> program = Program::Decode(words);
//   if (!program.ok()) return program.status();
//
// A Status is cheap when it is ok; a Result holds a value exactly when its status is ok. The errors that users catch
// (errors.h) also carry a record, so that no program has to read their text.
#pragma once

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
  // The error's fields as a JSON object, or "".
  const std::string& record() const { return record_; }

 private:
  Code code_ = Code::kOk;
  std::string message_, record_;
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

// Counts the threads and jobs that use an object, so that the object's owner can wait for its last user.
//
//   std::atomic<int64_t> users{0};
//   const User user(users);                            // counts until `user` and all its copies are destroyed
//   pool.Submit({[user] { ... }});
#pragma once

#include <atomic>
#include <cstdint>

namespace jaxcomm {

class User {
 public:
  explicit User(std::atomic<int64_t>& users) : users_(users) { ++users_; }
  User(const User& other) : User(other.users_) {}
  User& operator=(const User&) = delete;
  ~User() { --users_; }

 private:
  std::atomic<int64_t>& users_;
};

}  // namespace jaxcomm

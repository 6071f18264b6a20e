// The encrypted form of a connection's bytes: records as in TLS 1.3.
//
//   Result<std::unique_ptr<Records>> records = Records::Make(keys);
//   const ssize_t taken = records.value()->writer.Send(socket, vectors, count);      // like sendmsg
//   const ssize_t stored = records.value()->reader.Receive(socket, vectors, count);  // like recvmsg
//
// A record is a header of five bytes, up to 16 KiB of encrypted bytes with their type, and a tag over all of these. The
// records of each direction are numbered, and the number is part of the tag, so a record that is changed, repeated,
// left out or moved has no valid tag. Each direction has its own key, which is replaced before it has sealed more
// records than TLS 1.3 allows. Source: RFC 8446, section 5.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/crypto/aead.h"

namespace jaxcomm {

constexpr size_t kRecordHeaderBytes = 5;
constexpr size_t kRecordBytes = 16 << 10;  // maximum number of bytes in a record before encryption
constexpr uint64_t kRecordsOfAKey = uint64_t{1} << 24;

// Numbers the records of one direction, and changes the key after every `records_of_a_key` records.
template <typename Side>
class RecordCipher {
 public:
  RecordCipher(Side side, uint64_t records_of_a_key) : side(std::move(side)), records_of_a_key_(records_of_a_key) {}

  // Starts the next record. Returns false if libcrypto has failed.
  bool Begin(const std::byte* head) {
    if (number_ > 0 && number_ % records_of_a_key_ == 0 && !side.ChangeKey()) return false;
    side.Begin(number_++, head, kRecordHeaderBytes);
    return true;
  }

  Side side;

 private:
  const uint64_t records_of_a_key_;
  uint64_t number_ = 0;
};

class RecordWriter {
 public:
  explicit RecordWriter(Sealer sealer, uint64_t records_of_a_key = kRecordsOfAKey);

  // Seals and sends the bytes in `vectors`. Returns the number of bytes taken, or -1 with errno. Taken bytes that the
  // kernel does not accept yet are kept in sealed form, and are sent first by the next call.
  ssize_t Send(int socket, const iovec* vectors, size_t count);
  bool has_unsent() const { return begin_ < end_; }

 private:
  static constexpr size_t kBatch = 16;  // maximum number of records in one system call

  RecordCipher<Sealer> cipher_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;  // the sealed and unsent bytes in the buffer are at [begin_, end_)
};

class RecordReader {
 public:
  explicit RecordReader(Opener opener, uint64_t records_of_a_key = kRecordsOfAKey);

  // Returns the number of bytes stored in `vectors`, 0 at the end of the connection, or -1 with errno. The error
  // EBADMSG means that a record was not sealed with the connection's key; all further calls return this error.
  ssize_t Receive(int socket, const iovec* vectors, size_t count);
  // Returns whether the next Receive will return at once, without reading the socket.
  bool has_more() const { return text_ < text_end_ || is_broken_ || HasRecord(); }

 private:
  size_t Store(const iovec* vectors, size_t count);
  bool HasRecord() const;
  bool IsHeaderValid() const;
  bool Open();
  size_t RecordSize() const;

  RecordCipher<Opener> cipher_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;      // the unopened bytes in the buffer are at [begin_, end_)
  size_t text_ = 0, text_end_ = 0;  // the opened bytes that Receive has not yet returned; they are before begin_
  bool is_broken_ = false;
};

struct Records {
  // Fails if this machine has no libcrypto.
  static Result<std::unique_ptr<Records>> Make(const CipherKeys& keys);

  RecordWriter writer;
  RecordReader reader;
};

}  // namespace jaxcomm

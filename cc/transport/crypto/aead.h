// Encrypts and authenticates bytes by AES-128-GCM, with OpenSSL's libcrypto.
//
//   Result<Sealer> sealer = Sealer::Make(key);
//   sealer.value().Begin(number, head, head_bytes);      // `head` stays readable, and is authenticated
//   sealer.value().Add(text, bytes, out);                // any number of times; `out` may be `text`
//   const bool is_sealed = sealer.value().End(tag);
//   Result<Opener> opener = Opener::Make(key);           // Begin and Add likewise, with the encrypted bytes
//   const bool is_genuine = opener.value().End(tag);     // false: do not use what Add has stored
//
// With one key, a number must not be used twice for sealing, because an eavesdropper could then read both texts. An
// object is used by one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cc/base/status.h"
#include "cc/transport/crypto/libcrypto.h"

namespace jaxcomm {

// 16 bytes of the cipher's key, then 12 bytes from which the nonces are made.
using CipherKey = std::array<uint8_t, 28>;

// The keys of the two directions of a connection or path.
struct CipherKeys {
  CipherKey sends, receives;
};

constexpr size_t kTagBytes = 16;

// Returns whether this machine has libcrypto, and a processor with instructions for AES-GCM. Without these
// instructions, other kinds of tags cost less.
bool HasFastAead();

class Cipher {
 public:
  // Starts a sequence of bytes. The nonce is the key's last 12 bytes XOR `number`, as in TLS 1.3.
  void Begin(uint64_t number, const std::byte* head, size_t head_bytes);
  // Adds bytes to the head. Must be called before Add.
  void AddToHead(const std::byte* head, size_t head_bytes);
  // Stores `bytes` bytes at `out`, encrypted or decrypted.
  void Add(const std::byte* in, size_t bytes, std::byte* out);
  // Returns a key that is derived from this one, or nullopt if libcrypto has failed.
  std::optional<CipherKey> NextKey();
  // Replaces the key by the next one. Both sides must change the key after the sequence with the same number. Returns
  // false if libcrypto has failed; then the object must not be used any more.
  bool ChangeKey();

 protected:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };

  static Result<Cipher> Make(const CipherKey& key, bool encrypts);

  // Control and Final each call a function of libcrypto, and record a failure until the next Begin.
  void Control(int command, void* data);
  void Final();

  const Libcrypto* library_ = nullptr;
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  CipherKey key_{};
  bool encrypts_ = false;
  bool is_ok_ = true;

 private:
  bool SetKey();
};

class Sealer : public Cipher {
 public:
  static Result<Sealer> Make(const CipherKey& key);

  // Stores the tag, kTagBytes bytes. Returns false if libcrypto has failed; then the bytes must not be sent.
  bool End(std::byte* tag);

 private:
  explicit Sealer(Cipher cipher) : Cipher(std::move(cipher)) {}
};

class Opener : public Cipher {
 public:
  static Result<Opener> Make(const CipherKey& key);

  // Returns whether a Sealer with the same key, number, head and bytes has stored this tag.
  bool End(const std::byte* tag);

 private:
  explicit Opener(Cipher cipher) : Cipher(std::move(cipher)) {}
};

}  // namespace jaxcomm

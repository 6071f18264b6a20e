#include "cc/transport/crypto/aead.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <utility>

namespace jaxcomm {
namespace {

// Commands of EVP_CIPHER_CTX_ctrl.
constexpr int kGetTag = 0x10, kSetTag = 0x11;
constexpr int kSameDirection = -1;
constexpr size_t kVectorAt = 16, kVectorBytes = 12;

const unsigned char* Plain(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }
unsigned char* Plain(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

bool ProcessorHasAes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & (HWCAP_AES | HWCAP_PMULL)) == (HWCAP_AES | HWCAP_PMULL);
#else
  return false;
#endif
}

}  // namespace

bool HasFastAead() { return ProcessorHasAes() && Libcrypto::Get().ok(); }

void Cipher::Free::operator()(evp_cipher_ctx_st* context) const { Libcrypto::Get().value().free_context(context); }

Result<Cipher> Cipher::Make(const CipherKey& key, bool encrypts) {
  const Result<Libcrypto>& library = Libcrypto::Get();
  if (!library.ok()) return library.status();
  Cipher cipher;
  cipher.library_ = &library.value();
  cipher.context_.reset(library.value().new_context());
  cipher.key_ = key;
  cipher.encrypts_ = encrypts;
  if (!cipher.context_ || !cipher.SetKey()) return Status(Code::kInternal, "libcrypto cannot set a key");
  return cipher;
}

bool Cipher::SetKey() {
  return library_->init(context_.get(), library_->aes_128_gcm, nullptr, key_.data(), nullptr, encrypts_ ? 1 : 0) == 1;
}

void Cipher::Begin(uint64_t number, const std::byte* head, size_t head_bytes) {
  std::array<uint8_t, kVectorBytes> nonce;
  for (size_t i = 0; i < kVectorBytes; ++i) {
    const size_t from_end = kVectorBytes - 1 - i;
    const uint64_t byte = from_end < sizeof(number) ? number >> (8 * from_end) : 0;
    nonce[i] = static_cast<uint8_t>(key_[kVectorAt + i] ^ byte);
  }
  is_ok_ = library_->init(context_.get(), nullptr, nullptr, nullptr, nonce.data(), kSameDirection) == 1;
  AddToHead(head, head_bytes);
}

void Cipher::AddToHead(const std::byte* head, size_t head_bytes) {
  int ignored;
  is_ok_ &= library_->update(context_.get(), nullptr, &ignored, Plain(head), static_cast<int>(head_bytes)) == 1;
}

void Cipher::Add(const std::byte* in, size_t bytes, std::byte* out) {
  int stored;
  is_ok_ &= library_->update(context_.get(), Plain(out), &stored, Plain(in), static_cast<int>(bytes)) == 1;
}

// The next key consists of encrypted zeros, with a nonce that no sequence of bytes uses. A decrypting cipher computes
// the same key.
std::optional<CipherKey> Cipher::NextKey() {
  const std::array<std::byte, sizeof(CipherKey)> zeros{};
  std::array<std::byte, sizeof(CipherKey)> found;
  const std::byte none{};
  Begin(UINT64_MAX, &none, 0);
  Add(zeros.data(), zeros.size(), found.data());
  if (!is_ok_) return std::nullopt;
  CipherKey next;
  for (size_t i = 0; i < next.size(); ++i) next[i] = static_cast<uint8_t>(found[i]);
  return next;
}

bool Cipher::ChangeKey() {
  const std::optional<CipherKey> next = NextKey();
  if (!next) return false;
  key_ = *next;
  return SetKey();
}

void Cipher::Control(int command, void* data) {
  is_ok_ &= library_->control(context_.get(), command, static_cast<int>(kTagBytes), data) == 1;
}

void Cipher::Final() {
  unsigned char unused[kTagBytes];
  int ignored;
  is_ok_ &= library_->final(context_.get(), unused, &ignored) == 1;
}

Result<Sealer> Sealer::Make(const CipherKey& key) {
  Result<Cipher> made = Cipher::Make(key, /*encrypts=*/true);
  if (!made.ok()) return made.status();
  return Sealer(std::move(made.value()));
}

bool Sealer::End(std::byte* tag) {
  Final();
  Control(kGetTag, tag);
  return is_ok_;
}

Result<Opener> Opener::Make(const CipherKey& key) {
  Result<Cipher> made = Cipher::Make(key, /*encrypts=*/false);
  if (!made.ok()) return made.status();
  return Opener(std::move(made.value()));
}

bool Opener::End(const std::byte* tag) {
  std::array<std::byte, kTagBytes> expected;
  std::copy_n(tag, kTagBytes, expected.begin());
  Control(kSetTag, expected.data());
  Final();
  return is_ok_;
}

}  // namespace jaxcomm

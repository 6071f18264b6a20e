// OpenSSL's library libcrypto, which is loaded when it is first needed.
//
//   const Result<Libcrypto>& library = Libcrypto::Get();   // an error if this machine has no libcrypto of OpenSSL 3
//   if (library.ok()) library.value().new_context();
//
// Thread-safe. The few functions that jaxcomm calls are declared here, so building it needs no header of OpenSSL.
#pragma once

#include "cc/base/status.h"

struct evp_cipher_ctx_st;
struct evp_cipher_st;

namespace jaxcomm {

struct Libcrypto {
  // Loads the library in the first call. The result is never destroyed.
  static const Result<Libcrypto>& Get();
  // Loads a library. `name`: the file that the dynamic linker searches for.
  static Result<Libcrypto> Load(const char* name);

  // Functions of openssl/evp.h. They return 1 on success.
  evp_cipher_ctx_st* (*new_context)() = nullptr;
  void (*free_context)(evp_cipher_ctx_st*) = nullptr;
  evp_cipher_st* (*fetch)(void* library, const char* algorithm, const char* properties) = nullptr;
  int (*init)(evp_cipher_ctx_st*, const evp_cipher_st*, void* engine, const unsigned char* key,
              const unsigned char* vector, int encrypts) = nullptr;
  int (*update)(evp_cipher_ctx_st*, unsigned char* out, int* out_bytes, const unsigned char* in, int bytes) = nullptr;
  int (*final)(evp_cipher_ctx_st*, unsigned char* out, int* out_bytes) = nullptr;
  int (*control)(evp_cipher_ctx_st*, int command, int bytes, void* data) = nullptr;

  const evp_cipher_st* aes_128_gcm = nullptr;  // never freed
};

}  // namespace jaxcomm

#include "cc/transport/crypto/libcrypto.h"

#include <dlfcn.h>

#include <memory>
#include <string>
#include <type_traits>

namespace jaxcomm {
namespace {

constexpr char kName[] = "libcrypto.so.3";  // the same for all versions of OpenSSL 3
constexpr char kCure[] = "install OpenSSL 3 (Debian: apt install libssl3) on every host, or unset JAXCOMM_ENCRYPT";

}  // namespace

const Result<Libcrypto>& Libcrypto::Get() {
  static const Result<Libcrypto>* const library = std::make_unique<Result<Libcrypto>>(Load(kName)).release();
  return *library;
}

Result<Libcrypto> Libcrypto::Load(const char* name) {
  const auto error = [](const std::string& why) {
    return InvalidArgument("messages cannot be encrypted: " + why + ".\n  Cure: " + kCure);
  };
  void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return error(dlerror());
  Libcrypto library;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, symbol));
    return function != nullptr;
  };
  const bool has_all = find(library.new_context, "EVP_CIPHER_CTX_new") &&
                       find(library.free_context, "EVP_CIPHER_CTX_free") && find(library.fetch, "EVP_CIPHER_fetch") &&
                       find(library.init, "EVP_CipherInit_ex") && find(library.update, "EVP_CipherUpdate") &&
                       find(library.final, "EVP_CipherFinal_ex") && find(library.control, "EVP_CIPHER_CTX_ctrl");
  if (!has_all) return error(std::string(name) + " lacks functions");
  library.aes_128_gcm = library.fetch(nullptr, "AES-128-GCM", nullptr);
  if (library.aes_128_gcm == nullptr) return error(std::string(name) + " lacks AES-128-GCM");
  return library;
}

}  // namespace jaxcomm

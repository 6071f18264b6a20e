// Makes a site's text and fingerprint. The text names the site's calls in errors. The ranks of a call compare their
// fingerprints, which are equal if the ranks make the same call.
#pragma once

#include <cstdint>
#include <string>

namespace jaxcomm {

class MessageSite;

struct SiteText {
  std::string text;  // the text ends with the site's row, if the site has one
  uint64_t fingerprint = 0;
};

// The site's leaves must be set.
SiteText DescribeSite(const MessageSite& site);

}  // namespace jaxcomm

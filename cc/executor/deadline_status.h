// The error of a call that is overdue: which ranks keep it from its end, and where they are instead.
#pragma once

#include <functional>

#include "cc/base/status.h"
#include "cc/executor/last_calls.h"
#include "cc/executor/message_call.h"

namespace jaxcomm {

// `is_open`: whether somebody waits in a call.
Status DeadlineStatus(const MessageCall& call, const MessageCall::Delay& delay, Clock::time_point now,
                      const LastCalls& last_calls, const std::function<bool(const CallId&)>& is_open);

}  // namespace jaxcomm

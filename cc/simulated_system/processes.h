// The files and the memory of simulated processes.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {

// The current task's process opened the file, and closes it when it ends.
void OwnFile(int fd);
void ForgetFile(int fd);
// Returns the number of files and sockets that a process has open.
size_t CountOpen(const Process& process);
// Closes all files and sockets of a process.
void CloseAllOf(const Process& process);
// As process_vm_readv, except that other tasks may run between two parts.
ssize_t ReadMemory(pid_t pid, const iovec* mine, size_t own_count, const iovec* its, size_t its_count);

}  // namespace jaxcomm::simulated

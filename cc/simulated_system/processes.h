// The files and the memory of simulated processes.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {

// Records that the current task's process has opened a file. CloseAllOf closes the file unless ForgetFile is called.
void OwnFile(int fd);
void ForgetFile(int fd);
// Returns the number of files and sockets that a process has open.
size_t CountOpen(const Process& process);
// Closes all files and sockets of a process.
void CloseAllOf(const Process& process);
// Like process_vm_readv, except that other tasks may run while the memory is read.
ssize_t ReadMemory(pid_t pid, const iovec* mine, size_t own_count, const iovec* its, size_t its_count);

}  // namespace jaxcomm::simulated

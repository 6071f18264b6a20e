#include "cc/transport/simulated/simulated.h"

#include "cc/transport/simulated/endpoint.h"

namespace jaxcomm {

SimulatedNetwork::SimulatedNetwork(uint32_t processes, uint32_t seed) {
  for (uint32_t process = 0; process < processes; ++process) {
    endpoints_.push_back(std::make_unique<Endpoint>(*this, process, processes, seed * processes + process));
  }
}

SimulatedNetwork::~SimulatedNetwork() { Stop(); }

void SimulatedNetwork::Connect(uint32_t process, Transport::Events* events) { endpoints_[process]->Connect(events); }

RailTransport& SimulatedNetwork::transport(uint32_t process) { return *endpoints_[process]; }

void SimulatedNetwork::Kill(uint32_t process) { endpoints_[process]->Die(); }

void SimulatedNetwork::Stop() {
  for (auto& endpoint : endpoints_) endpoint->Stop();
}

}  // namespace jaxcomm

"""The dumps that processes wrote when a call failed: where each rank was, and the likely culprit."""

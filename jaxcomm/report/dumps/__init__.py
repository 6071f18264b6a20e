"""The dumps that processes wrote when a call failed: who was where, and the likely culprit."""

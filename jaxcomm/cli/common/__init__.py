"""What several commands share: argument types, output, progress, and how they run on host devices or in a job."""

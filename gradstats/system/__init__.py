"""What the machine is asked for: files, resumable shards, a worker process, progress, interrupts, the hub."""

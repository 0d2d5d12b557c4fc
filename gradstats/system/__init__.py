"""Access to the machine: files, resumable shards, a worker process, progress, interrupts, the hub."""

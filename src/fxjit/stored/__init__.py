"""Stored entries (`config.store_entries`): compiled entries of code objects on the disk, which the next process installs
without tracing or lowering."""

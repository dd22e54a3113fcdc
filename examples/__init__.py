"""Jobs to start from: each `main` is what `BOOT_JOB` can name."""

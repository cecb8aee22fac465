"""Where the milliseconds of a distributed training step go: all of the program but its doors."""

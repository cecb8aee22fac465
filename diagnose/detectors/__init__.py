"""What may be wrong: each detector looks at a job and yields what it finds, with the edit that removes it."""

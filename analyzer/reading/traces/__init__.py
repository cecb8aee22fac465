"""From paths to ranks: which files a job has, whose each is, and one result for each rank."""

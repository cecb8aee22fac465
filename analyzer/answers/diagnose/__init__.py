"""The diagnosis of a job: findings with causes and remedies, ranked by the time that they would save."""

"""What is slow, why, and what to do first: findings ranked by the time that a replay says can be won."""

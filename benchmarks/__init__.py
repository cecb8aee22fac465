"""Speed and memory as ratios against a peer in the same run; by hand or nightly, never in the tests."""

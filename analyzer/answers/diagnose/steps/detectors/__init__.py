"""Detectors of problems: each looks at a job and yields its findings, with the edit that removes it."""

"""Why a job hangs, from the dumps of its ranks."""
